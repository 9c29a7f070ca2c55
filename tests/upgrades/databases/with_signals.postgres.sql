SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA kagzi;
CREATE FUNCTION kagzi.at(instant bigint) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT timestamptz 'epoch' + instant * interval '1 microsecond' $$;
CREATE FUNCTION kagzi.clock() RETURNS bigint
    LANGUAGE sql PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;
CREATE FUNCTION kagzi.prune_audit_log(most integer, until bigint) RETURNS integer
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
        WITH oldest AS MATERIALIZED (
            SELECT e.entry_id, e.at FROM kagzi.audit_log AS e ORDER BY e.entry_id LIMIT most
        ), doomed AS MATERIALIZED (
            SELECT e.entry_id
            FROM oldest AS o
            JOIN kagzi.audit_log AS e ON e.entry_id = o.entry_id
            WHERE o.at <= least(until, kagzi.clock() - 400 * 86400000000::bigint)
            FOR UPDATE OF e SKIP LOCKED
        ), pruned AS (
            DELETE FROM kagzi.audit_log AS e USING doomed AS d WHERE e.entry_id = d.entry_id
        )
        SELECT count(*)::integer FROM doomed
    $$;
CREATE FUNCTION kagzi.refuse_change_of_audit_log() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'entries of the audit log cannot change' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE FUNCTION kagzi.refuse_change_of_finished_run() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'run % has finished and cannot change', OLD.run_id USING ERRCODE = 'integrity_constraint_violation';
END $$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE kagzi.api_keys (
    key_id text NOT NULL,
    namespace text,
    role text NOT NULL,
    name text NOT NULL,
    digest bytea NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    last_used_at bigint,
    CONSTRAINT api_keys_digest CHECK ((octet_length(digest) = 32)),
    CONSTRAINT api_keys_role CHECK ((role = ANY (ARRAY['admin'::text, 'client'::text, 'worker'::text, 'viewer'::text])))
);
CREATE TABLE kagzi.audit_log (
    entry_id bigint NOT NULL,
    at bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    namespace text,
    target text NOT NULL,
    request_id text NOT NULL,
    peer text NOT NULL,
    result text NOT NULL
);
ALTER TABLE kagzi.audit_log ALTER COLUMN entry_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME kagzi.audit_log_entry_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE kagzi.migrations (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE kagzi.namespaces (
    namespace text NOT NULL,
    display_name text DEFAULT ''::text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    retention_days integer DEFAULT 30 NOT NULL,
    created_at bigint DEFAULT kagzi.clock() NOT NULL,
    updated_at bigint DEFAULT kagzi.clock() NOT NULL,
    CONSTRAINT namespaces_retention_days_check CHECK ((retention_days >= 0))
);
CREATE TABLE kagzi.secrets (
    name text NOT NULL,
    value bytea NOT NULL
);
CREATE TABLE kagzi.signals (
    run_id uuid NOT NULL,
    sent_at bigint NOT NULL,
    seq integer NOT NULL,
    taken_seq integer,
    namespace text NOT NULL,
    key text NOT NULL,
    name text NOT NULL,
    value bytea NOT NULL
);
CREATE TABLE kagzi.step_runs (
    run_id uuid NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint,
    retry_at bigint,
    timeout_at bigint,
    attempt integer NOT NULL,
    completed_seq integer,
    input_hash bigint DEFAULT 0 NOT NULL,
    generation smallint DEFAULT 0 NOT NULL,
    namespace text NOT NULL,
    step_id text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    input bytea,
    output bytea,
    error bytea,
    child_run_id uuid,
    CONSTRAINT step_runs_status CHECK ((status = ANY (ARRAY['RUNNING'::text, 'COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');
CREATE TABLE kagzi.worker_events (
    event_id bigint NOT NULL,
    namespace text NOT NULL,
    worker_id uuid NOT NULL,
    event text NOT NULL,
    at bigint NOT NULL,
    CONSTRAINT worker_events_event_check CHECK ((event = ANY (ARRAY['STARTED'::text, 'DRAINING'::text, 'STOPPED'::text, 'LOST'::text])))
);
ALTER TABLE kagzi.worker_events ALTER COLUMN event_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME kagzi.worker_events_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE kagzi.workers (
    worker_id uuid NOT NULL,
    namespace text NOT NULL,
    queues text[] NOT NULL,
    types text[] NOT NULL,
    versions text[] NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    concurrency integer NOT NULL,
    status text NOT NULL,
    registered_at bigint NOT NULL,
    last_heartbeat_at bigint NOT NULL,
    deregistered_at bigint,
    completed bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    labels bytea,
    CONSTRAINT workers_status_check CHECK ((status = ANY (ARRAY['ONLINE'::text, 'DRAINING'::text, 'OFFLINE'::text])))
);
CREATE TABLE kagzi.workflow_payloads (
    run_id uuid NOT NULL,
    namespace text NOT NULL,
    kind text NOT NULL,
    data bytea NOT NULL,
    CONSTRAINT workflow_payloads_kind_check CHECK ((kind = ANY (ARRAY['input'::text, 'output'::text])))
);
CREATE TABLE kagzi.workflow_runs (
    run_id uuid NOT NULL,
    token uuid,
    worker_id uuid,
    claim_key bigint,
    available_at bigint,
    lease_expires_at bigint,
    lease_length bigint,
    created_at bigint NOT NULL,
    started_at bigint,
    finished_at bigint,
    deadline_at bigint,
    priority integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    executions integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    crashed_seq integer,
    poll integer,
    inbox_seq integer DEFAULT 0 NOT NULL,
    cancel_requested boolean DEFAULT false NOT NULL,
    namespace text NOT NULL,
    task_queue text NOT NULL,
    workflow_type text NOT NULL,
    version text NOT NULL,
    status text NOT NULL,
    external_id text,
    input bytea,
    output bytea,
    error bytea,
    retry_policy bytea,
    parent_run_id uuid,
    parent_step_id text,
    handles_run_id uuid,
    schedule_group_id uuid,
    scheduled_for bigint,
    cron_expr text,
    timezone text,
    next_fire_at bigint,
    max_catchup integer,
    cancel_deadline bigint,
    origin_run_id uuid,
    trace_context text,
    waiting_for text,
    CONSTRAINT workflow_runs_finished CHECK (((status = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'TIMED_OUT'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT workflow_runs_moves CHECK (
CASE
    WHEN (status = ANY (ARRAY['PENDING'::text, 'SLEEPING'::text])) THEN ((claim_key IS NOT NULL) AND (available_at IS NOT NULL))
    WHEN (status = 'RUNNING'::text) THEN ((token IS NOT NULL) AND (lease_expires_at IS NOT NULL) AND (started_at IS NOT NULL))
    ELSE true
END),
    CONSTRAINT workflow_runs_status CHECK ((status = ANY (ARRAY['PENDING'::text, 'RUNNING'::text, 'SLEEPING'::text, 'COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'TIMED_OUT'::text, 'SCHEDULED'::text, 'PAUSED'::text])))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');
INSERT INTO kagzi.migrations VALUES (1, 'initial', '9e37e53c4b8a262ceea202281a4d72cb6356c616ed3b0fcf744cd50f101be40d', '2026-11-17 22:23:36.528484+00');
INSERT INTO kagzi.migrations VALUES (2, 'cancel', 'dc0ef9a3827e9439fbe2959600d8c53d745eddac71e81efa637ab893b0d2ad1f', '2026-11-17 22:23:36.532229+00');
INSERT INTO kagzi.migrations VALUES (3, 'keys', 'd9360aa96763bdaa77697e1c3a7c2d182e703b14ebc73698a7438bc7fd840a43', '2026-11-17 22:23:36.555518+00');
INSERT INTO kagzi.migrations VALUES (4, 'trace', 'c79fb822454f901d7d1dae761e695e7881c732486091a4da1802c38084e5ee2c', '2026-11-17 22:23:36.556552+00');
INSERT INTO kagzi.migrations VALUES (5, 'page_tokens', 'ba00586d8ba3de4481c38a607f1f3dd44482a72904860fc9a3573953adbeb76c', '2026-11-17 22:23:36.57178+00');
INSERT INTO kagzi.migrations VALUES (6, 'audit_retention', '6ff20e7bec3a7cd5736acaacb710d3f3628646fc5fb02ce5ce45683a551fc991', '2026-11-17 22:23:36.57446+00');
INSERT INTO kagzi.migrations VALUES (7, 'inbox', '414cf2f26b64be6194bb6eb149938124023c8903bda5c6392c2ff95b995ce28e', '2026-11-17 22:23:36.592101+00');
INSERT INTO kagzi.namespaces VALUES ('default', '', '', true, 30, 1794954216337040, 1794954216337054);
INSERT INTO kagzi.secrets VALUES ('page tokens', '\xd056199411304e439b161690cfe95f94be201696ef9b449aa6195858eabb8e72');
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c4ed-7241-9fb7-040ea4ef30e3', 1794954216819920, 1794954216877743, NULL, NULL, 1, 1, 0, 0, 'default', '@begin', 'SIGNAL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c4ed-7241-9fb7-040ea4ef30e3', 1794954216878089, 1794954216888667, 1794954516888667, NULL, 1, NULL, 2016157722, 0, 'default', 'fail_once', 'FUNCTION', 'FAILED', '\x5b2266697273742d736c6565702d6265736964652d6f6e6365225d', NULL, '\x7b2274797065223a226275696c74696e732e436f6e6e656374696f6e4572726f72222c226d657373616765223a226e6f7420796574222c226b696e64223a226e6574776f726b222c226261736573223a5b226275696c74696e732e4f534572726f72222c226275696c74696e732e457863657074696f6e222c226275696c74696e732e42617365457863657074696f6e225d2c2261726773223a5b226e6f7420796574225d2c2274726163656261636b223a22202046696c65205c2270726f6772616d2e70795c222c206c696e652035312c20696e2050726f6772616d2e5f5f696e69745f5f2e3c6c6f63616c733e2e6661696c5f6f6e63655c6e20202020726169736520436f6e6e656374696f6e4572726f72285c226e6f74207965745c2229227d', NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c501-73db-83fe-790734f9778e', 1794954216878454, 1794954216889057, 1794954516889057, NULL, 1, NULL, 3278880404, 0, 'default', 'fail_once', 'FUNCTION', 'FAILED', '\x5b227265747279696e67225d', NULL, '\x7b2274797065223a226275696c74696e732e436f6e6e656374696f6e4572726f72222c226d657373616765223a226e6f7420796574222c226b696e64223a226e6574776f726b222c226261736573223a5b226275696c74696e732e4f534572726f72222c226275696c74696e732e457863657074696f6e222c226275696c74696e732e42617365457863657074696f6e225d2c2261726773223a5b226e6f7420796574225d2c2274726163656261636b223a22202046696c65205c2270726f6772616d2e70795c222c206c696e652035312c20696e2050726f6772616d2e5f5f696e69745f5f2e3c6c6f63616c733e2e6661696c5f6f6e63655c6e20202020726169736520436f6e6e656374696f6e4572726f72285c226e6f74207965745c2229227d', NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c506-7ec8-b630-2070f5425b6a', 1794954216878524, 1794954216889125, NULL, NULL, 1, 1, 814258442, 0, 'default', 'note', 'FUNCTION', 'COMPLETED', '\x5b2272756e6e696e672d31225d', '\x2272756e6e696e672d3122', NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c518-7b47-8c38-af0423c0ee33', 1794954216878830, 1794954216889426, NULL, NULL, 1, 1, 346563139, 0, 'default', 'note', 'FUNCTION', 'COMPLETED', '\x5b22636f6d706c65746564225d', '\x22636f6d706c6574656422', NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c4de-7028-92c5-e7fb32ded9eb', 1794954216819920, 1794954216877520, NULL, NULL, 1, 1, 0, 0, 'default', '@begin', 'SIGNAL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c50b-77ba-8d3e-5d0ea248c00b', 1794954216819920, 1794954216878563, NULL, NULL, 1, 1, 0, 0, 'default', '@begin', 'SIGNAL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c514-7ad4-a576-f7a8331bb190', 1794954216819920, 1794954216878699, NULL, NULL, 1, 1, 0, 0, 'default', '@begin', 'SIGNAL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c528-7435-8243-62e4bff86584', 1794954216819920, 1794954216886206, NULL, NULL, 1, 1, 0, 0, 'default', '@begin', 'SIGNAL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c4fc-77f3-87da-9c62beeaecff', 1794954216878384, 1794954216888854, NULL, NULL, 1, 1, 1136510464, 0, 'default', 'note', 'FUNCTION', 'COMPLETED', '\x5b226265747765656e2d31225d', '\x226265747765656e2d3122', NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c514-7ad4-a576-f7a8331bb190', 1794954217031539, 1794954217031539, NULL, NULL, 1, 2, 0, 0, 'default', '@cancel', 'CANCEL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c50b-77ba-8d3e-5d0ea248c00b', 1794954217048461, 1794954217048461, NULL, NULL, 1, 2, 0, 0, 'default', '@cancel', 'CANCEL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c506-7ec8-b630-2070f5425b6a', 1794954216995991, NULL, NULL, 1794954816995991, 1, NULL, 852371283, 0, 'default', 'hang', 'FUNCTION', 'RUNNING', '\x5b2272756e6e696e672d32225d', NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-c50b-77ba-8d3e-5d0ea248c00b', 1794954217060885, NULL, NULL, 1794954817060885, 1, NULL, 1009217197, 0, 'default', 'hang', 'FUNCTION', 'RUNNING', '\x5b22636c65616e696e672d7570225d', NULL, NULL, NULL);
INSERT INTO kagzi.worker_events OVERRIDING SYSTEM VALUE VALUES (1, 'default', '446b14f2-5ef3-44f8-a7bf-97876ca54766', 'STARTED', 1794954216771705);
INSERT INTO kagzi.workers VALUES ('446b14f2-5ef3-44f8-a7bf-97876ca54766', 'default', '{default}', '{cleans_up,fails,hangs,one_step,retries,sleeps_between,sleeps_first,sleeps_first_beside_a_failure,waits,waits_with_timeout}', '{1,1,1,1,1,1,1,1,1,1}', 'vm', 9656, '0.1.0', 100, 'ONLINE', 1794954216771705, 1794954217612717, NULL, 1, 1, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c4bf-7599-8a60-9e2d5179a836', NULL, NULL, 1794954216658572, 1794954216658572, NULL, NULL, 1794954216658572, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, 0, false, 'default', 'later', 'one_step', '1', 'PENDING', 'pending', '\x5b2270656e64696e67225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c4ed-7241-9fb7-040ea4ef30e3', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', 1794954516888667, 1794954516888667, NULL, 2000000, 1794954216694371, 1794954216819920, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'sleeps_first_beside_a_failure', '1', 'SLEEPING', 'first-sleep-beside', '\x5b2266697273742d736c6565702d626573696465225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c501-73db-83fe-790734f9778e', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', 1794954516889057, 1794954516889057, NULL, 2000000, 1794954216706034, 1794954216819920, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'retries', '1', 'SLEEPING', 'retrying', '\x5b227265747279696e67225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c518-7b47-8c38-af0423c0ee33', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', NULL, 1794954216729170, NULL, 2000000, 1794954216729170, 1794954216819920, 1794954216942830, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'one_step', '1', 'COMPLETED', 'completed', '\x5b22636f6d706c65746564225d', '\x22636f6d706c6574656422', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c4de-7028-92c5-e7fb32ded9eb', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', 1794954516877520, 1794954516877520, NULL, 2000000, 1794954216677779, 1794954216819920, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'sleeps_first', '1', 'SLEEPING', 'first-sleep', '\x5b2266697273742d736c656570225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c51c-7828-adfc-5849f8f3c62b', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', NULL, 1794954216733070, NULL, 2000000, 1794954216733070, 1794954216819920, 1794954216943752, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'fails', '1', 'FAILED', 'failed', '\x5b226661696c6564225d', NULL, '\x7b2274797065223a226275696c74696e732e56616c75654572726f72222c226d657373616765223a226661696c6564222c226261736573223a5b226275696c74696e732e457863657074696f6e222c226275696c74696e732e42617365457863657074696f6e225d2c2261726773223a5b226661696c6564225d2c2274726163656261636b223a22202046696c65205c2270726f6772616d2e70795c222c206c696e652038342c20696e2050726f6772616d2e5f5f696e69745f5f2e3c6c6f63616c733e2e6661696c735c6e2020202072616973652056616c75654572726f7228776f726429227d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c51e-7e18-9fb6-a33346d288e0', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', 1794954516886061, 1794954516886061, NULL, 2000000, 1794954216739065, 1794954216819920, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'waits', '1', 'SLEEPING', 'waiting', '\x5b2277616974696e67225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '["s:go"]');
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c528-7435-8243-62e4bff86584', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', 1794954516886206, 1794954516886206, NULL, 2000000, 1794954216744916, 1794954216819920, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'waits_with_timeout', '1', 'SLEEPING', 'waiting-with-timeout', '\x5b2277616974696e672d776974682d74696d656f7574225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '["s:go"]');
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c4fc-77f3-87da-9c62beeaecff', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', 1794954516888854, 1794954516888854, NULL, 2000000, 1794954216701183, 1794954216819920, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'sleeps_between', '1', 'SLEEPING', 'between', '\x5b226265747765656e225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c514-7ad4-a576-f7a8331bb190', '00000002-4ebd-4a95-b096-ac30adb8076b', '446b14f2-5ef3-44f8-a7bf-97876ca54766', NULL, 1794954216985470, NULL, 2000000, 1794954216725108, 1794954216819920, 1794954217030867, NULL, 0, 0, 2, 0, NULL, 2, 1, true, 'default', 'default', 'sleeps_first', '1', 'CANCELLED', 'cancelled', '\x5b2263616e63656c6c6564225d', NULL, '\x7b2274797065223a226b61677a692e6572726f72732e576f726b666c6f7743616e63656c6c6564222c226d657373616765223a227468652072756e207761732063616e63656c6c6564222c226261736573223a5b226b61677a692e6572726f72732e576f726b666c6f774661696c6564222c226b61677a692e6572726f72732e4b61677a694572726f72222c226275696c74696e732e457863657074696f6e222c226275696c74696e732e42617365457863657074696f6e225d2c2261726773223a5b227468652072756e207761732063616e63656c6c6564225d7d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1794954246985470, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c506-7ec8-b630-2070f5425b6a', '00000001-b5a0-48aa-8924-2bec76ab9b79', '446b14f2-5ef3-44f8-a7bf-97876ca54766', NULL, 1794954216713198, 1794954219618997, 2000000, 1794954216713198, 1794954216819920, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'hangs', '1', 'RUNNING', 'running', '\x5b2272756e6e696e67225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-c50b-77ba-8d3e-5d0ea248c00b', '00000002-2640-4a24-8e98-73d3f92be033', '446b14f2-5ef3-44f8-a7bf-97876ca54766', NULL, 1794954216994433, 1794954219618997, 2000000, 1794954216716081, 1794954216819920, NULL, NULL, 0, 0, 2, 0, NULL, 3, 1, true, 'default', 'default', 'cleans_up', '1', 'RUNNING', 'cleaning-up', '\x5b22636c65616e696e672d7570225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1794954246994433, NULL, NULL, NULL);
SELECT pg_catalog.setval('kagzi.audit_log_entry_id_seq', 1, false);
SELECT pg_catalog.setval('kagzi.worker_events_event_id_seq', 1, true);
ALTER TABLE ONLY kagzi.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (key_id);
ALTER TABLE ONLY kagzi.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (entry_id);
ALTER TABLE ONLY kagzi.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (number);
ALTER TABLE ONLY kagzi.namespaces
    ADD CONSTRAINT namespaces_pkey PRIMARY KEY (namespace);
ALTER TABLE ONLY kagzi.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (name);
ALTER TABLE ONLY kagzi.signals
    ADD CONSTRAINT signals_pkey PRIMARY KEY (namespace, run_id, key);
ALTER TABLE kagzi.step_runs
    ADD CONSTRAINT step_runs_kind CHECK ((kind = ANY (ARRAY['FUNCTION'::text, 'SLEEP'::text, 'CHILD_WORKFLOW'::text, 'SIGNAL'::text, 'CANCEL'::text]))) NOT VALID;
ALTER TABLE ONLY kagzi.step_runs
    ADD CONSTRAINT step_runs_pkey PRIMARY KEY (namespace, run_id, step_id, attempt);
ALTER TABLE ONLY kagzi.worker_events
    ADD CONSTRAINT worker_events_pkey PRIMARY KEY (event_id);
ALTER TABLE ONLY kagzi.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (worker_id);
ALTER TABLE ONLY kagzi.workflow_payloads
    ADD CONSTRAINT workflow_payloads_pkey PRIMARY KEY (namespace, run_id, kind);
ALTER TABLE ONLY kagzi.workflow_runs
    ADD CONSTRAINT workflow_runs_pkey PRIMARY KEY (namespace, run_id);
CREATE INDEX audit_log_namespace ON kagzi.audit_log USING btree (namespace, entry_id);
CREATE INDEX signals_untaken ON kagzi.signals USING btree (namespace, run_id, name, seq) WHERE (taken_seq IS NULL);
CREATE INDEX step_runs_timeout ON kagzi.step_runs USING btree (timeout_at) WHERE (status = 'RUNNING'::text);
CREATE INDEX worker_events_worker ON kagzi.worker_events USING btree (namespace, worker_id, event_id);
CREATE INDEX workers_live ON kagzi.workers USING btree (namespace, worker_id) WHERE (status <> 'OFFLINE'::text);
CREATE INDEX workflow_runs_cancel ON kagzi.workflow_runs USING btree (cancel_deadline) WHERE ((cancel_deadline IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX workflow_runs_claim ON kagzi.workflow_runs USING btree (namespace, task_queue, claim_key) WHERE (status = ANY (ARRAY['PENDING'::text, 'SLEEPING'::text]));
CREATE INDEX workflow_runs_deadline ON kagzi.workflow_runs USING btree (deadline_at) WHERE ((deadline_at IS NOT NULL) AND (finished_at IS NULL));
CREATE UNIQUE INDEX workflow_runs_external_id ON kagzi.workflow_runs USING btree (namespace, external_id) WHERE (external_id IS NOT NULL);
CREATE INDEX workflow_runs_leased ON kagzi.workflow_runs USING btree (worker_id) WHERE (status = 'RUNNING'::text);
CREATE TRIGGER audit_log_is_final BEFORE UPDATE ON kagzi.audit_log FOR EACH ROW EXECUTE FUNCTION kagzi.refuse_change_of_audit_log();
CREATE TRIGGER finished_is_final BEFORE UPDATE ON kagzi.workflow_runs FOR EACH ROW WHEN ((old.finished_at IS NOT NULL)) EXECUTE FUNCTION kagzi.refuse_change_of_finished_run();
UPDATE kagzi.namespaces SET retention_days = 36500;

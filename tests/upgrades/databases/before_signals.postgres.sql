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
    CONSTRAINT step_runs_kind CHECK ((kind = ANY (ARRAY['FUNCTION'::text, 'SLEEP'::text, 'CHILD_WORKFLOW'::text, 'SIGNAL'::text]))),
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
INSERT INTO kagzi.migrations VALUES (1, 'initial', '9e37e53c4b8a262ceea202281a4d72cb6356c616ed3b0fcf744cd50f101be40d', '2026-11-17 22:23:20.416165+00');
INSERT INTO kagzi.migrations VALUES (2, 'cancel', 'dc0ef9a3827e9439fbe2959600d8c53d745eddac71e81efa637ab893b0d2ad1f', '2026-11-17 22:23:20.44847+00');
INSERT INTO kagzi.migrations VALUES (3, 'keys', 'd9360aa96763bdaa77697e1c3a7c2d182e703b14ebc73698a7438bc7fd840a43', '2026-11-17 22:23:20.554613+00');
INSERT INTO kagzi.migrations VALUES (4, 'trace', 'c79fb822454f901d7d1dae761e695e7881c732486091a4da1802c38084e5ee2c', '2026-11-17 22:23:20.571022+00');
INSERT INTO kagzi.migrations VALUES (5, 'page_tokens', 'ba00586d8ba3de4481c38a607f1f3dd44482a72904860fc9a3573953adbeb76c', '2026-11-17 22:23:20.58913+00');
INSERT INTO kagzi.migrations VALUES (6, 'audit_retention', '6ff20e7bec3a7cd5736acaacb710d3f3628646fc5fb02ce5ce45683a551fc991', '2026-11-17 22:23:20.615021+00');
INSERT INTO kagzi.namespaces VALUES ('default', '', '', true, 30, 1794954200140550, 1794954200140561);
INSERT INTO kagzi.secrets VALUES ('page tokens', '\xcdc2e91f2b764c7bb79aa12ac2887380ebd7b9c7515c411597851aa8ff96aef2');
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86c7-765e-a890-ef2bdae56ab1', 1794954200917136, 1794954200947136, 1794954500947136, NULL, 1, NULL, 2016157722, 0, 'default', 'fail_once', 'FUNCTION', 'FAILED', '\x5b2266697273742d736c6565702d6265736964652d6f6e6365225d', NULL, '\x7b2274797065223a226275696c74696e732e436f6e6e656374696f6e4572726f72222c226d657373616765223a226e6f7420796574222c226b696e64223a226e6574776f726b222c226261736573223a5b226275696c74696e732e4f534572726f72222c226275696c74696e732e457863657074696f6e222c226275696c74696e732e42617365457863657074696f6e225d2c2261726773223a5b226e6f7420796574225d2c2274726163656261636b223a22202046696c65205c222f746d702f746d70377436716b6a786e2f636865636b6f75742f7372632f6b61677a692f73646b2f776f726b65722f626f646965732e70795c222c206c696e65203135332c20696e20426f646965732e5f72756e5c6e20202020726573756c74203d2061776169742063616c6c2e666e282a63616c6c2e617267732c202a2a63616c6c2e6b7761726773295c6e202046696c65205c2270726f6772616d2e70795c222c206c696e652035312c20696e2050726f6772616d2e5f5f696e69745f5f2e3c6c6f63616c733e2e6661696c5f6f6e63655c6e20202020726169736520436f6e6e656374696f6e4572726f72285c226e6f74207965745c2229227d', NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86ce-768f-891e-a29f6d477215', 1794954200917417, 1794954200947326, NULL, NULL, 1, 1, 1136510464, 0, 'default', 'note', 'FUNCTION', 'COMPLETED', '\x5b226265747765656e2d31225d', '\x226265747765656e2d3122', NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86e9-7808-90dc-7ec7b63e410e', 1794954200919642, 1794954200947812, NULL, NULL, 1, 1, 346563139, 0, 'default', 'note', 'FUNCTION', 'COMPLETED', '\x5b22636f6d706c65746564225d', '\x22636f6d706c6574656422', NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86d4-7810-93d7-9777c3c0294f', 1794954200917495, 1794954200947455, 1794954500947455, NULL, 1, NULL, 3278880404, 0, 'default', 'fail_once', 'FUNCTION', 'FAILED', '\x5b227265747279696e67225d', NULL, '\x7b2274797065223a226275696c74696e732e436f6e6e656374696f6e4572726f72222c226d657373616765223a226e6f7420796574222c226b696e64223a226e6574776f726b222c226261736573223a5b226275696c74696e732e4f534572726f72222c226275696c74696e732e457863657074696f6e222c226275696c74696e732e42617365457863657074696f6e225d2c2261726773223a5b226e6f7420796574225d2c2274726163656261636b223a22202046696c65205c222f746d702f746d70377436716b6a786e2f636865636b6f75742f7372632f6b61677a692f73646b2f776f726b65722f626f646965732e70795c222c206c696e65203135332c20696e20426f646965732e5f72756e5c6e20202020726573756c74203d2061776169742063616c6c2e666e282a63616c6c2e617267732c202a2a63616c6c2e6b7761726773295c6e202046696c65205c2270726f6772616d2e70795c222c206c696e652035312c20696e2050726f6772616d2e5f5f696e69745f5f2e3c6c6f63616c733e2e6661696c5f6f6e63655c6e20202020726169736520436f6e6e656374696f6e4572726f72285c226e6f74207965745c2229227d', NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86d8-7deb-8dfc-46f905676feb', 1794954200917567, 1794954200947509, NULL, NULL, 1, 1, 814258442, 0, 'default', 'note', 'FUNCTION', 'COMPLETED', '\x5b2272756e6e696e672d31225d', '\x2272756e6e696e672d3122', NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86d8-7deb-8dfc-46f905676feb', 1794954201149828, NULL, NULL, 1794954801149828, 1, NULL, 852371283, 0, 'default', 'hang', 'FUNCTION', 'RUNNING', '\x5b2272756e6e696e672d32225d', NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86e3-713f-9221-1653f5c3c35c', 1794954201239506, 1794954201239506, NULL, NULL, 1, 1, 0, 0, 'default', '@cancel', 'SIGNAL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86e0-77df-834e-3a41800e1a76', 1794954201307980, 1794954201307980, NULL, NULL, 1, 1, 0, 0, 'default', '@cancel', 'SIGNAL', 'COMPLETED', NULL, NULL, NULL, NULL);
INSERT INTO kagzi.step_runs VALUES ('01a1eb9b-86e0-77df-834e-3a41800e1a76', 1794954201310798, NULL, NULL, 1794954801310798, 1, NULL, 1009217197, 0, 'default', 'hang', 'FUNCTION', 'RUNNING', '\x5b22636c65616e696e672d7570225d', NULL, NULL, NULL);
INSERT INTO kagzi.worker_events OVERRIDING SYSTEM VALUE VALUES (1, 'default', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', 'STARTED', 1794954200830749);
INSERT INTO kagzi.workers VALUES ('8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', 'default', '{default}', '{cleans_up,fails,hangs,one_step,retries,sleeps_between,sleeps_first,sleeps_first_beside_a_failure}', '{1,1,1,1,1,1,1,1}', 'vm', 9029, '0.1.0', 100, 'ONLINE', 1794954200830749, 1794954202351310, NULL, 1, 1, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-8686-7ee5-8ddc-4a3e32ad94dc', NULL, NULL, 1794954200743214, 1794954200743214, NULL, NULL, 1794954200743214, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, 0, false, 'default', 'later', 'one_step', '1', 'PENDING', 'pending', '\x5b2270656e64696e67225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86ba-7cd9-a5b5-111777d385fe', '00000001-c966-49fc-a173-0937a9376468', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', 1794954500916219, 1794954500916219, NULL, 2000000, 1794954200769690, 1794954200916219, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'sleeps_first', '1', 'SLEEPING', 'first-sleep', '\x5b2266697273742d736c656570225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86c7-765e-a890-ef2bdae56ab1', '00000001-c966-49fc-a173-0937a9376468', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', 1794954500947136, 1794954500947136, NULL, 2000000, 1794954200780825, 1794954200916219, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'sleeps_first_beside_a_failure', '1', 'SLEEPING', 'first-sleep-beside', '\x5b2266697273742d736c6565702d626573696465225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86ce-768f-891e-a29f6d477215', '00000001-c966-49fc-a173-0937a9376468', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', 1794954500947326, 1794954500947326, NULL, 2000000, 1794954200784480, 1794954200916219, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'sleeps_between', '1', 'SLEEPING', 'between', '\x5b226265747765656e225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86e9-7808-90dc-7ec7b63e410e', '00000001-c966-49fc-a173-0937a9376468', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', NULL, 1794954200809869, NULL, 2000000, 1794954200809869, 1794954200916219, 1794954201053004, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'one_step', '1', 'COMPLETED', 'completed', '\x5b22636f6d706c65746564225d', '\x22636f6d706c6574656422', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86f4-7604-aad7-89f3c1ec75b6', '00000001-c966-49fc-a173-0937a9376468', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', NULL, 1794954200821134, NULL, 2000000, 1794954200821134, 1794954200916219, 1794954201125738, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'fails', '1', 'FAILED', 'failed', '\x5b226661696c6564225d', NULL, '\x7b2274797065223a226275696c74696e732e56616c75654572726f72222c226d657373616765223a226661696c6564222c226261736573223a5b226275696c74696e732e457863657074696f6e222c226275696c74696e732e42617365457863657074696f6e225d2c2261726773223a5b226661696c6564225d2c2274726163656261636b223a22202046696c65205c2270726f6772616d2e70795c222c206c696e652038342c20696e2050726f6772616d2e5f5f696e69745f5f2e3c6c6f63616c733e2e6661696c735c6e2020202072616973652056616c75654572726f7228776f726429227d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86d4-7810-93d7-9777c3c0294f', '00000001-c966-49fc-a173-0937a9376468', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', 1794954500947455, 1794954500947455, NULL, 2000000, 1794954200789204, 1794954200916219, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'retries', '1', 'SLEEPING', 'retrying', '\x5b227265747279696e67225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86e3-713f-9221-1653f5c3c35c', '00000002-2e33-46d6-8a9b-f7afe25e5ac1', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', NULL, 1794954201219404, NULL, 2000000, 1794954200803443, 1794954200916219, 1794954201301643, NULL, 0, 0, 2, 0, NULL, 2, 1, true, 'default', 'default', 'sleeps_first', '1', 'CANCELLED', 'cancelled', '\x5b2263616e63656c6c6564225d', NULL, '\x7b2274797065223a226b61677a692e6572726f72732e576f726b666c6f7743616e63656c6c6564222c226d657373616765223a227468652072756e207761732063616e63656c6c6564222c226261736573223a5b226b61677a692e6572726f72732e576f726b666c6f774661696c6564222c226b61677a692e6572726f72732e4b61677a694572726f72222c226275696c74696e732e457863657074696f6e222c226275696c74696e732e42617365457863657074696f6e225d2c2261726773223a5b227468652072756e207761732063616e63656c6c6564225d7d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1794954231219404, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86d8-7deb-8dfc-46f905676feb', '00000001-c966-49fc-a173-0937a9376468', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', NULL, 1794954200793670, 1794954204355256, 2000000, 1794954200793670, 1794954200916219, NULL, NULL, 0, 0, 1, 0, NULL, 1, 0, false, 'default', 'default', 'hangs', '1', 'RUNNING', 'running', '\x5b2272756e6e696e67225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO kagzi.workflow_runs VALUES ('01a1eb9b-86e0-77df-834e-3a41800e1a76', '00000002-d106-4107-bd31-9c2a7cf5dea3', '8a179d91-cf6f-446b-b1ba-5cd2ca6b1f58', NULL, 1794954201234395, 1794954204355256, 2000000, 1794954200801511, 1794954200916219, NULL, NULL, 0, 0, 2, 0, NULL, 3, 1, true, 'default', 'default', 'cleans_up', '1', 'RUNNING', 'cleaning-up', '\x5b22636c65616e696e672d7570225d', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1794954231234395, NULL, NULL);
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

-- Made from the migrations, for people to read: python -m scripts.schema
-- Each table is followed by its indexes and triggers.

CREATE OR REPLACE FUNCTION kagzi.at(instant bigint)
 RETURNS timestamp with time zone
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
AS $function$ SELECT timestamptz 'epoch' + instant * interval '1 microsecond' $function$;

CREATE OR REPLACE FUNCTION kagzi.check_sql_name(value text, field text)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
BEGIN
    IF value IS NULL OR value = '' OR length(value) > 255 THEN
        RAISE EXCEPTION '% must have 1 to 255 characters', field USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $function$;

CREATE OR REPLACE FUNCTION kagzi.clock()
 RETURNS bigint
 LANGUAGE sql
 PARALLEL SAFE
AS $function$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $function$;

CREATE OR REPLACE FUNCTION kagzi.error_class(error bytea)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
AS $function$ SELECT pg_catalog.substring(pg_catalog.encode(pg_catalog.substr(error, 1, 600), 'escape'), '^\{"type":"(?:[^"]*\.)?([^".]*)"') $function$;

CREATE OR REPLACE FUNCTION kagzi.error_type(error bytea)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
AS $function$ SELECT pg_catalog.substring(pg_catalog.encode(pg_catalog.substr(error, 1, 600), 'escape'), '^\{"type":"([^"]*)"') $function$;

CREATE OR REPLACE FUNCTION kagzi.escaped(value text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
AS $function$ SELECT pg_catalog.encode(pg_catalog.convert_to(value, 'UTF8'), 'escape') $function$;

CREATE OR REPLACE FUNCTION kagzi.forget_tags()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    DELETE FROM kagzi.run_tags AS t
    USING json_each_text(OLD.tags::json) AS e
    WHERE t.namespace = OLD.namespace AND t.tag = e.key || '=' || e.value AND t.run_id = OLD.run_id;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION kagzi.new_run_id(at bigint)
 RETURNS uuid
 LANGUAGE sql
AS $function$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
                                          PLACING substring(int8send(at / 1000) FROM 3) FROM 1 FOR 6),
                                  52, 1), 53, 1), 'hex')::uuid
$function$;

CREATE OR REPLACE FUNCTION kagzi.note_end()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL THEN
        IF NEW.has_children THEN
            INSERT INTO kagzi.cascades (namespace, run_id, at) VALUES (NEW.namespace, NEW.run_id, NEW.finished_at)
            ON CONFLICT DO NOTHING;
        END IF;
        IF NEW.schedule_group_id IS NOT NULL THEN
            INSERT INTO kagzi.schedule_ends (namespace, schedule_id, status, at)
            VALUES (NEW.namespace, NEW.schedule_group_id, NEW.status, NEW.finished_at);
        END IF;
    END IF;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION kagzi.note_tags()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF NEW.status NOT IN ('SCHEDULED', 'PAUSED') THEN
        INSERT INTO kagzi.run_tags (namespace, tag, run_id)
        SELECT NEW.namespace, e.key || '=' || e.value, NEW.run_id FROM json_each_text(NEW.tags::json) AS e
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION kagzi.prune_audit_log(most integer, until bigint)
 RETURNS integer
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
    $function$;

CREATE OR REPLACE FUNCTION kagzi.refuse_change_of_audit_log()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION 'entries of the audit log cannot change' USING ERRCODE = 'integrity_constraint_violation';
END $function$;

CREATE OR REPLACE FUNCTION kagzi.refuse_change_of_finished_run()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    superseded kagzi.workflow_runs := OLD;
BEGIN
    IF OLD.superseded_by IS NULL AND NEW.superseded_by IS NOT NULL AND OLD.external_id IS NOT NULL THEN
        superseded.external_id := NULL;
        superseded.former_id := OLD.external_id;
        superseded.superseded_by := NEW.superseded_by;
        IF superseded IS NOT DISTINCT FROM NEW THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'run % has finished and cannot change', OLD.run_id USING ERRCODE = 'integrity_constraint_violation';
END $function$;

CREATE OR REPLACE FUNCTION kagzi.resolve_version(of_namespace text, of_type text)
 RETURNS text
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
        SELECT coalesce(
            (SELECT d.version FROM kagzi.default_versions AS d
             WHERE d.namespace = of_namespace AND d.workflow_type = of_type),
            (SELECT t.version FROM kagzi.workflow_types AS t
             WHERE t.namespace = of_namespace AND t.workflow_type = of_type AND t.version <> ''
             ORDER BY t.first_seen_at DESC, length(t.version) DESC, t.version COLLATE "C" DESC LIMIT 1),
            '1')
    $function$;

CREATE OR REPLACE FUNCTION kagzi.same_input(one bytea, other bytea)
 RETURNS boolean
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN one = other OR convert_from(one, 'UTF8')::jsonb = convert_from(other, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception THEN
    RETURN false;
END $function$;

CREATE OR REPLACE FUNCTION kagzi.signal(id text, name text, value json DEFAULT 'null'::json, key text DEFAULT NULL::text, namespace text DEFAULT 'default'::text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
DECLARE
    moment bigint := kagzi.clock();
    run    record;
    wakes  boolean;
BEGIN
    PERFORM kagzi.check_sql_name(signal.id, 'id');
    PERFORM kagzi.check_sql_name(signal.name, 'signal name');
    PERFORM kagzi.check_sql_name(coalesce(signal.key, 'none'), 'key');
    IF signal.value IS NULL OR octet_length(signal.value::text) > 2097152 THEN
        RAISE EXCEPTION 'value must be JSON of at most 2097152 bytes; say ''null'' for none'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The lock that orders this with a run that parks: it sees the signal, or is woken by it.
    SELECT r.run_id, r.status, r.inbox_seq, r.waiting_for, r.claim_key, r.priority, r.task_queue INTO run
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = signal.namespace AND r.status NOT IN ('SCHEDULED', 'PAUSED')
      AND (r.external_id = signal.id
           OR r.run_id = CASE WHEN signal.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN signal.id::uuid END)
    ORDER BY r.external_id = signal.id DESC NULLS LAST LIMIT 1
    FOR NO KEY UPDATE OF r;
    IF run.run_id IS NULL THEN
        RAISE EXCEPTION 'there is no run with the id % in namespace %', signal.id, signal.namespace
            USING ERRCODE = 'no_data_found';
    END IF;
    IF EXISTS (SELECT FROM kagzi.signals AS s
               WHERE s.namespace = signal.namespace AND s.run_id = run.run_id AND s.key = signal.key) THEN
        RETURN;
    END IF;
    IF run.status NOT IN ('PENDING', 'RUNNING', 'SLEEPING') THEN
        RAISE EXCEPTION 'run % has finished', run.run_id USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF (SELECT count(*) FROM kagzi.signals AS s
        WHERE s.namespace = signal.namespace AND s.run_id = run.run_id AND s.taken_seq IS NULL) >= 10000 THEN
        RAISE EXCEPTION 'the inbox of run % is full', run.run_id USING ERRCODE = 'configuration_limit_exceeded';
    END IF;
    INSERT INTO kagzi.signals (namespace, run_id, key, seq, name, value, sent_at)
    VALUES (signal.namespace, run.run_id, coalesce(signal.key, gen_random_uuid()::text), run.inbox_seq + 1, signal.name,
            convert_to(signal.value::text, 'UTF8'), moment);
    wakes := run.status = 'SLEEPING' AND run.claim_key > moment
             AND run.waiting_for IS NOT NULL AND run.waiting_for::jsonb ?| ARRAY['s:*', 's:' || signal.name];
    UPDATE kagzi.workflow_runs AS r SET
        inbox_seq = r.inbox_seq + 1,
        available_at = CASE WHEN wakes THEN moment ELSE r.available_at END,
        claim_key = CASE WHEN wakes THEN least(moment - r.priority * 60000000::bigint, moment) ELSE r.claim_key END
    WHERE r.namespace = signal.namespace AND r.run_id = run.run_id;
    IF wakes THEN
        PERFORM pg_notify('kagzi_work', json_build_array(json_build_array(signal.namespace, run.task_queue))::text);
    ELSIF run.status = 'RUNNING' THEN
        PERFORM pg_notify('kagzi_news', json_build_array(json_build_array(signal.namespace, run.run_id))::text);
    END IF;
END $function$;

CREATE OR REPLACE FUNCTION kagzi.start_workflow(workflow text, input json DEFAULT '[]'::json, id text DEFAULT NULL::text, queue text DEFAULT 'default'::text, namespace text DEFAULT 'default'::text, version text DEFAULT NULL::text, priority integer DEFAULT 0, delay interval DEFAULT NULL::interval, start_at timestamp with time zone DEFAULT NULL::timestamp with time zone, timeout interval DEFAULT NULL::interval, tags json DEFAULT NULL::json)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
DECLARE
    moment bigint := kagzi.clock();
    due    bigint;
    data   bytea := convert_to(start_workflow.input::text, 'UTF8');
    made   uuid := kagzi.new_run_id(kagzi.clock());
    taken  record;
BEGIN
    PERFORM kagzi.check_sql_name(start_workflow.workflow, 'workflow');
    PERFORM kagzi.check_sql_name(start_workflow.queue, 'queue');
    PERFORM kagzi.check_sql_name(start_workflow.namespace, 'namespace');
    PERFORM kagzi.check_sql_name(coalesce(start_workflow.id, 'none'), 'id');
    PERFORM kagzi.check_sql_name(coalesce(start_workflow.version, 'none'), 'version');
    IF start_workflow.input IS NULL OR json_typeof(start_workflow.input) NOT IN ('array', 'object') THEN
        RAISE EXCEPTION 'input must be an array of arguments, or an object of arguments by name'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF length(data) > 2097152 THEN
        RAISE EXCEPTION 'input has % bytes, and at most 2097152 are allowed', length(data)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF start_workflow.priority IS NULL OR start_workflow.priority NOT BETWEEN 0 AND 1000 THEN
        RAISE EXCEPTION 'priority must be a whole number from 0 to 1000' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF start_workflow.delay < interval '0' OR start_workflow.timeout <= interval '0' THEN
        RAISE EXCEPTION 'delay must not be negative, and timeout be longer than 0'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF start_workflow.tags IS NOT NULL AND json_typeof(start_workflow.tags) <> 'object' THEN
        RAISE EXCEPTION 'tags must be an object of texts' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO kagzi.namespaces (namespace) VALUES (start_workflow.namespace) ON CONFLICT DO NOTHING;
    IF NOT (SELECT n.enabled FROM kagzi.namespaces AS n WHERE n.namespace = start_workflow.namespace) THEN
        RAISE EXCEPTION 'namespace % is disabled: no runs are started in it', start_workflow.namespace
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    due := greatest(moment + coalesce((extract(epoch FROM start_workflow.delay) * 1000000)::bigint, 0),
                    (extract(epoch FROM start_workflow.start_at) * 1000000)::bigint);
    INSERT INTO kagzi.workflow_runs (namespace, run_id, external_id, task_queue, workflow_type, version, priority, input,
                                     created_at, available_at, deadline_at, status, claim_key, tags)
    VALUES (start_workflow.namespace, made, start_workflow.id, start_workflow.queue, start_workflow.workflow,
            coalesce(start_workflow.version, kagzi.resolve_version(start_workflow.namespace, start_workflow.workflow)),
            start_workflow.priority, CASE WHEN length(data) <= 1024 THEN data END, moment, due,
            moment + (extract(epoch FROM start_workflow.timeout) * 1000000)::bigint, 'PENDING',
            -- The order of claiming: due time less a minute for each step of priority.
            CASE WHEN due > moment THEN due ELSE least(due - start_workflow.priority * 60000000::bigint, moment) END,
            start_workflow.tags::text)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT r.run_id, r.workflow_type, coalesce(r.input, p.data) AS input INTO taken
        FROM kagzi.workflow_runs AS r
        LEFT JOIN kagzi.workflow_payloads AS p
            ON p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input' AND r.input IS NULL
        WHERE r.namespace = start_workflow.namespace AND r.external_id = start_workflow.id;
        IF taken.run_id IS NULL THEN
            RAISE EXCEPTION 'the id % was being given up; try again', start_workflow.id
                USING ERRCODE = 'serialization_failure';
        END IF;
        IF taken.workflow_type <> start_workflow.workflow OR NOT kagzi.same_input(taken.input, data) THEN
            RAISE EXCEPTION 'id % belongs to run % of %, which was started with another type or input',
                start_workflow.id, taken.run_id, taken.workflow_type USING ERRCODE = 'unique_violation';
        END IF;
        RETURN taken.run_id;
    END IF;
    IF length(data) > 1024 THEN
        INSERT INTO kagzi.workflow_payloads (namespace, run_id, kind, data)
        VALUES (start_workflow.namespace, made, 'input', data);
    END IF;
    PERFORM pg_notify('kagzi_work', json_build_array(json_build_array(start_workflow.namespace,
                                                                      start_workflow.queue))::text);
    RETURN made;
END $function$;

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
    CONSTRAINT api_keys_pkey PRIMARY KEY (key_id),
    CONSTRAINT api_keys_digest CHECK (octet_length(digest) = 32),
    CONSTRAINT api_keys_role CHECK (role = ANY (ARRAY['admin'::text, 'client'::text, 'worker'::text, 'viewer'::text]))
);

CREATE TABLE kagzi.audit_log (
    entry_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    namespace text,
    target text NOT NULL,
    request_id text NOT NULL,
    peer text NOT NULL,
    result text NOT NULL,
    CONSTRAINT audit_log_pkey PRIMARY KEY (entry_id)
);
CREATE INDEX audit_log_namespace ON kagzi.audit_log USING btree (namespace, entry_id);
CREATE TRIGGER audit_log_is_final BEFORE UPDATE ON kagzi.audit_log FOR EACH ROW EXECUTE FUNCTION kagzi.refuse_change_of_audit_log();

CREATE TABLE kagzi.cascades (
    run_id uuid NOT NULL,
    at bigint NOT NULL,
    namespace text NOT NULL,
    CONSTRAINT cascades_pkey PRIMARY KEY (namespace, run_id)
) WITH (autovacuum_vacuum_scale_factor=0.02);
CREATE INDEX cascades_at ON kagzi.cascades USING btree (at);

CREATE TABLE kagzi.default_versions (
    set_at bigint NOT NULL,
    namespace text NOT NULL,
    workflow_type text NOT NULL,
    version text NOT NULL,
    CONSTRAINT default_versions_pkey PRIMARY KEY (namespace, workflow_type)
);

CREATE TABLE kagzi.jobs (
    job_id uuid NOT NULL,
    cursor uuid NOT NULL,
    last_run_id uuid NOT NULL,
    next_at bigint,
    created_at bigint NOT NULL,
    finished_at bigint,
    matched bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    rate integer,
    children boolean NOT NULL,
    namespace text NOT NULL,
    action text NOT NULL,
    status text NOT NULL,
    filter bytea NOT NULL,
    created_by text NOT NULL,
    error text,
    options bytea,
    reasons bytea,
    CONSTRAINT jobs_pkey PRIMARY KEY (namespace, job_id),
    CONSTRAINT jobs_action CHECK (action = ANY (ARRAY['cancel'::text, 'terminate'::text, 'wake'::text, 'move'::text, 'retry'::text, 'rerun'::text, 'fork'::text, 'delete'::text])),
    CONSTRAINT jobs_moves CHECK ((status = 'RUNNING'::text) = (next_at IS NOT NULL)),
    CONSTRAINT jobs_status CHECK (status = ANY (ARRAY['RUNNING'::text, 'COMPLETED'::text, 'CANCELLED'::text, 'FAILED'::text]))
);
CREATE INDEX jobs_next ON kagzi.jobs USING btree (next_at) WHERE (next_at IS NOT NULL);

CREATE TABLE kagzi.limit_turns (
    namespace text NOT NULL,
    scope text NOT NULL,
    name text NOT NULL,
    limit_key text NOT NULL,
    turn bigint NOT NULL,
    CONSTRAINT limit_turns_pkey PRIMARY KEY (namespace, scope, name, limit_key)
);

CREATE TABLE kagzi.limits (
    updated_at bigint NOT NULL,
    paused_at bigint,
    namespace text NOT NULL,
    scope text NOT NULL,
    name text NOT NULL,
    paused_by text,
    pause_reason text,
    concurrency integer,
    declared integer,
    key_concurrency integer,
    key_declared integer,
    shares text,
    rate text,
    rate_declared text,
    key_rate text,
    key_rate_declared text,
    fair boolean NOT NULL DEFAULT false,
    CONSTRAINT limits_pkey PRIMARY KEY (namespace, scope, name),
    CONSTRAINT limits_scope_check CHECK (scope = ANY (ARRAY['namespace'::text, 'queue'::text, 'workflow'::text]))
);

CREATE TABLE kagzi.migrations (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    building_until timestamp with time zone,
    built_at timestamp with time zone,
    CONSTRAINT migrations_pkey PRIMARY KEY (number)
);

CREATE TABLE kagzi.namespaces (
    namespace text NOT NULL,
    display_name text NOT NULL DEFAULT ''::text,
    description text NOT NULL DEFAULT ''::text,
    enabled boolean NOT NULL DEFAULT true,
    retention_days integer NOT NULL DEFAULT 30,
    created_at bigint NOT NULL DEFAULT kagzi.clock(),
    updated_at bigint NOT NULL DEFAULT kagzi.clock(),
    on_failure text,
    on_failure_queue text,
    CONSTRAINT namespaces_pkey PRIMARY KEY (namespace),
    CONSTRAINT namespaces_retention_days_check CHECK (retention_days >= 0)
);

CREATE TABLE kagzi.run_tags (
    run_id uuid NOT NULL,
    namespace text NOT NULL,
    tag text NOT NULL,
    CONSTRAINT run_tags_pkey PRIMARY KEY (namespace, tag, run_id)
);

CREATE TABLE kagzi.run_values (
    run_id uuid NOT NULL,
    at bigint NOT NULL,
    seq bigint NOT NULL,
    namespace text NOT NULL,
    name text NOT NULL,
    value bytea NOT NULL,
    CONSTRAINT run_values_pkey PRIMARY KEY (namespace, run_id, name)
);

CREATE TABLE kagzi.schedule_ends (
    end_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    namespace text NOT NULL,
    schedule_id uuid NOT NULL,
    status text NOT NULL,
    CONSTRAINT schedule_ends_pkey PRIMARY KEY (end_id)
) WITH (autovacuum_vacuum_scale_factor=0.02);
CREATE INDEX schedule_ends_schedule ON kagzi.schedule_ends USING btree (namespace, schedule_id);

CREATE TABLE kagzi.schedule_skips (
    skip_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    first_at bigint NOT NULL,
    last_at bigint NOT NULL,
    count bigint NOT NULL,
    at bigint NOT NULL,
    namespace text NOT NULL,
    schedule_id uuid NOT NULL,
    reason text NOT NULL,
    CONSTRAINT schedule_skips_pkey PRIMARY KEY (skip_id),
    CONSTRAINT schedule_skips_reason CHECK (reason = ANY (ARRAY['catchup'::text, 'overlap'::text, 'paused'::text]))
);
CREATE INDEX schedule_skips_schedule ON kagzi.schedule_skips USING btree (namespace, schedule_id, skip_id);

CREATE TABLE kagzi.schedules (
    schedule_id uuid NOT NULL,
    fired_until bigint NOT NULL,
    kept_until bigint,
    buffered_for bigint,
    last_fired_at bigint,
    jitter bigint NOT NULL,
    timeout bigint,
    total_runs bigint NOT NULL DEFAULT 0,
    successful_runs bigint NOT NULL DEFAULT 0,
    failed_runs bigint NOT NULL DEFAULT 0,
    skipped_runs bigint NOT NULL DEFAULT 0,
    updated_at bigint NOT NULL,
    namespace text NOT NULL,
    name text,
    overlap text NOT NULL,
    last_run_id uuid,
    error text,
    pause_reason text,
    declared_hash text,
    declared_by text,
    changed_by_hand boolean NOT NULL DEFAULT false,
    CONSTRAINT schedules_pkey PRIMARY KEY (namespace, schedule_id),
    CONSTRAINT schedules_overlap CHECK (overlap = ANY (ARRAY['allow'::text, 'skip'::text, 'cancel_previous'::text, 'buffer'::text]))
) WITH (fillfactor=80);
CREATE UNIQUE INDEX schedules_name ON kagzi.schedules USING btree (namespace, name) WHERE (name IS NOT NULL);

CREATE TABLE kagzi.secrets (
    name text NOT NULL,
    value bytea NOT NULL,
    CONSTRAINT secrets_pkey PRIMARY KEY (name)
);

CREATE TABLE kagzi.sessions (
    session_id text NOT NULL,
    key_id text NOT NULL,
    ends_at bigint NOT NULL,
    CONSTRAINT sessions_pkey PRIMARY KEY (session_id)
);
CREATE INDEX sessions_of_key ON kagzi.sessions USING btree (key_id, ends_at);

CREATE TABLE kagzi.signals (
    run_id uuid NOT NULL,
    sent_at bigint NOT NULL,
    seq integer NOT NULL,
    taken_seq integer,
    namespace text NOT NULL,
    key text NOT NULL,
    name text NOT NULL,
    value bytea NOT NULL,
    CONSTRAINT signals_pkey PRIMARY KEY (namespace, run_id, key)
);
CREATE INDEX signals_untaken ON kagzi.signals USING btree (namespace, run_id, name, seq) WHERE (taken_seq IS NULL);

CREATE TABLE kagzi.step_runs (
    run_id uuid NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint,
    retry_at bigint,
    timeout_at bigint,
    attempt integer NOT NULL,
    completed_seq integer,
    input_hash bigint NOT NULL DEFAULT 0,
    generation smallint NOT NULL DEFAULT 0,
    namespace text NOT NULL,
    step_id text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    input bytea,
    output bytea,
    error bytea,
    child_run_id uuid,
    CONSTRAINT step_runs_pkey PRIMARY KEY (namespace, run_id, step_id, attempt)
) WITH (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0);
CREATE INDEX step_runs_timeout ON kagzi.step_runs USING btree (timeout_at) WHERE (status = 'RUNNING'::text);
CREATE INDEX step_runs_unseen ON kagzi.step_runs USING btree (namespace, run_id) WHERE ((child_run_id IS NOT NULL) AND (completed_seq IS NULL) AND (status <> 'RUNNING'::text));

CREATE TABLE kagzi.worker_events (
    event_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    namespace text NOT NULL,
    worker_id uuid NOT NULL,
    event text NOT NULL,
    at bigint NOT NULL,
    CONSTRAINT worker_events_pkey PRIMARY KEY (event_id),
    CONSTRAINT worker_events_event_check CHECK (event = ANY (ARRAY['STARTED'::text, 'DRAINING'::text, 'STOPPED'::text, 'LOST'::text]))
);
CREATE INDEX worker_events_worker ON kagzi.worker_events USING btree (namespace, worker_id, event_id);

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
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    labels bytea,
    CONSTRAINT workers_pkey PRIMARY KEY (worker_id),
    CONSTRAINT workers_status_check CHECK (status = ANY (ARRAY['ONLINE'::text, 'DRAINING'::text, 'OFFLINE'::text]))
);
CREATE INDEX workers_live ON kagzi.workers USING btree (namespace, worker_id) WHERE (status <> 'OFFLINE'::text);

CREATE TABLE kagzi.workflow_payloads (
    run_id uuid NOT NULL,
    namespace text NOT NULL,
    kind text NOT NULL,
    data bytea NOT NULL,
    CONSTRAINT workflow_payloads_pkey PRIMARY KEY (namespace, run_id, kind),
    CONSTRAINT workflow_payloads_kind_check CHECK (kind = ANY (ARRAY['input'::text, 'output'::text]))
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
    priority integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    executions integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    crashed_seq integer,
    poll integer,
    inbox_seq integer NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
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
    parent_policy text,
    has_children boolean,
    depth smallint,
    on_failure text,
    on_failure_queue text,
    tags text,
    superseded_by uuid,
    former_id text,
    repeats_run_id uuid,
    incarnation integer,
    executions_before integer,
    limit_name text,
    limit_key text,
    held_key bigint,
    woken text,
    debounce_key text,
    parent_attempt integer,
    joins integer,
    joined_at bigint,
    joined_by uuid,
    lineage text,
    CONSTRAINT workflow_runs_pkey PRIMARY KEY (namespace, run_id),
    CONSTRAINT workflow_runs_moves CHECK (
CASE
    WHEN finished_at IS NOT NULL THEN status !~~ '%ING'::text
    WHEN status = 'RUNNING'::text THEN token IS NOT NULL AND lease_expires_at IS NOT NULL AND started_at IS NOT NULL
    ELSE claim_key IS NOT NULL AND available_at IS NOT NULL OR cron_expr IS NOT NULL
END) NOT VALID
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0);
CREATE INDEX workflow_runs_aside ON kagzi.workflow_runs USING btree (namespace, task_queue, workflow_type, version, available_at) WHERE (claim_key = '253402300799000002'::bigint);
CREATE INDEX workflow_runs_cancel ON kagzi.workflow_runs USING btree (cancel_deadline) WHERE ((cancel_deadline IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX workflow_runs_children ON kagzi.workflow_runs USING btree (namespace, parent_run_id, run_id) WHERE (parent_run_id IS NOT NULL);
CREATE INDEX workflow_runs_claim ON kagzi.workflow_runs USING btree (namespace, task_queue, claim_key) WHERE (status = ANY (ARRAY['PENDING'::text, 'SLEEPING'::text]));
CREATE INDEX workflow_runs_deadline ON kagzi.workflow_runs USING btree (deadline_at) WHERE ((deadline_at IS NOT NULL) AND (finished_at IS NULL));
CREATE UNIQUE INDEX workflow_runs_debounced ON kagzi.workflow_runs USING btree (namespace, workflow_type, debounce_key) WHERE ((debounce_key IS NOT NULL) AND (started_at IS NULL) AND (finished_at IS NULL));
CREATE INDEX workflow_runs_errors ON kagzi.workflow_runs USING btree (namespace, kagzi.error_class(error), run_id) WHERE (status = ANY (ARRAY['FAILED'::text, 'TIMED_OUT'::text, 'CANCELLED'::text]));
CREATE INDEX workflow_runs_failed ON kagzi.workflow_runs USING btree (namespace, run_id) WHERE (status = ANY (ARRAY['FAILED'::text, 'TIMED_OUT'::text, 'CANCELLED'::text]));
CREATE INDEX workflow_runs_fire ON kagzi.workflow_runs USING btree (available_at) WHERE (status = 'SCHEDULED'::text);
CREATE UNIQUE INDEX workflow_runs_firing ON kagzi.workflow_runs USING btree (namespace, schedule_group_id, scheduled_for) WHERE (scheduled_for IS NOT NULL);
CREATE UNIQUE INDEX workflow_runs_id_prefix ON kagzi.workflow_runs USING btree (namespace, external_id text_pattern_ops) WHERE (external_id IS NOT NULL);
CREATE INDEX workflow_runs_leased ON kagzi.workflow_runs USING btree (worker_id) WHERE (status = 'RUNNING'::text);
CREATE INDEX workflow_runs_lines ON kagzi.workflow_runs USING btree (namespace, limit_name, limit_key, task_queue, workflow_type, version, claim_key, held_key) WHERE ((held_key IS NOT NULL) AND (status = ANY (ARRAY['PENDING'::text, 'SLEEPING'::text])));
CREATE INDEX workflow_runs_repeats ON kagzi.workflow_runs USING btree (namespace, repeats_run_id) WHERE (repeats_run_id IS NOT NULL);
CREATE INDEX workflow_runs_scheduled ON kagzi.workflow_runs USING btree (namespace, schedule_group_id, run_id) WHERE (schedule_group_id IS NOT NULL);
CREATE INDEX workflow_runs_scheduled_live ON kagzi.workflow_runs USING btree (namespace, schedule_group_id) WHERE ((schedule_group_id IS NOT NULL) AND (finished_at IS NULL));
CREATE TRIGGER finished_is_final BEFORE UPDATE ON kagzi.workflow_runs FOR EACH ROW WHEN (old.finished_at IS NOT NULL) EXECUTE FUNCTION kagzi.refuse_change_of_finished_run();
CREATE TRIGGER forget_tags AFTER DELETE ON kagzi.workflow_runs FOR EACH ROW WHEN (old.tags IS NOT NULL) EXECUTE FUNCTION kagzi.forget_tags();
CREATE TRIGGER note_end AFTER UPDATE OF finished_at ON kagzi.workflow_runs FOR EACH ROW WHEN (new.has_children OR new.schedule_group_id IS NOT NULL) EXECUTE FUNCTION kagzi.note_end();
CREATE TRIGGER note_tags AFTER INSERT ON kagzi.workflow_runs FOR EACH ROW WHEN (new.tags IS NOT NULL) EXECUTE FUNCTION kagzi.note_tags();

CREATE TABLE kagzi.workflow_types (
    first_seen_at bigint NOT NULL,
    last_seen_at bigint NOT NULL,
    namespace text NOT NULL,
    workflow_type text NOT NULL,
    version text NOT NULL,
    queues text[] NOT NULL,
    summary text,
    input_schema text,
    start_defaults text,
    CONSTRAINT workflow_types_pkey PRIMARY KEY (namespace, workflow_type, version)
);

-- Kagzi's tables. Instants are microseconds since 1970 (see kagzi.at()), payloads are bytes.
--
-- Reasons behind the shape:
-- * No foreign key points at workflow_runs: its rows are the hottest in the schema, and key-share locks on them would
--   cost every step a multixact.
-- * lease_expires_at is in no index, so heartbeats are HOT updates. Dead leases are found by scanning the RUNNING rows,
--   of which there are never more than there are slots.
-- * There is no index on finished_at: retention walks the primary key, whose UUIDv7 order is the order of creation.
-- * A step that ends within the blink of an eye is one row under one index; the partial index on step_runs holds only
--   the slow ones while they run.

CREATE FUNCTION kagzi.clock() RETURNS bigint
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- For people: SELECT run_id, kagzi.at(created_at) FROM kagzi.workflow_runs.
CREATE FUNCTION kagzi.at(instant bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT timestamptz 'epoch' + instant * interval '1 microsecond' $$;

CREATE TABLE kagzi.namespaces (
    namespace      text PRIMARY KEY,
    display_name   text NOT NULL DEFAULT '',
    description    text NOT NULL DEFAULT '',
    enabled        boolean NOT NULL DEFAULT true,
    retention_days integer NOT NULL DEFAULT 30 CHECK (retention_days >= 0),
    created_at     bigint NOT NULL DEFAULT kagzi.clock(),
    updated_at     bigint NOT NULL DEFAULT kagzi.clock()
);
INSERT INTO kagzi.namespaces (namespace) VALUES ('default');

CREATE TABLE kagzi.workflow_runs (
    run_id           uuid NOT NULL,
    token            uuid,               -- fences the lease; stays when the holder lets go, so that repeats are known
    worker_id        uuid,               -- who holds, or last held, the lease
    claim_key        bigint,             -- order of claiming: due time less priority; NULL once finished
    available_at     bigint,             -- when the run may be claimed
    lease_expires_at bigint,
    lease_length     bigint,             -- NULL: the engine's default
    created_at       bigint NOT NULL,
    started_at       bigint,             -- first claim: time zero of the workflow's own clock
    finished_at      bigint,
    deadline_at      bigint,
    priority         integer NOT NULL DEFAULT 0,
    attempts         integer NOT NULL DEFAULT 0,  -- failures of the run that count against its retry policy
    executions       integer NOT NULL DEFAULT 0,  -- claims
    crashes          integer NOT NULL DEFAULT 0,  -- leases that ran out in a row without a new event
    crashed_seq      integer,            -- highest completed_seq at the last crash
    poll             integer,            -- number of the worker's poll that claimed the run; NULL when born RUNNING
    inbox_seq        integer NOT NULL DEFAULT 0,  -- raised by signals, children and cancels
    cancel_requested boolean NOT NULL DEFAULT false,
    namespace        text NOT NULL,
    task_queue       text NOT NULL,
    workflow_type    text NOT NULL,
    version          text NOT NULL,
    status           text NOT NULL,
    external_id      text,
    input            bytea,              -- NULL: in workflow_payloads
    output           bytea,
    error            bytea,
    retry_policy     bytea,
    -- Relations and schedules (their duties come with later migrations).
    parent_run_id    uuid,
    parent_step_id   text,
    handles_run_id   uuid,
    schedule_group_id uuid,
    scheduled_for    bigint,
    cron_expr        text,
    timezone         text,
    next_fire_at     bigint,
    max_catchup      integer,
    PRIMARY KEY (namespace, run_id),
    CONSTRAINT workflow_runs_status CHECK (status IN
        ('PENDING', 'RUNNING', 'SLEEPING', 'COMPLETED', 'FAILED', 'CANCELLED', 'TIMED_OUT', 'SCHEDULED', 'PAUSED')),
    CONSTRAINT workflow_runs_finished CHECK
        ((status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMED_OUT')) = (finished_at IS NOT NULL)),
    -- No dead ends: what is not finished can be claimed some day, is leased, or is a schedule template.
    CONSTRAINT workflow_runs_moves CHECK
        (CASE WHEN status IN ('PENDING', 'SLEEPING') THEN claim_key IS NOT NULL AND available_at IS NOT NULL
              WHEN status = 'RUNNING' THEN token IS NOT NULL AND lease_expires_at IS NOT NULL AND started_at IS NOT NULL
              ELSE true END)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE UNIQUE INDEX workflow_runs_external_id ON kagzi.workflow_runs (namespace, external_id)
    WHERE external_id IS NOT NULL;
CREATE INDEX workflow_runs_claim ON kagzi.workflow_runs (namespace, task_queue, claim_key)
    WHERE status IN ('PENDING', 'SLEEPING');
CREATE INDEX workflow_runs_leased ON kagzi.workflow_runs (worker_id)
    WHERE status = 'RUNNING';
CREATE INDEX workflow_runs_deadline ON kagzi.workflow_runs (deadline_at)
    WHERE deadline_at IS NOT NULL AND finished_at IS NULL;

-- Finished is final, whatever statement asks. The trigger's condition is tested in C before any function is called.
CREATE FUNCTION kagzi.refuse_change_of_finished_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run % has finished and cannot change', OLD.run_id USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER finished_is_final BEFORE UPDATE ON kagzi.workflow_runs FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL) EXECUTE FUNCTION kagzi.refuse_change_of_finished_run();

-- Inputs and outputs too large to be copied with every new version of their run's row.
CREATE TABLE kagzi.workflow_payloads (
    run_id    uuid NOT NULL,
    namespace text NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('input', 'output')),
    data      bytea NOT NULL,
    PRIMARY KEY (namespace, run_id, kind)
);

CREATE TABLE kagzi.step_runs (
    run_id        uuid NOT NULL,
    started_at    bigint NOT NULL,
    finished_at   bigint,
    retry_at      bigint,
    timeout_at    bigint,
    attempt       integer NOT NULL,
    completed_seq integer,               -- set if and only if the workflow has seen this as an event
    input_hash    bigint NOT NULL DEFAULT 0,
    generation    smallint NOT NULL DEFAULT 0,  -- above 0: set aside by a retry of the run, unseen by replay
    namespace     text NOT NULL,
    step_id       text NOT NULL,
    kind          text NOT NULL,
    status        text NOT NULL,
    input         bytea,
    output        bytea,
    error         bytea,
    child_run_id  uuid,
    PRIMARY KEY (namespace, run_id, step_id, attempt),
    CONSTRAINT step_runs_kind CHECK (kind IN ('FUNCTION', 'SLEEP', 'CHILD_WORKFLOW', 'SIGNAL')),
    CONSTRAINT step_runs_status CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED'))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX step_runs_timeout ON kagzi.step_runs (timeout_at) WHERE status = 'RUNNING';

CREATE TABLE kagzi.workers (
    worker_id         uuid PRIMARY KEY,
    namespace         text NOT NULL,
    queues            text[] NOT NULL,
    types             text[] NOT NULL,
    versions          text[] NOT NULL,   -- beside types; '' is every version
    hostname          text NOT NULL,
    pid               integer NOT NULL,
    version           text NOT NULL,
    concurrency       integer NOT NULL,
    status            text NOT NULL CHECK (status IN ('ONLINE', 'DRAINING', 'OFFLINE')),
    registered_at     bigint NOT NULL,
    last_heartbeat_at bigint NOT NULL,
    deregistered_at   bigint,
    completed         bigint NOT NULL DEFAULT 0,
    failed            bigint NOT NULL DEFAULT 0,
    labels            bytea
);
CREATE INDEX workers_live ON kagzi.workers (namespace, worker_id) WHERE status <> 'OFFLINE';

CREATE TABLE kagzi.worker_events (
    event_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL,
    worker_id uuid NOT NULL,
    event     text NOT NULL CHECK (event IN ('STARTED', 'DRAINING', 'STOPPED', 'LOST')),
    at        bigint NOT NULL
);
CREATE INDEX worker_events_worker ON kagzi.worker_events (namespace, worker_id, event_id);

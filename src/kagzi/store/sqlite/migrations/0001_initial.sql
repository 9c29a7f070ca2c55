-- Kagzi's tables, the same as in PostgreSQL. Instants are microseconds since 1970, payloads are bytes, ids are text.
--
-- Differs by necessity from PostgreSQL: uuid is TEXT, boolean is INTEGER 0 or 1, text[] is TEXT holding a JSON array.
-- STRICT is left out by the store where SQLite is older than 3.37.
--
-- Reasons behind the shape:
-- * step_runs has no rowid: a step is then one row in one b-tree, and the steps of a run lie side by side.
-- * lease_expires_at is in no index, so heartbeats write one page. Dead leases are found by scanning the RUNNING rows, of
--   which there are never more than there are slots.
-- * There is no index on finished_at: retention walks the primary key, whose UUIDv7 order is the order of creation.

CREATE TABLE namespaces (
    namespace      TEXT PRIMARY KEY NOT NULL,
    display_name   TEXT NOT NULL DEFAULT '',
    description    TEXT NOT NULL DEFAULT '',
    enabled        INTEGER NOT NULL DEFAULT 1,
    retention_days INTEGER NOT NULL DEFAULT 30 CHECK (retention_days >= 0),
    created_at     INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER) * 1000000),
    updated_at     INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER) * 1000000)
) STRICT;
INSERT INTO namespaces (namespace) VALUES ('default');

CREATE TABLE workflow_runs (
    run_id           TEXT NOT NULL,
    token            TEXT,               -- fences the lease; stays when the holder lets go, so that repeats are known
    worker_id        TEXT,               -- who holds, or last held, the lease
    claim_key        INTEGER,            -- order of claiming: due time less priority; NULL once finished
    available_at     INTEGER,            -- when the run may be claimed
    lease_expires_at INTEGER,
    lease_length     INTEGER,            -- NULL: the engine's default
    created_at       INTEGER NOT NULL,
    started_at       INTEGER,            -- first claim: time zero of the workflow's own clock
    finished_at      INTEGER,
    deadline_at      INTEGER,
    priority         INTEGER NOT NULL DEFAULT 0,
    attempts         INTEGER NOT NULL DEFAULT 0,  -- failures of the run that count against its retry policy
    executions       INTEGER NOT NULL DEFAULT 0,  -- claims
    crashes          INTEGER NOT NULL DEFAULT 0,  -- leases that ran out in a row without a new event
    crashed_seq      INTEGER,            -- highest completed_seq at the last crash
    poll             INTEGER,            -- number of the worker's poll that claimed the run; NULL when born RUNNING
    inbox_seq        INTEGER NOT NULL DEFAULT 0,  -- raised by signals, children and cancels
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    namespace        TEXT NOT NULL,
    task_queue       TEXT NOT NULL,
    workflow_type    TEXT NOT NULL,
    version          TEXT NOT NULL,
    status           TEXT NOT NULL,
    external_id      TEXT,
    input            BLOB,               -- NULL: in workflow_payloads
    output           BLOB,
    error            BLOB,
    retry_policy     BLOB,
    -- Relations and schedules (their duties come with later migrations).
    parent_run_id    TEXT,
    parent_step_id   TEXT,
    handles_run_id   TEXT,
    schedule_group_id TEXT,
    scheduled_for    INTEGER,
    cron_expr        TEXT,
    timezone         TEXT,
    next_fire_at     INTEGER,
    max_catchup      INTEGER,
    PRIMARY KEY (namespace, run_id),
    CONSTRAINT workflow_runs_status CHECK (status IN
        ('PENDING', 'RUNNING', 'SLEEPING', 'COMPLETED', 'FAILED', 'CANCELLED', 'TIMED_OUT', 'SCHEDULED', 'PAUSED')),
    CONSTRAINT workflow_runs_finished CHECK
        ((status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMED_OUT')) = (finished_at IS NOT NULL)),
    -- No dead ends: what is not finished can be claimed some day, is leased, or is a schedule template.
    CONSTRAINT workflow_runs_moves CHECK
        (CASE WHEN status IN ('PENDING', 'SLEEPING') THEN claim_key IS NOT NULL AND available_at IS NOT NULL
              WHEN status = 'RUNNING' THEN token IS NOT NULL AND lease_expires_at IS NOT NULL AND started_at IS NOT NULL
              ELSE 1 END)
) STRICT;

CREATE UNIQUE INDEX workflow_runs_external_id ON workflow_runs (namespace, external_id)
    WHERE external_id IS NOT NULL;
CREATE INDEX workflow_runs_claim ON workflow_runs (namespace, task_queue, claim_key)
    WHERE status IN ('PENDING', 'SLEEPING');
CREATE INDEX workflow_runs_leased ON workflow_runs (worker_id)
    WHERE status = 'RUNNING';
CREATE INDEX workflow_runs_deadline ON workflow_runs (deadline_at)
    WHERE deadline_at IS NOT NULL AND finished_at IS NULL;

-- Finished is final, whatever statement asks.
CREATE TRIGGER finished_is_final BEFORE UPDATE ON workflow_runs FOR EACH ROW
    WHEN OLD.finished_at IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'this run has finished and cannot change');
END;

-- Inputs and outputs too large to be kept in their run's row.
CREATE TABLE workflow_payloads (
    run_id    TEXT NOT NULL,
    namespace TEXT NOT NULL,
    kind      TEXT NOT NULL CHECK (kind IN ('input', 'output')),
    data      BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, kind)
) STRICT;

CREATE TABLE step_runs (
    run_id        TEXT NOT NULL,
    started_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    retry_at      INTEGER,
    timeout_at    INTEGER,
    attempt       INTEGER NOT NULL,
    completed_seq INTEGER,               -- set if and only if the workflow has seen this as an event
    input_hash    INTEGER NOT NULL DEFAULT 0,
    generation    INTEGER NOT NULL DEFAULT 0,  -- above 0: set aside by a retry of the run, unseen by replay
    namespace     TEXT NOT NULL,
    step_id       TEXT NOT NULL,
    kind          TEXT NOT NULL,
    status        TEXT NOT NULL,
    input         BLOB,
    output        BLOB,
    error         BLOB,
    child_run_id  TEXT,
    PRIMARY KEY (namespace, run_id, step_id, attempt),
    CONSTRAINT step_runs_kind CHECK (kind IN ('FUNCTION', 'SLEEP', 'CHILD_WORKFLOW', 'SIGNAL')),
    CONSTRAINT step_runs_status CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED'))
) STRICT, WITHOUT ROWID;

CREATE INDEX step_runs_timeout ON step_runs (timeout_at) WHERE status = 'RUNNING';

CREATE TABLE workers (
    worker_id         TEXT PRIMARY KEY NOT NULL,
    namespace         TEXT NOT NULL,
    queues            TEXT NOT NULL,
    types             TEXT NOT NULL,
    versions          TEXT NOT NULL,     -- beside types; '' is every version
    hostname          TEXT NOT NULL,
    pid               INTEGER NOT NULL,
    version           TEXT NOT NULL,
    concurrency       INTEGER NOT NULL,
    status            TEXT NOT NULL CHECK (status IN ('ONLINE', 'DRAINING', 'OFFLINE')),
    registered_at     INTEGER NOT NULL,
    last_heartbeat_at INTEGER NOT NULL,
    deregistered_at   INTEGER,
    completed         INTEGER NOT NULL DEFAULT 0,
    failed            INTEGER NOT NULL DEFAULT 0,
    labels            BLOB
) STRICT;
CREATE INDEX workers_live ON workers (namespace, worker_id) WHERE status <> 'OFFLINE';

CREATE TABLE worker_events (
    event_id  INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    event     TEXT NOT NULL CHECK (event IN ('STARTED', 'DRAINING', 'STOPPED', 'LOST')),
    at        INTEGER NOT NULL
) STRICT;
CREATE INDEX worker_events_worker ON worker_events (namespace, worker_id, event_id);

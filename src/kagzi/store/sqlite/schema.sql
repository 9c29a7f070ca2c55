-- Made from the migrations, for people to read: python -m scripts.schema
-- Each table is followed by its indexes and triggers.

CREATE TABLE api_keys (
    key_id       TEXT PRIMARY KEY,
    namespace    TEXT,                    -- NULL: all of them
    role         TEXT NOT NULL CHECK (role IN ('admin', 'client', 'worker', 'viewer')),
    name         TEXT NOT NULL,
    digest       BLOB NOT NULL CHECK (length(digest) = 32),  -- of the secret, which nobody knows but its holder
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER                  -- to the minute or so
) STRICT;

CREATE TABLE audit_log (
    entry_id   INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    action     TEXT NOT NULL,
    namespace  TEXT,
    target     TEXT NOT NULL,
    request_id TEXT NOT NULL,
    peer       TEXT NOT NULL,
    result     TEXT NOT NULL
) STRICT;
CREATE INDEX audit_log_namespace ON audit_log (namespace, entry_id);
CREATE TRIGGER audit_log_is_final BEFORE UPDATE ON audit_log
BEGIN
    SELECT raise(ABORT, 'entries of the audit log cannot change');
END;

CREATE TABLE cascades (
    run_id    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    PRIMARY KEY (namespace, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX cascades_at ON cascades (at);

CREATE TABLE default_versions (
    set_at        INTEGER NOT NULL,
    namespace     TEXT NOT NULL,
    workflow_type TEXT NOT NULL,
    version       TEXT NOT NULL,
    PRIMARY KEY (namespace, workflow_type)
) STRICT, WITHOUT ROWID;

CREATE TABLE "jobs" (
    job_id      TEXT NOT NULL,
    cursor      TEXT NOT NULL,           -- the last run that was looked at
    last_run_id TEXT NOT NULL,           -- the newest run when the job began: it never meets what it has started
    next_at     INTEGER,                 -- when it goes on; NULL once it has ended
    created_at  INTEGER NOT NULL,
    finished_at INTEGER,
    matched     INTEGER NOT NULL DEFAULT 0,
    done        INTEGER NOT NULL DEFAULT 0,
    skipped     INTEGER NOT NULL DEFAULT 0,
    failed      INTEGER NOT NULL DEFAULT 0,
    rate        INTEGER,                 -- runs a second; NULL: the pace of its action
    children    INTEGER NOT NULL,
    namespace   TEXT NOT NULL,
    action      TEXT NOT NULL CHECK (action IN ('cancel', 'terminate', 'wake', 'move', 'retry', 'rerun', 'fork', 'delete')),
    status      TEXT NOT NULL CHECK (status IN ('RUNNING', 'COMPLETED', 'CANCELLED', 'FAILED')),
    filter      BLOB NOT NULL,
    created_by  TEXT NOT NULL,
    error       TEXT,
    options     BLOB,                    -- of its action, as JSON
    reasons     BLOB,                    -- for which it has left runs as they are, as JSON: how many for each
    PRIMARY KEY (namespace, job_id),
    CONSTRAINT jobs_moves CHECK ((status = 'RUNNING') = (next_at IS NOT NULL))
) STRICT;
CREATE INDEX jobs_next ON jobs (next_at) WHERE next_at IS NOT NULL;

CREATE TABLE limit_turns (
    namespace TEXT NOT NULL,
    scope TEXT NOT NULL,        -- queue, workflow, key or fair
    name TEXT NOT NULL,
    limit_key TEXT NOT NULL,
    turn INTEGER NOT NULL,      -- of a rate: when the next run begins if all go on; of fair keys: when the last one was taken
    PRIMARY KEY (namespace, scope, name, limit_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE limits (
    updated_at   INTEGER NOT NULL,
    paused_at    INTEGER,                -- since when no run of it is handed out
    namespace    TEXT NOT NULL,
    scope        TEXT NOT NULL CHECK (scope IN ('namespace', 'queue', 'workflow')),
    name         TEXT NOT NULL,          -- '' is the namespace itself
    paused_by    TEXT,
    pause_reason TEXT, concurrency INTEGER, declared INTEGER, key_concurrency INTEGER, key_declared INTEGER, shares TEXT, rate TEXT, rate_declared TEXT, key_rate TEXT, key_rate_declared TEXT, fair INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, scope, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE namespaces (
    namespace      TEXT PRIMARY KEY NOT NULL,
    display_name   TEXT NOT NULL DEFAULT '',
    description    TEXT NOT NULL DEFAULT '',
    enabled        INTEGER NOT NULL DEFAULT 1,
    retention_days INTEGER NOT NULL DEFAULT 30 CHECK (retention_days >= 0),
    created_at     INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER) * 1000000),
    updated_at     INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER) * 1000000)
, on_failure TEXT, on_failure_queue TEXT) STRICT;

CREATE TABLE run_tags (
    run_id    TEXT NOT NULL,
    namespace TEXT NOT NULL,
    tag       TEXT NOT NULL,             -- name=value
    PRIMARY KEY (namespace, tag, run_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_values (
    run_id    TEXT NOT NULL,
    at        INTEGER NOT NULL,          -- when it was stored
    seq       INTEGER NOT NULL,          -- the run's executions, then the number within that lease: what is older is not set again
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,             -- those that begin with @ are the engine's
    value     BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE schedule_ends (
    end_id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    namespace   TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    status      TEXT NOT NULL
) STRICT;
CREATE INDEX schedule_ends_schedule ON schedule_ends (namespace, schedule_id);

CREATE TABLE schedule_skips (
    skip_id     INTEGER PRIMARY KEY AUTOINCREMENT,
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    count       INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    namespace   TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    reason      TEXT NOT NULL CHECK (reason IN ('catchup', 'overlap', 'paused'))
) STRICT;
CREATE INDEX schedule_skips_schedule ON schedule_skips (namespace, schedule_id, skip_id);

CREATE TABLE schedules (
    schedule_id     TEXT NOT NULL,
    fired_until     INTEGER NOT NULL,    -- the watermark: nothing at or before it is fired by the clock again
    kept_until      INTEGER,             -- up to here it was decided which missed firings are made up for
    buffered_for    INTEGER,             -- a firing that waits for the run before it
    last_fired_at   INTEGER,
    jitter          INTEGER NOT NULL,
    timeout         INTEGER,             -- of the runs it fires
    total_runs      INTEGER NOT NULL DEFAULT 0,
    successful_runs INTEGER NOT NULL DEFAULT 0,  -- this and failed_runs: without what is still in schedule_ends
    failed_runs     INTEGER NOT NULL DEFAULT 0,
    skipped_runs    INTEGER NOT NULL DEFAULT 0,
    updated_at      INTEGER NOT NULL,
    namespace       TEXT NOT NULL,
    name            TEXT,
    overlap         TEXT NOT NULL CHECK (overlap IN ('allow', 'skip', 'cancel_previous', 'buffer')),
    last_run_id     TEXT,
    error           TEXT,                -- why it could not fire the last time
    pause_reason    TEXT,
    declared_hash   TEXT,                -- of what code says about it; NULL: made by a person
    declared_by     TEXT,                -- the worker whose code that was
    changed_by_hand INTEGER NOT NULL DEFAULT 0,  -- a person has changed what code declared
    PRIMARY KEY (namespace, schedule_id)
) STRICT;
CREATE UNIQUE INDEX schedules_name ON schedules (namespace, name) WHERE name IS NOT NULL;

CREATE TABLE schema_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);

CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;

CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    key_id     TEXT NOT NULL,            -- whose rights it has
    ends_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_of_key ON sessions (key_id, ends_at);

CREATE TABLE signals (
    run_id    TEXT NOT NULL,
    sent_at   INTEGER NOT NULL,
    seq       INTEGER NOT NULL,          -- the run's inbox_seq with it: the order of arrival
    taken_seq INTEGER,                   -- completed_seq of the event that took it
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,             -- makes a repeat harmless
    name      TEXT NOT NULL,
    value     BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX signals_untaken ON signals (namespace, run_id, name, seq) WHERE taken_seq IS NULL;

CREATE TABLE "step_runs" (
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
    CONSTRAINT step_runs_kind CHECK
        (kind = 'FUNCTION' OR kind = 'SLEEP' OR kind = 'CHILD_WORKFLOW' OR kind = 'SIGNAL' OR kind = 'CANCEL'),
    CONSTRAINT step_runs_status CHECK
        (status = 'COMPLETED' OR status = 'RUNNING' OR status = 'FAILED' OR status = 'CANCELLED')
) STRICT, WITHOUT ROWID;
CREATE INDEX step_runs_timeout ON step_runs (timeout_at) WHERE status = 'RUNNING';
CREATE INDEX step_runs_unseen ON step_runs (namespace, run_id)
    WHERE child_run_id IS NOT NULL AND completed_seq IS NULL AND status <> 'RUNNING';

CREATE TABLE worker_events (
    event_id  INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    event     TEXT NOT NULL CHECK (event IN ('STARTED', 'DRAINING', 'STOPPED', 'LOST')),
    at        INTEGER NOT NULL
) STRICT;
CREATE INDEX worker_events_worker ON worker_events (namespace, worker_id, event_id);

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

CREATE TABLE workflow_payloads (
    run_id    TEXT NOT NULL,
    namespace TEXT NOT NULL,
    kind      TEXT NOT NULL CHECK (kind IN ('input', 'output')),
    data      BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, kind)
) STRICT;

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
    poll             INTEGER,            -- number of the worker's poll that claimed the run; NULL if that worker is in the engine's process
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
    max_catchup      INTEGER, cancel_deadline INTEGER, origin_run_id TEXT, trace_context TEXT, waiting_for TEXT, parent_policy TEXT
    CHECK (parent_policy IN ('cancel', 'abandon', 'terminate', 'none')), has_children INTEGER, depth INTEGER, on_failure TEXT, on_failure_queue TEXT, tags TEXT, superseded_by TEXT, former_id TEXT, repeats_run_id TEXT, incarnation INTEGER, executions_before INTEGER, limit_name TEXT, limit_key TEXT, held_key INTEGER, woken TEXT, debounce_key TEXT, parent_attempt INTEGER, joins INTEGER, joined_at INTEGER, joined_by TEXT, lineage TEXT,
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
CREATE INDEX workflow_runs_aside ON workflow_runs (namespace, task_queue, workflow_type, version, available_at)
    WHERE claim_key = 253402300799000002;
CREATE INDEX workflow_runs_cancel ON workflow_runs (cancel_deadline)
    WHERE cancel_deadline IS NOT NULL AND finished_at IS NULL;
CREATE INDEX workflow_runs_children ON workflow_runs (namespace, parent_run_id, run_id)
    WHERE parent_run_id IS NOT NULL;
CREATE INDEX workflow_runs_claim ON workflow_runs (namespace, task_queue, claim_key)
    WHERE status IN ('PENDING', 'SLEEPING');
CREATE INDEX workflow_runs_deadline ON workflow_runs (deadline_at)
    WHERE deadline_at IS NOT NULL AND finished_at IS NULL;
CREATE UNIQUE INDEX workflow_runs_debounced ON workflow_runs (namespace, workflow_type, debounce_key)
    WHERE debounce_key IS NOT NULL AND started_at IS NULL AND finished_at IS NULL;
CREATE INDEX workflow_runs_errors ON workflow_runs (
    namespace,
    substr(substr(CAST(error AS TEXT), 10, instr(substr(CAST(error AS TEXT), 10), '"') - 1),
        length(rtrim(substr(CAST(error AS TEXT), 10, instr(substr(CAST(error AS TEXT), 10), '"') - 1),
            replace(substr(CAST(error AS TEXT), 10, instr(substr(CAST(error AS TEXT), 10), '"') - 1), '.', ''))) + 1),
    run_id
) WHERE status IN ('FAILED', 'TIMED_OUT', 'CANCELLED');
CREATE UNIQUE INDEX workflow_runs_external_id ON workflow_runs (namespace, external_id)
    WHERE external_id IS NOT NULL;
CREATE INDEX workflow_runs_failed ON workflow_runs (namespace, run_id)
    WHERE status IN ('FAILED', 'TIMED_OUT', 'CANCELLED');
CREATE INDEX workflow_runs_fire ON workflow_runs (available_at) WHERE status = 'SCHEDULED';
CREATE UNIQUE INDEX workflow_runs_firing ON workflow_runs (namespace, schedule_group_id, scheduled_for)
    WHERE scheduled_for IS NOT NULL;
CREATE INDEX workflow_runs_leased ON workflow_runs (worker_id)
    WHERE status = 'RUNNING';
CREATE INDEX workflow_runs_lines ON workflow_runs
    (namespace, limit_name, limit_key, task_queue, workflow_type, version, claim_key, held_key)
    WHERE held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING');
CREATE INDEX workflow_runs_repeats ON workflow_runs (namespace, repeats_run_id) WHERE repeats_run_id IS NOT NULL;
CREATE INDEX workflow_runs_scheduled ON workflow_runs (namespace, schedule_group_id, run_id)
    WHERE schedule_group_id IS NOT NULL;
CREATE INDEX workflow_runs_scheduled_live ON workflow_runs (namespace, schedule_group_id)
    WHERE schedule_group_id IS NOT NULL AND finished_at IS NULL;
CREATE TRIGGER finished_gives_its_id_only BEFORE UPDATE OF superseded_by ON workflow_runs FOR EACH ROW
    WHEN OLD.finished_at IS NOT NULL AND NEW.superseded_by IS NOT OLD.superseded_by
     AND NOT (OLD.superseded_by IS NULL AND NEW.superseded_by IS NOT NULL
              AND OLD.external_id IS NOT NULL AND NEW.external_id IS NULL AND NEW.former_id IS OLD.external_id
              AND (NEW.run_id, NEW.token, NEW.worker_id, NEW.claim_key, NEW.available_at, NEW.lease_expires_at,
                   NEW.lease_length, NEW.created_at, NEW.started_at, NEW.finished_at, NEW.deadline_at, NEW.priority,
                   NEW.attempts, NEW.executions, NEW.crashes, NEW.crashed_seq, NEW.poll, NEW.inbox_seq,
                   NEW.cancel_requested, NEW.namespace, NEW.task_queue, NEW.workflow_type, NEW.version, NEW.status,
                   NEW.input, NEW.output, NEW.error, NEW.retry_policy, NEW.parent_run_id, NEW.parent_step_id, NEW.parent_attempt,
                   NEW.handles_run_id, NEW.schedule_group_id, NEW.scheduled_for, NEW.cron_expr, NEW.timezone,
                   NEW.next_fire_at, NEW.max_catchup, NEW.cancel_deadline, NEW.origin_run_id, NEW.trace_context,
                   NEW.waiting_for, NEW.parent_policy, NEW.has_children, NEW.depth, NEW.on_failure,
                   NEW.on_failure_queue, NEW.tags, NEW.repeats_run_id, NEW.incarnation, NEW.executions_before,
                   NEW.limit_name, NEW.limit_key, NEW.held_key, NEW.woken,
                   NEW.debounce_key, NEW.joins, NEW.joined_at, NEW.joined_by,
                   NEW.lineage)
               IS (OLD.run_id, OLD.token, OLD.worker_id, OLD.claim_key, OLD.available_at, OLD.lease_expires_at,
                   OLD.lease_length, OLD.created_at, OLD.started_at, OLD.finished_at, OLD.deadline_at, OLD.priority,
                   OLD.attempts, OLD.executions, OLD.crashes, OLD.crashed_seq, OLD.poll, OLD.inbox_seq,
                   OLD.cancel_requested, OLD.namespace, OLD.task_queue, OLD.workflow_type, OLD.version, OLD.status,
                   OLD.input, OLD.output, OLD.error, OLD.retry_policy, OLD.parent_run_id, OLD.parent_step_id, OLD.parent_attempt,
                   OLD.handles_run_id, OLD.schedule_group_id, OLD.scheduled_for, OLD.cron_expr, OLD.timezone,
                   OLD.next_fire_at, OLD.max_catchup, OLD.cancel_deadline, OLD.origin_run_id, OLD.trace_context,
                   OLD.waiting_for, OLD.parent_policy, OLD.has_children, OLD.depth, OLD.on_failure,
                   OLD.on_failure_queue, OLD.tags, OLD.repeats_run_id, OLD.incarnation, OLD.executions_before,
                   OLD.limit_name, OLD.limit_key, OLD.held_key, OLD.woken,
                   OLD.debounce_key, OLD.joins, OLD.joined_at, OLD.joined_by,
                   OLD.lineage))
BEGIN
    SELECT RAISE(ABORT, 'this run has finished and cannot change');
END;
CREATE TRIGGER finished_is_final BEFORE UPDATE ON workflow_runs FOR EACH ROW
    WHEN OLD.finished_at IS NOT NULL AND NEW.superseded_by IS OLD.superseded_by
BEGIN
    SELECT RAISE(ABORT, 'this run has finished and cannot change');
END;
CREATE TRIGGER forget_tags AFTER DELETE ON workflow_runs FOR EACH ROW
    WHEN OLD.tags IS NOT NULL
BEGIN
    DELETE FROM run_tags
    WHERE namespace = OLD.namespace AND run_id = OLD.run_id
      AND tag IN (SELECT e.key || '=' || e.value FROM json_each(OLD.tags) AS e);
END;
CREATE TRIGGER note_end AFTER UPDATE OF finished_at ON workflow_runs FOR EACH ROW
    WHEN NEW.has_children AND OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL
BEGIN
    INSERT INTO cascades (namespace, run_id, at) VALUES (NEW.namespace, NEW.run_id, NEW.finished_at)
    ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER note_scheduled_end AFTER UPDATE OF finished_at ON workflow_runs FOR EACH ROW
    WHEN NEW.schedule_group_id IS NOT NULL AND OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL
BEGIN
    INSERT INTO schedule_ends (namespace, schedule_id, status, at)
    VALUES (NEW.namespace, NEW.schedule_group_id, NEW.status, NEW.finished_at);
END;
CREATE TRIGGER note_tags AFTER INSERT ON workflow_runs FOR EACH ROW
    WHEN NEW.tags IS NOT NULL AND NEW.status NOT IN ('SCHEDULED', 'PAUSED')
BEGIN
    INSERT INTO run_tags (namespace, tag, run_id)
    SELECT NEW.namespace, e.key || '=' || e.value, NEW.run_id FROM json_each(NEW.tags) AS e
    WHERE true
    ON CONFLICT DO NOTHING;
END;

CREATE TABLE workflow_types (
    first_seen_at INTEGER NOT NULL,
    last_seen_at  INTEGER NOT NULL,      -- to the hour
    namespace     TEXT NOT NULL,
    workflow_type TEXT NOT NULL,
    version       TEXT NOT NULL,         -- '' is every version
    queues        TEXT NOT NULL, summary TEXT, input_schema TEXT, start_defaults TEXT,         -- where it was offered, a JSON list
    PRIMARY KEY (namespace, workflow_type, version)
) STRICT, WITHOUT ROWID;

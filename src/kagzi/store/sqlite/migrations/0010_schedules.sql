-- Schedules. A schedule's template is a row of workflow_runs (SCHEDULED or PAUSED, run_id = schedule_id); what changes with
-- every firing and every ended run is beside it, so that a wide row is not written anew each time.

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

-- Firings that did not become runs.
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

-- Ends of scheduled runs, until a duty adds them to the counters. A trigger writes them: a run can end in many statements, and
-- none may forget. It only appends, so that no end waits for a counter.
CREATE TABLE schedule_ends (
    end_id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    namespace   TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    status      TEXT NOT NULL
) STRICT;
CREATE INDEX schedule_ends_schedule ON schedule_ends (namespace, schedule_id);

CREATE TRIGGER note_scheduled_end AFTER UPDATE OF finished_at ON workflow_runs FOR EACH ROW
    WHEN NEW.schedule_group_id IS NOT NULL AND OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL
BEGIN
    INSERT INTO schedule_ends (namespace, schedule_id, status, at)
    VALUES (NEW.namespace, NEW.schedule_group_id, NEW.status, NEW.finished_at);
END;

CREATE INDEX workflow_runs_fire ON workflow_runs (available_at) WHERE status = 'SCHEDULED';
CREATE UNIQUE INDEX workflow_runs_firing ON workflow_runs (namespace, schedule_group_id, scheduled_for)
    WHERE scheduled_for IS NOT NULL;
CREATE INDEX workflow_runs_scheduled ON workflow_runs (namespace, schedule_group_id, run_id)
    WHERE schedule_group_id IS NOT NULL;
CREATE INDEX workflow_runs_scheduled_live ON workflow_runs (namespace, schedule_group_id)
    WHERE schedule_group_id IS NOT NULL AND finished_at IS NULL;

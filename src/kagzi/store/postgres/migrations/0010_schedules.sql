-- Schedules. A schedule's template is a row of workflow_runs (SCHEDULED or PAUSED, run_id = schedule_id); what changes with
-- every firing and every ended run is beside it, so that a wide row is not written anew each time.

CREATE TABLE kagzi.schedules (
    schedule_id     uuid NOT NULL,
    fired_until     bigint NOT NULL,     -- the watermark: nothing at or before it is fired by the clock again
    kept_until      bigint,              -- up to here it was decided which missed firings are made up for
    buffered_for    bigint,              -- a firing that waits for the run before it
    last_fired_at   bigint,
    jitter          bigint NOT NULL,
    timeout         bigint,              -- of the runs it fires
    total_runs      bigint NOT NULL DEFAULT 0,
    successful_runs bigint NOT NULL DEFAULT 0,  -- this and failed_runs: without what is still in schedule_ends
    failed_runs     bigint NOT NULL DEFAULT 0,
    skipped_runs    bigint NOT NULL DEFAULT 0,
    updated_at      bigint NOT NULL,
    namespace       text NOT NULL,
    name            text,
    overlap         text NOT NULL,
    last_run_id     uuid,
    error           text,                -- why it could not fire the last time
    pause_reason    text,
    declared_hash   text,                -- of what code says about it; NULL: made by a person
    declared_by     text,                -- the worker whose code that was
    changed_by_hand boolean NOT NULL DEFAULT false,  -- a person has changed what code declared
    PRIMARY KEY (namespace, schedule_id),
    CONSTRAINT schedules_overlap CHECK (overlap IN ('allow', 'skip', 'cancel_previous', 'buffer'))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX schedules_name ON kagzi.schedules (namespace, name) WHERE name IS NOT NULL;

-- Firings that did not become runs.
CREATE TABLE kagzi.schedule_skips (
    skip_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    first_at    bigint NOT NULL,
    last_at     bigint NOT NULL,
    count       bigint NOT NULL,
    at          bigint NOT NULL,
    namespace   text NOT NULL,
    schedule_id uuid NOT NULL,
    reason      text NOT NULL,
    CONSTRAINT schedule_skips_reason CHECK (reason IN ('catchup', 'overlap', 'paused'))
);
CREATE INDEX schedule_skips_schedule ON kagzi.schedule_skips (namespace, schedule_id, skip_id);

-- Ends of scheduled runs, until a duty adds them to the counters. A trigger writes them: a run can end in many statements, and
-- none may forget. It only appends, so that no batch waits for a counter.
CREATE TABLE kagzi.schedule_ends (
    end_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          bigint NOT NULL,
    namespace   text NOT NULL,
    schedule_id uuid NOT NULL,
    status      text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX schedule_ends_schedule ON kagzi.schedule_ends (namespace, schedule_id);

CREATE FUNCTION kagzi.note_scheduled_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kagzi.schedule_ends (namespace, schedule_id, status, at)
    VALUES (NEW.namespace, NEW.schedule_group_id, NEW.status, NEW.finished_at);
    RETURN NULL;
END $$;
CREATE TRIGGER note_scheduled_end AFTER UPDATE OF finished_at ON kagzi.workflow_runs FOR EACH ROW
    WHEN (NEW.schedule_group_id IS NOT NULL AND OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL)
    EXECUTE FUNCTION kagzi.note_scheduled_end();

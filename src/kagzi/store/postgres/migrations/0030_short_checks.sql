-- PostgreSQL keeps the conditions of checks and triggers as text, and reads the text again in every statement that writes to
-- the table: for one row that takes longer than to write it. So there are as few conditions as can be, in few words; an
-- array as one literal is a tenth of an array of literals.

-- Of every status there is one set of columns that it needs. Not validated: rows that are there have passed the three checks
-- that say the same.
ALTER TABLE kagzi.workflow_runs
    DROP CONSTRAINT workflow_runs_status,
    DROP CONSTRAINT workflow_runs_finished,
    DROP CONSTRAINT workflow_runs_moves,
    DROP CONSTRAINT workflow_runs_parent_policy,
    -- No dead ends: what is not finished can be claimed some day, is leased, or is a schedule's template.
    ADD CONSTRAINT workflow_runs_moves CHECK (
        CASE WHEN status = 'RUNNING' THEN
                 finished_at IS NULL AND token IS NOT NULL AND lease_expires_at IS NOT NULL AND started_at IS NOT NULL
             WHEN finished_at IS NOT NULL THEN status = ANY ('{COMPLETED,FAILED,CANCELLED,TIMED_OUT}')
             WHEN claim_key IS NULL OR available_at IS NULL THEN status = ANY ('{SCHEDULED,PAUSED}')
             ELSE status = ANY ('{PENDING,SLEEPING,SCHEDULED,PAUSED}') END) NOT VALID,
    ADD CONSTRAINT workflow_runs_parent_policy
        CHECK (parent_policy = ANY ('{cancel,abandon,terminate,none}')) NOT VALID;
ALTER TABLE kagzi.step_runs
    DROP CONSTRAINT step_runs_kind,
    DROP CONSTRAINT step_runs_status,
    ADD CONSTRAINT step_runs_kind CHECK (kind = ANY ('{FUNCTION,SLEEP,CHILD_WORKFLOW,SIGNAL,CANCEL}')) NOT VALID,
    ADD CONSTRAINT step_runs_status CHECK (status = ANY ('{RUNNING,COMPLETED,FAILED,CANCELLED}')) NOT VALID;

-- One trigger for what ends of runs leave behind, which asks only what a plain run is not.
DROP TRIGGER note_end ON kagzi.workflow_runs;
DROP TRIGGER note_scheduled_end ON kagzi.workflow_runs;
DROP FUNCTION kagzi.note_scheduled_end();
CREATE OR REPLACE FUNCTION kagzi.note_end() RETURNS trigger LANGUAGE plpgsql AS $$
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
END $$;
CREATE TRIGGER note_end AFTER UPDATE OF finished_at ON kagzi.workflow_runs FOR EACH ROW
    WHEN (NEW.has_children OR NEW.schedule_group_id IS NOT NULL) EXECUTE FUNCTION kagzi.note_end();

-- Templates of schedules have tags for the runs they fire; they are not found by them.
DROP TRIGGER note_tags ON kagzi.workflow_runs;
CREATE OR REPLACE FUNCTION kagzi.note_tags() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status NOT IN ('SCHEDULED', 'PAUSED') THEN
        INSERT INTO kagzi.run_tags (namespace, tag, run_id)
        SELECT NEW.namespace, e.key || '=' || e.value, NEW.run_id FROM json_each_text(NEW.tags::json) AS e
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_tags AFTER INSERT ON kagzi.workflow_runs FOR EACH ROW
    WHEN (NEW.tags IS NOT NULL) EXECUTE FUNCTION kagzi.note_tags();

-- Restarts: the id of a finished run goes to the run that takes its place.

ALTER TABLE kagzi.workflow_runs
    ADD COLUMN superseded_by uuid,    -- the run that has its id now
    ADD COLUMN former_id text,        -- that id
    ADD COLUMN repeats_run_id uuid;   -- the run that it repeats, restarts or was forked from

-- A finished run changes once at most, and only so.
CREATE OR REPLACE FUNCTION kagzi.refuse_change_of_finished_run() RETURNS trigger LANGUAGE plpgsql AS $$
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
END $$;

-- Cancelling and repeating runs. Both columns are empty for every run there is, so adding them rewrites nothing.

ALTER TABLE kagzi.workflow_runs
    ADD COLUMN cancel_deadline bigint,   -- a run that was told to end is ended at this time, cleaned up or not
    ADD COLUMN origin_run_id   uuid;     -- the run this one continues; chance inside the workflow is drawn from its id

CREATE INDEX workflow_runs_cancel ON kagzi.workflow_runs (cancel_deadline)
    WHERE cancel_deadline IS NOT NULL AND finished_at IS NULL;

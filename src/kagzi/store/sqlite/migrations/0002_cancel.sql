-- Cancelling and repeating runs.

-- A run that was told to end is ended at this time, cleaned up or not.
ALTER TABLE workflow_runs ADD COLUMN cancel_deadline INTEGER;
-- The run this one continues; chance inside the workflow is drawn from its id.
ALTER TABLE workflow_runs ADD COLUMN origin_run_id TEXT;

CREATE INDEX workflow_runs_cancel ON workflow_runs (cancel_deadline)
    WHERE cancel_deadline IS NOT NULL AND finished_at IS NULL;

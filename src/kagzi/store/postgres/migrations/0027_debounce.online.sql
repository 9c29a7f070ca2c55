-- The run that debounced starts join: the one of its workflow and key that nobody has begun. A claim takes it out of this
-- index, and with the next start there is another one.
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_debounced ON kagzi.workflow_runs
    (namespace, workflow_type, debounce_key)
    WHERE debounce_key IS NOT NULL AND started_at IS NULL AND finished_at IS NULL;

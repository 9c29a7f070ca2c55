-- Which runs were started because another has failed.
CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_handlers ON kagzi.workflow_runs (namespace, handles_run_id)
    WHERE handles_run_id IS NOT NULL;

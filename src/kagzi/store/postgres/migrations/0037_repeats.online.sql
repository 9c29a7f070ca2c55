-- For jobs alone, and of runs that repeat another one alone.
CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_repeats
    ON kagzi.workflow_runs (namespace, repeats_run_id) WHERE repeats_run_id IS NOT NULL;

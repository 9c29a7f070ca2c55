-- Runs are found by the one that they repeat, so that no job repeats one twice.
CREATE INDEX workflow_runs_repeats ON workflow_runs (namespace, repeats_run_id) WHERE repeats_run_id IS NOT NULL;

CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_aside ON kagzi.workflow_runs
    (namespace, task_queue, workflow_type, version, available_at) WHERE claim_key = 253402300799000002;

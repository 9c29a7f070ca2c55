-- Due runs that no worker of their queue executes are set aside: their claim_key is 253402300799000002, so that claims do
-- not meet them.
CREATE INDEX workflow_runs_aside ON workflow_runs (namespace, task_queue, workflow_type, version, available_at)
    WHERE claim_key = 253402300799000002;

-- The runs that are held, or were until they could be claimed, in lines that are served in turn.
CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_lines ON kagzi.workflow_runs
    (namespace, limit_name, limit_key, task_queue, workflow_type, version, claim_key, held_key)
    WHERE held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING');

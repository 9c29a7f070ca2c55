-- The children of a run, and the outcomes that a run has not seen.

CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_children ON kagzi.workflow_runs (namespace, parent_run_id, run_id)
    WHERE parent_run_id IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS step_runs_unseen ON kagzi.step_runs (namespace, run_id)
    WHERE child_run_id IS NOT NULL AND completed_seq IS NULL AND status <> 'RUNNING';

-- Runs that did not complete, also by the class of their error; ids of callers by their beginnings. The last one also serves
-- plain equality, so it takes the place of the one before.

CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_failed ON kagzi.workflow_runs (namespace, run_id)
    WHERE status IN ('FAILED', 'TIMED_OUT', 'CANCELLED');
CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_errors ON kagzi.workflow_runs (namespace, kagzi.error_class(error), run_id)
    WHERE status IN ('FAILED', 'TIMED_OUT', 'CANCELLED');
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_id_prefix ON kagzi.workflow_runs (namespace, external_id text_pattern_ops)
    WHERE external_id IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS kagzi.workflow_runs_external_id;

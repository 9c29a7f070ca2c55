-- Which schedules are due, and which runs a schedule has started.

CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_fire ON kagzi.workflow_runs (available_at) WHERE status = 'SCHEDULED';
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_firing ON kagzi.workflow_runs (namespace, schedule_group_id, scheduled_for)
    WHERE scheduled_for IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_scheduled ON kagzi.workflow_runs (namespace, schedule_group_id, run_id)
    WHERE schedule_group_id IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_scheduled_live ON kagzi.workflow_runs (namespace, schedule_group_id)
    WHERE schedule_group_id IS NOT NULL AND finished_at IS NULL;

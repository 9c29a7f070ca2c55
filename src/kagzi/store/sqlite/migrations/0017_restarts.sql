-- Restarts: the id of a finished run goes to the run that takes its place.

-- The run that has its id now, and that id.
ALTER TABLE workflow_runs ADD COLUMN superseded_by TEXT;
ALTER TABLE workflow_runs ADD COLUMN former_id TEXT;
-- The run that it repeats, restarts or was forked from.
ALTER TABLE workflow_runs ADD COLUMN repeats_run_id TEXT;

-- A finished run changes once at most, and only so.
DROP TRIGGER finished_is_final;
CREATE TRIGGER finished_is_final BEFORE UPDATE ON workflow_runs FOR EACH ROW
    WHEN OLD.finished_at IS NOT NULL
     AND NOT (OLD.superseded_by IS NULL AND NEW.superseded_by IS NOT NULL
              AND OLD.external_id IS NOT NULL AND NEW.external_id IS NULL AND NEW.former_id IS OLD.external_id
              AND (NEW.run_id, NEW.namespace, NEW.status, NEW.task_queue, NEW.workflow_type, NEW.version,
                   NEW.input, NEW.output, NEW.error, NEW.retry_policy, NEW.priority, NEW.attempts, NEW.executions,
                   NEW.crashes, NEW.crashed_seq, NEW.token, NEW.worker_id, NEW.poll, NEW.claim_key, NEW.available_at,
                   NEW.lease_expires_at, NEW.lease_length, NEW.created_at, NEW.started_at, NEW.finished_at,
                   NEW.deadline_at, NEW.inbox_seq, NEW.cancel_requested, NEW.cancel_deadline, NEW.parent_run_id,
                   NEW.parent_step_id, NEW.parent_policy, NEW.has_children, NEW.depth, NEW.handles_run_id,
                   NEW.on_failure, NEW.on_failure_queue, NEW.schedule_group_id, NEW.scheduled_for, NEW.origin_run_id,
                   NEW.repeats_run_id, NEW.trace_context, NEW.waiting_for, NEW.tags)
               IS (OLD.run_id, OLD.namespace, OLD.status, OLD.task_queue, OLD.workflow_type, OLD.version,
                   OLD.input, OLD.output, OLD.error, OLD.retry_policy, OLD.priority, OLD.attempts, OLD.executions,
                   OLD.crashes, OLD.crashed_seq, OLD.token, OLD.worker_id, OLD.poll, OLD.claim_key, OLD.available_at,
                   OLD.lease_expires_at, OLD.lease_length, OLD.created_at, OLD.started_at, OLD.finished_at,
                   OLD.deadline_at, OLD.inbox_seq, OLD.cancel_requested, OLD.cancel_deadline, OLD.parent_run_id,
                   OLD.parent_step_id, OLD.parent_policy, OLD.has_children, OLD.depth, OLD.handles_run_id,
                   OLD.on_failure, OLD.on_failure_queue, OLD.schedule_group_id, OLD.scheduled_for, OLD.origin_run_id,
                   OLD.repeats_run_id, OLD.trace_context, OLD.waiting_for, OLD.tags))
BEGIN
    SELECT RAISE(ABORT, 'this run has finished and cannot change');
END;

-- For whom what a run holds may be encrypted, if not for the run itself: it repeats another, was fired by a schedule, was
-- joined by debounced starts, or handles a failure. A JSON array, first the one for which it encrypts itself.
ALTER TABLE workflow_runs ADD COLUMN lineage TEXT;

-- A finished run keeps this column, too.
DROP TRIGGER finished_gives_its_id_only;
CREATE TRIGGER finished_gives_its_id_only BEFORE UPDATE OF superseded_by ON workflow_runs FOR EACH ROW
    WHEN OLD.finished_at IS NOT NULL AND NEW.superseded_by IS NOT OLD.superseded_by
     AND NOT (OLD.superseded_by IS NULL AND NEW.superseded_by IS NOT NULL
              AND OLD.external_id IS NOT NULL AND NEW.external_id IS NULL AND NEW.former_id IS OLD.external_id
              AND (NEW.run_id, NEW.token, NEW.worker_id, NEW.claim_key, NEW.available_at, NEW.lease_expires_at,
                   NEW.lease_length, NEW.created_at, NEW.started_at, NEW.finished_at, NEW.deadline_at, NEW.priority,
                   NEW.attempts, NEW.executions, NEW.crashes, NEW.crashed_seq, NEW.poll, NEW.inbox_seq,
                   NEW.cancel_requested, NEW.namespace, NEW.task_queue, NEW.workflow_type, NEW.version, NEW.status,
                   NEW.input, NEW.output, NEW.error, NEW.retry_policy, NEW.parent_run_id, NEW.parent_step_id, NEW.parent_attempt,
                   NEW.handles_run_id, NEW.schedule_group_id, NEW.scheduled_for, NEW.cron_expr, NEW.timezone,
                   NEW.next_fire_at, NEW.max_catchup, NEW.cancel_deadline, NEW.origin_run_id, NEW.trace_context,
                   NEW.waiting_for, NEW.parent_policy, NEW.has_children, NEW.depth, NEW.on_failure,
                   NEW.on_failure_queue, NEW.tags, NEW.repeats_run_id, NEW.incarnation, NEW.executions_before,
                   NEW.limit_name, NEW.limit_key, NEW.held_key, NEW.woken,
                   NEW.debounce_key, NEW.joins, NEW.joined_at, NEW.joined_by,
                   NEW.lineage)
               IS (OLD.run_id, OLD.token, OLD.worker_id, OLD.claim_key, OLD.available_at, OLD.lease_expires_at,
                   OLD.lease_length, OLD.created_at, OLD.started_at, OLD.finished_at, OLD.deadline_at, OLD.priority,
                   OLD.attempts, OLD.executions, OLD.crashes, OLD.crashed_seq, OLD.poll, OLD.inbox_seq,
                   OLD.cancel_requested, OLD.namespace, OLD.task_queue, OLD.workflow_type, OLD.version, OLD.status,
                   OLD.input, OLD.output, OLD.error, OLD.retry_policy, OLD.parent_run_id, OLD.parent_step_id, OLD.parent_attempt,
                   OLD.handles_run_id, OLD.schedule_group_id, OLD.scheduled_for, OLD.cron_expr, OLD.timezone,
                   OLD.next_fire_at, OLD.max_catchup, OLD.cancel_deadline, OLD.origin_run_id, OLD.trace_context,
                   OLD.waiting_for, OLD.parent_policy, OLD.has_children, OLD.depth, OLD.on_failure,
                   OLD.on_failure_queue, OLD.tags, OLD.repeats_run_id, OLD.incarnation, OLD.executions_before,
                   OLD.limit_name, OLD.limit_key, OLD.held_key, OLD.woken,
                   OLD.debounce_key, OLD.joins, OLD.joined_at, OLD.joined_by,
                   OLD.lineage))
BEGIN
    SELECT RAISE(ABORT, 'this run has finished and cannot change');
END;

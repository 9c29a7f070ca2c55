-- name: find_dead_leases
-- Runs whose lease has ended, with the highest event they have recorded.
SELECT r.namespace, r.run_id, r.task_queue, r.priority, r.crashes, r.crashed_seq,
    coalesce((SELECT max(s.completed_seq) FROM step_runs AS s
              WHERE s.namespace = r.namespace AND s.run_id = r.run_id), -1)
FROM workflow_runs AS r
WHERE r.status = 'RUNNING' AND r.lease_expires_at <= ?1
ORDER BY r.lease_expires_at, r.run_id
LIMIT ?2;

-- name: recover_run
-- Make a run claimable again after its holder has died.
UPDATE workflow_runs
SET status = 'PENDING', token = NULL, worker_id = NULL, poll = NULL, lease_expires_at = NULL, crashes = ?3,
    crashed_seq = ?4, available_at = ?5, claim_key = ?6
WHERE namespace = ?1 AND run_id = ?2 AND status = 'RUNNING';

-- name: fail_crashed_run
-- A run that takes every worker down with it ends here.
UPDATE workflow_runs
SET status = 'FAILED', token = NULL, poll = NULL, lease_expires_at = NULL, claim_key = NULL, crashes = ?3,
    crashed_seq = ?4, error = ?5, available_at = ?6, finished_at = ?6
WHERE namespace = ?1 AND run_id = ?2 AND status = 'RUNNING';

-- name: find_overdue_steps
-- Steps that show as RUNNING past their timeout, with what is needed to take their run from its holder. Where the run is
-- not RUNNING nobody runs the step either, and its timeout means nothing.
SELECT s.namespace, s.run_id, s.step_id, s.attempt, r.task_queue, r.priority, r.status IS 'RUNNING'
FROM step_runs AS s
LEFT JOIN workflow_runs AS r ON r.namespace = s.namespace AND r.run_id = s.run_id
WHERE s.status = 'RUNNING' AND s.timeout_at <= ?1
ORDER BY s.timeout_at
LIMIT ?2;

-- name: time_out_step
-- An attempt has taken too long.
UPDATE step_runs SET status = 'FAILED', finished_at = ?5, error = ?6
WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND attempt = ?4 AND status = 'RUNNING';

-- name: forget_step_timeout
-- A step that shows as RUNNING although nobody drives its run.
UPDATE step_runs SET timeout_at = NULL
WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND attempt = ?4 AND status = 'RUNNING';

-- name: find_overdue_runs
-- Live runs past their deadline.
SELECT namespace, run_id, task_queue, coalesce(available_at, ?1)
FROM workflow_runs
WHERE deadline_at <= ?1 AND deadline_at IS NOT NULL AND finished_at IS NULL
  AND status IN ('PENDING', 'RUNNING', 'SLEEPING')
ORDER BY deadline_at
LIMIT ?2;

-- fragment: waits_for_queue
-- Whether a run is due and its queue is full. One of a paused queue is not meant: nobody would come for it.
status <> 'RUNNING' AND claim_key <= ?1 AND EXISTS (
        SELECT 1 FROM limits AS l
        WHERE l.namespace = workflow_runs.namespace AND l.scope = 'queue' AND l.name = workflow_runs.task_queue
          AND l.paused_at IS NULL
          AND coalesce(l.concurrency, l.declared) <= (
              SELECT count(*) FROM workflow_runs AS x INDEXED BY workflow_runs_leased
              WHERE x.status = 'RUNNING' AND x.namespace = l.namespace AND x.task_queue = l.name))

-- name: prolong_cancels
-- Give runs that were told to end and wait for a slot of their queue time to be claimed and to clean up.
UPDATE workflow_runs
SET cancel_deadline = ?1 + {{CANCEL_GRACE}}, held_key = coalesce(held_key, claim_key - 1125899906842624)
WHERE cancel_deadline <= ?1 AND cancel_deadline IS NOT NULL AND finished_at IS NULL
  AND status IN ('PENDING', 'SLEEPING') AND {{waits_for_queue}};

-- name: find_overdue_cancels
-- Runs that were told to end and have used up their time.
SELECT namespace, run_id, task_queue, coalesce(available_at, ?1)
FROM workflow_runs
WHERE cancel_deadline <= ?1 AND cancel_deadline IS NOT NULL AND finished_at IS NULL
  AND status IN ('PENDING', 'RUNNING', 'SLEEPING')
ORDER BY cancel_deadline
LIMIT ?2;

-- name: walk_runs
-- The next runs in order of their key, and which of them are past their namespace's retention.
SELECT r.namespace, r.run_id,
    r.finished_at IS NOT NULL AND r.finished_at <= ?3 - coalesce(n.retention_days, 30) * 86400000000
FROM workflow_runs AS r
LEFT JOIN namespaces AS n ON n.namespace = r.namespace
WHERE (r.namespace, r.run_id) > (?1, ?2)
ORDER BY r.namespace, r.run_id
LIMIT ?4;

-- name: delete_run
-- Remove a finished run. Its steps and payloads go in the same transaction.
DELETE FROM workflow_runs WHERE namespace = ?1 AND run_id = ?2 AND finished_at IS NOT NULL;

-- name: delete_steps
-- Remove the steps of a run.
DELETE FROM step_runs WHERE namespace = ?1 AND run_id = ?2;

-- name: delete_payloads
-- Remove the large payloads of a run.
DELETE FROM workflow_payloads WHERE namespace = ?1 AND run_id = ?2;

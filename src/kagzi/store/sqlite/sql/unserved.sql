-- name: live_offers
-- What workers that are not lost execute.
SELECT namespace, queues, types, versions FROM workers WHERE status <> 'OFFLINE' AND last_heartbeat_at > ?1;

-- name: is_any_aside
-- A run that is set aside, if there is one.
SELECT 1 FROM workflow_runs INDEXED BY workflow_runs_aside WHERE claim_key = 253402300799000002 LIMIT 1;

-- name: served_aside
-- The first version of which runs are set aside although this offer serves it.
SELECT namespace, task_queue, workflow_type, version FROM workflow_runs INDEXED BY workflow_runs_aside
WHERE claim_key = 253402300799000002 AND namespace = ?1 AND task_queue = ?2 AND workflow_type = ?3
  AND (?4 IS NULL OR version = ?4)
ORDER BY version
LIMIT 1;

-- name: bring_back
-- A worker executes these again. The first come first, at the place they had.
UPDATE workflow_runs SET claim_key = {{claim_key(available_at, priority, ?5)}}
WHERE namespace = ?1 AND run_id IN (
    SELECT run_id FROM workflow_runs INDEXED BY workflow_runs_aside
    WHERE claim_key = 253402300799000002 AND namespace = ?1 AND task_queue = ?2 AND workflow_type = ?3 AND version = ?4
    ORDER BY available_at LIMIT ?6);

-- name: find_overdue
-- What has been due for long in a queue, in the order of claiming.
SELECT run_id, workflow_type, version FROM workflow_runs
WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING') AND claim_key <= ?3
ORDER BY claim_key
LIMIT ?4;

-- name: set_aside
-- No worker of their queue executes these.
UPDATE workflow_runs SET claim_key = 253402300799000002
WHERE namespace = ?1 AND run_id IN (SELECT value FROM json_each(?2));

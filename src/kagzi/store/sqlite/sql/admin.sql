-- name: get_worker
-- One worker, and how many runs it holds.
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency, w.status,
    w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels,
    (SELECT count(*) FROM workflow_runs AS r WHERE r.worker_id = w.worker_id AND r.status = 'RUNNING')
FROM workers AS w
WHERE w.worker_id = ?1;

-- name: find_workers
-- Workers older than a position, the newest first. A filter that is NULL lets everything through.
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency, w.status,
    w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels,
    (SELECT count(*) FROM workflow_runs AS r WHERE r.worker_id = w.worker_id AND r.status = 'RUNNING')
FROM workers AS w
WHERE w.namespace = ?1
  AND (?2 IS NULL OR ?2 IN (SELECT value FROM json_each(w.queues)))
  AND (?3 IS NULL OR w.status = ?3)
  AND (w.registered_at < ?4 OR (w.registered_at = ?4 AND w.worker_id < ?5))
ORDER BY w.registered_at DESC, w.worker_id DESC
LIMIT ?6;

-- name: drain_worker
-- Have a worker told to finish what it has.
UPDATE workers SET status = 'DRAINING' WHERE worker_id = ?1 AND status = 'ONLINE' RETURNING namespace;

-- name: count_workers
-- Workers of one namespace, or of all, by status.
SELECT status, count(*) FROM workers WHERE ?1 IS NULL OR namespace = ?1 GROUP BY status;

-- name: count_runs
-- Runs of one namespace, or of all. Reads every row there is: for people, and not often.
SELECT workflow_type, task_queue, status, count(*)
FROM workflow_runs
WHERE (?1 IS NULL OR namespace = ?1) AND status NOT IN ('SCHEDULED', 'PAUSED')
GROUP BY workflow_type, task_queue, status
LIMIT 10000;

-- name: count_live_runs
-- The same for runs that have not finished, which the partial indexes hold.
SELECT workflow_type, task_queue, status, count(*)
FROM (
    SELECT workflow_type, task_queue, status FROM workflow_runs
    WHERE status IN ('PENDING', 'SLEEPING') AND (?1 IS NULL OR namespace = ?1)
    UNION ALL
    SELECT workflow_type, task_queue, status FROM workflow_runs
    WHERE status = 'RUNNING' AND (?1 IS NULL OR namespace = ?1))
GROUP BY workflow_type, task_queue, status
LIMIT 10000;

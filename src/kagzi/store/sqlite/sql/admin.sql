-- name: get_worker
-- One worker, and how many runs it holds; of one namespace or of any. Here and below one that was last heard of at a
-- certain moment or before is OFFLINE, also while its row does not say so yet.
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency,
    CASE WHEN w.last_heartbeat_at <= ?3 THEN 'OFFLINE' ELSE w.status END,
    w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels,
    (SELECT count(*) FROM workflow_runs AS r WHERE r.worker_id = w.worker_id AND r.status = 'RUNNING')
FROM workers AS w
WHERE w.worker_id = ?1 AND (?2 IS NULL OR w.namespace = ?2);

-- name: find_workers
-- Workers older than a position, the newest first. A filter that is NULL lets everything through.
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency,
    CASE WHEN w.last_heartbeat_at <= ?7 THEN 'OFFLINE' ELSE w.status END,
    w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels,
    (SELECT count(*) FROM workflow_runs AS r WHERE r.worker_id = w.worker_id AND r.status = 'RUNNING')
FROM workers AS w
WHERE w.namespace = ?1
  AND (?2 IS NULL OR ?2 IN (SELECT value FROM json_each(w.queues)))
  AND (?3 IS NULL OR CASE WHEN w.last_heartbeat_at <= ?7 THEN 'OFFLINE' ELSE w.status END = ?3)
  AND (w.registered_at < ?4 OR (w.registered_at = ?4 AND w.worker_id < ?5))
ORDER BY w.registered_at DESC, w.worker_id DESC
LIMIT ?6;

-- name: drain_worker
-- Have a worker told to finish what it has.
UPDATE workers SET status = 'DRAINING'
WHERE worker_id = ?1 AND status = 'ONLINE' AND (?2 IS NULL OR namespace = ?2)
RETURNING namespace;

-- name: count_workers
-- Workers of one namespace, or of all, by status.
SELECT CASE WHEN last_heartbeat_at <= ?2 THEN 'OFFLINE' ELSE status END, count(*)
FROM workers WHERE ?1 IS NULL OR namespace = ?1 GROUP BY 1;

-- name: counted_namespaces
-- Whose runs are counted when all are asked for.
SELECT namespace FROM namespaces ORDER BY namespace LIMIT ?1;

-- name: next_queue
-- The queue after this one in which runs wait. Differs by necessity from PostgreSQL, which skips along the index in one
-- statement: a subquery here cannot look at the row beside it.
SELECT task_queue FROM workflow_runs
WHERE namespace = ?1 AND status IN ('PENDING', 'SLEEPING') AND task_queue > ?2
ORDER BY task_queue LIMIT 1;

-- name: count_waiting_runs
-- Runs that wait in a queue, up to a bound.
SELECT c.namespace, c.workflow_type, c.task_queue, c.status, count(*),
    sum((?3 IS NULL OR c.created_at > ?3) AND (?4 IS NULL OR c.created_at < ?4)), c.version, min(c.created_at)
FROM (
    SELECT namespace, workflow_type, version, task_queue, status, created_at FROM workflow_runs
    WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING')
    ORDER BY claim_key LIMIT ?5) AS c
GROUP BY c.workflow_type, c.version, c.status
LIMIT ?6;

-- name: count_leased_runs
-- Runs that are leased, of which there are never more than slots.
SELECT c.namespace, c.workflow_type, c.task_queue, c.status, count(*),
    sum((?2 IS NULL OR c.created_at > ?2) AND (?3 IS NULL OR c.created_at < ?3)), c.version, min(c.created_at)
FROM (
    SELECT namespace, workflow_type, version, task_queue, status, created_at FROM workflow_runs
    WHERE status = 'RUNNING' AND (?1 IS NULL OR namespace = ?1) LIMIT ?4) AS c
GROUP BY c.namespace, c.workflow_type, c.version, c.task_queue
LIMIT ?5;

-- name: count_newest_runs
-- The newest runs of a namespace.
SELECT c.namespace, c.workflow_type, c.task_queue, c.status, count(*),
    sum((?2 IS NULL OR c.created_at > ?2) AND (?3 IS NULL OR c.created_at < ?3))
FROM (
    SELECT namespace, workflow_type, task_queue, status, created_at FROM workflow_runs
    WHERE namespace = ?1 ORDER BY run_id DESC LIMIT ?4) AS c
GROUP BY c.workflow_type, c.task_queue, c.status
LIMIT ?5;

-- name: get_worker
-- One worker, and how many runs it holds.
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency, w.status,
       w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels,
       (SELECT count(*) FROM kagzi.workflow_runs AS r WHERE r.worker_id = w.worker_id AND r.status = 'RUNNING') AS active
FROM kagzi.workers AS w
WHERE w.worker_id = $1::uuid;

-- name: find_workers
-- Workers older than a position, the newest first. A filter that is NULL lets everything through.
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency, w.status,
       w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels,
       (SELECT count(*) FROM kagzi.workflow_runs AS r WHERE r.worker_id = w.worker_id AND r.status = 'RUNNING') AS active
FROM kagzi.workers AS w
WHERE w.namespace = $1::text
  AND ($2::text IS NULL OR $2::text = ANY (w.queues))
  AND ($3::text IS NULL OR w.status = $3::text)
  AND (w.registered_at < $4::bigint OR (w.registered_at = $4::bigint AND w.worker_id < $5::uuid))
ORDER BY w.registered_at DESC, w.worker_id DESC
LIMIT $6::integer;

-- name: drain_worker
-- Have a worker told to finish what it has.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), draining AS (
    UPDATE kagzi.workers AS w SET status = 'DRAINING'
    WHERE w.worker_id = $2::uuid AND w.status = 'ONLINE'
    RETURNING w.namespace, w.worker_id
)
INSERT INTO kagzi.worker_events (namespace, worker_id, event, at)
SELECT d.namespace, d.worker_id, 'DRAINING', i.now FROM draining AS d CROSS JOIN instant AS i
RETURNING worker_id;

-- name: count_workers
-- Workers of one namespace, or of all, by status.
SELECT w.status, count(*) AS count
FROM kagzi.workers AS w
WHERE $1::text IS NULL OR w.namespace = $1::text
GROUP BY w.status;

-- name: count_runs
-- Runs of one namespace, or of all. Reads every row there is: for people, and not often.
SELECT r.workflow_type, r.task_queue, r.status, count(*) AS count
FROM kagzi.workflow_runs AS r
WHERE ($1::text IS NULL OR r.namespace = $1::text) AND r.status NOT IN ('SCHEDULED', 'PAUSED')
GROUP BY r.workflow_type, r.task_queue, r.status
LIMIT 10000;

-- name: count_live_runs
-- The same for runs that have not finished, which the partial indexes hold.
SELECT r.workflow_type, r.task_queue, r.status, count(*) AS count
FROM (
    SELECT w.workflow_type, w.task_queue, w.status FROM kagzi.workflow_runs AS w
    WHERE w.status IN ('PENDING', 'SLEEPING') AND ($1::text IS NULL OR w.namespace = $1::text)
    UNION ALL
    SELECT w.workflow_type, w.task_queue, w.status FROM kagzi.workflow_runs AS w
    WHERE w.status = 'RUNNING' AND ($1::text IS NULL OR w.namespace = $1::text)
) AS r
GROUP BY r.workflow_type, r.task_queue, r.status
LIMIT 10000;

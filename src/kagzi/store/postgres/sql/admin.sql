-- name: get_worker
-- One worker, and how many runs it holds; of one namespace or of any. Here and below one that was not heard of for a
-- certain time is OFFLINE, also while its row does not say so yet.
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency,
       CASE WHEN w.last_heartbeat_at <= coalesce($3::bigint, kagzi.clock()) - $4::bigint
            THEN 'OFFLINE' ELSE w.status END AS status,
       w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels,
       (SELECT count(*) FROM kagzi.workflow_runs AS r WHERE r.worker_id = w.worker_id AND r.status = 'RUNNING') AS active
FROM kagzi.workers AS w
WHERE w.worker_id = $1::uuid AND ($2::text IS NULL OR w.namespace = $2::text);

-- name: find_workers
-- Workers older than a position, the newest first. A filter that is NULL lets everything through.
WITH instant AS MATERIALIZED (
    SELECT coalesce($7::bigint, kagzi.clock()) - $8::bigint AS silent_since
)
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency,
       CASE WHEN w.last_heartbeat_at <= i.silent_since THEN 'OFFLINE' ELSE w.status END AS status,
       w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels,
       (SELECT count(*) FROM kagzi.workflow_runs AS r WHERE r.worker_id = w.worker_id AND r.status = 'RUNNING') AS active
FROM instant AS i CROSS JOIN kagzi.workers AS w
WHERE w.namespace = $1::text
  AND ($2::text IS NULL OR $2::text = ANY (w.queues))
  AND ($3::text IS NULL
       OR CASE WHEN w.last_heartbeat_at <= i.silent_since THEN 'OFFLINE' ELSE w.status END = $3::text)
  AND (w.registered_at < $4::bigint OR (w.registered_at = $4::bigint AND w.worker_id < $5::uuid))
ORDER BY w.registered_at DESC, w.worker_id DESC
LIMIT $6::integer;

-- name: drain_worker
-- Have a worker told to finish what it has.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), draining AS (
    UPDATE kagzi.workers AS w SET status = 'DRAINING'
    WHERE w.worker_id = $2::uuid AND w.status = 'ONLINE' AND ($3::text IS NULL OR w.namespace = $3::text)
    RETURNING w.namespace, w.worker_id
)
INSERT INTO kagzi.worker_events (namespace, worker_id, event, at)
SELECT d.namespace, d.worker_id, 'DRAINING', i.now FROM draining AS d CROSS JOIN instant AS i
RETURNING worker_id;

-- name: count_workers
-- Workers of one namespace, or of all, by status.
WITH instant AS MATERIALIZED (
    SELECT coalesce($2::bigint, kagzi.clock()) - $3::bigint AS silent_since
)
SELECT CASE WHEN w.last_heartbeat_at <= i.silent_since THEN 'OFFLINE' ELSE w.status END AS status, count(*) AS count
FROM instant AS i CROSS JOIN kagzi.workers AS w
WHERE $1::text IS NULL OR w.namespace = $1::text
GROUP BY 1;

-- name: count_live_runs
-- Runs that have not finished: of each queue up to a bound, so that a long one does not hide the others, and all that
-- are leased. The queues of a namespace are found by skipping along the index.
WITH wanted AS MATERIALIZED (
    SELECT $1::text AS namespace WHERE $1::text IS NOT NULL
    UNION ALL
    (SELECT n.namespace FROM kagzi.namespaces AS n WHERE $1::text IS NULL ORDER BY n.namespace LIMIT $4::integer)
), waiting AS MATERIALIZED (
    SELECT r.namespace, r.workflow_type, r.version, r.task_queue, r.status, r.created_at
    FROM wanted AS n
    CROSS JOIN LATERAL (
        WITH RECURSIVE queue AS (
            (SELECT w.task_queue FROM kagzi.workflow_runs AS w
             WHERE w.namespace = n.namespace AND w.status IN ('PENDING', 'SLEEPING')
             ORDER BY w.task_queue LIMIT 1)
            UNION ALL
            SELECT (SELECT w.task_queue FROM kagzi.workflow_runs AS w
                    WHERE w.namespace = n.namespace AND w.status IN ('PENDING', 'SLEEPING')
                      AND w.task_queue > q.task_queue
                    ORDER BY w.task_queue LIMIT 1)
            FROM queue AS q WHERE q.task_queue IS NOT NULL
        )
        SELECT q.task_queue FROM queue AS q WHERE q.task_queue IS NOT NULL LIMIT $5::integer
    ) AS q
    CROSS JOIN LATERAL (
        SELECT w.namespace, w.workflow_type, w.version, w.task_queue, w.status, w.created_at FROM kagzi.workflow_runs AS w
        WHERE w.namespace = n.namespace AND w.task_queue = q.task_queue AND w.status IN ('PENDING', 'SLEEPING')
        ORDER BY w.claim_key
        LIMIT $6::integer
    ) AS r
    LIMIT $7::integer
), leased AS MATERIALIZED (
    SELECT w.namespace, w.workflow_type, w.version, w.task_queue, w.status, w.created_at FROM kagzi.workflow_runs AS w
    WHERE w.status = 'RUNNING' AND ($1::text IS NULL OR w.namespace = $1::text)
    LIMIT $7::integer
)
SELECT r.namespace, r.workflow_type, r.task_queue, r.status, count(*) AS rows,
       count(*) FILTER (WHERE ($2::bigint IS NULL OR r.created_at > $2::bigint)
                          AND ($3::bigint IS NULL OR r.created_at < $3::bigint)) AS count,
       r.version, min(r.created_at) AS oldest_at
FROM (SELECT * FROM waiting UNION ALL SELECT * FROM leased) AS r
GROUP BY r.namespace, r.workflow_type, r.version, r.task_queue, r.status
LIMIT $8::integer;

-- name: count_newest_runs
-- The newest runs of a namespace, or of each.
WITH wanted AS MATERIALIZED (
    SELECT $1::text AS namespace WHERE $1::text IS NOT NULL
    UNION ALL
    (SELECT n.namespace FROM kagzi.namespaces AS n WHERE $1::text IS NULL ORDER BY n.namespace LIMIT $4::integer)
), newest AS MATERIALIZED (
    SELECT r.namespace, r.workflow_type, r.task_queue, r.status, r.created_at
    FROM wanted AS n
    CROSS JOIN LATERAL (
        SELECT w.namespace, w.workflow_type, w.task_queue, w.status, w.created_at FROM kagzi.workflow_runs AS w
        WHERE w.namespace = n.namespace
        ORDER BY w.run_id DESC
        LIMIT $5::integer
    ) AS r
    LIMIT $6::integer
)
SELECT r.namespace, r.workflow_type, r.task_queue, r.status, count(*) AS rows,
       count(*) FILTER (WHERE ($2::bigint IS NULL OR r.created_at > $2::bigint)
                          AND ($3::bigint IS NULL OR r.created_at < $3::bigint)) AS count
FROM newest AS r
GROUP BY r.namespace, r.workflow_type, r.task_queue, r.status
LIMIT $7::integer;

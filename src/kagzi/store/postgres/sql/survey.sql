-- name: survey
-- How much there is of everything, for people, and which run has waited longest for a worker. What waits is looked at up
-- to a bound.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), waiting AS MATERIALIZED (
    SELECT r.status, r.available_at, r.claim_key, r.namespace, r.run_id, r.task_queue, r.workflow_type, r.version
    FROM kagzi.workflow_runs AS r WHERE r.status IN ('PENDING', 'SLEEPING')
    LIMIT $2::integer
), counted AS (
    SELECT count(*) FILTER (WHERE w.status = 'PENDING') AS pending,
           count(*) FILTER (WHERE w.status = 'SLEEPING') AS sleeping
    FROM waiting AS w
), oldest AS (
    -- Of those that only a worker is missing for: what a limit, a rate or a pause holds back waits for something else.
    SELECT w.available_at, w.namespace, w.run_id, w.task_queue, w.workflow_type, w.version
    FROM instant AS i JOIN waiting AS w
        ON w.available_at <= i.now AND (w.claim_key <= i.now OR w.claim_key = 253402300799000002)
    WHERE NOT EXISTS (
        SELECT FROM kagzi.limits AS l
        WHERE l.namespace = w.namespace AND l.paused_at IS NOT NULL
          AND (l.scope = 'namespace' OR (l.scope = 'queue' AND l.name = w.task_queue)
               OR (l.scope = 'workflow' AND l.name = w.workflow_type)))
    ORDER BY w.available_at
    LIMIT 1
), crew AS (
    SELECT count(*) FILTER (WHERE w.status = 'ONLINE') AS workers_online,
           count(*) FILTER (WHERE w.status = 'DRAINING') AS workers_draining
    FROM kagzi.workers AS w
    WHERE w.status <> 'OFFLINE' AND w.last_heartbeat_at > (SELECT i.now FROM instant AS i) - $3::bigint
)
SELECT i.now, c.pending, c.sleeping, k.workers_online, k.workers_draining, o.available_at AS oldest_due_at,
       o.namespace, o.run_id, o.task_queue, o.workflow_type, o.version,
       (SELECT count(*) FROM kagzi.workflow_runs AS r WHERE r.status = 'RUNNING') AS running,
       (SELECT max(m.number) FROM kagzi.migrations AS m) AS schema
FROM instant AS i CROSS JOIN counted AS c CROSS JOIN crew AS k LEFT JOIN oldest AS o ON true;

-- name: queue_loads
-- What is due, queue by queue, with what is set aside because no worker executes it. The names of the queues are found by hopping over the index of claims from
-- one to the next, so that what sleeps is not looked at, however much it is; of a namespace so many, and no more.
WITH RECURSIVE queues AS (
    (SELECT r.namespace, r.task_queue, 1 AS of_namespace FROM kagzi.workflow_runs AS r
     WHERE r.status IN ('PENDING', 'SLEEPING') ORDER BY r.namespace, r.task_queue LIMIT 1)
    UNION ALL
    SELECT n.namespace, n.task_queue, CASE WHEN n.namespace = q.namespace THEN q.of_namespace + 1 ELSE 1 END
    FROM queues AS q
    CROSS JOIN LATERAL (
        (SELECT r.namespace, r.task_queue FROM kagzi.workflow_runs AS r
         WHERE q.of_namespace < $4::integer AND r.status IN ('PENDING', 'SLEEPING')
           AND (r.namespace, r.task_queue) > (q.namespace, q.task_queue)
         ORDER BY r.namespace, r.task_queue LIMIT 1)
        UNION ALL
        (SELECT r.namespace, r.task_queue FROM kagzi.workflow_runs AS r
         WHERE q.of_namespace >= $4::integer AND r.status IN ('PENDING', 'SLEEPING') AND r.namespace > q.namespace
         ORDER BY r.namespace, r.task_queue LIMIT 1)
    ) AS n
), instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
SELECT q.namespace, q.task_queue, c.ready, c.oldest_due_at
FROM (SELECT namespace, task_queue FROM queues LIMIT $2::integer) AS q
CROSS JOIN LATERAL (
    SELECT count(*) AS ready, min(d.available_at) AS oldest_due_at
    FROM (
        (SELECT r.available_at FROM kagzi.workflow_runs AS r
         WHERE r.namespace = q.namespace AND r.task_queue = q.task_queue AND r.status IN ('PENDING', 'SLEEPING')
           AND r.claim_key <= (SELECT i.now FROM instant AS i)
         ORDER BY r.claim_key
         LIMIT $3::integer)
        UNION ALL
        SELECT r.available_at FROM kagzi.workflow_runs AS r
        WHERE r.namespace = q.namespace AND r.task_queue = q.task_queue AND r.status IN ('PENDING', 'SLEEPING')
          AND r.claim_key = 253402300799000002
        LIMIT $3::integer
    ) AS d
) AS c;

-- name: worker_loads
-- Workers and their slots. Those online first: where there are more namespaces than are told of, one whose online workers
-- are left out is left out as a whole.
WITH instant AS MATERIALIZED (
    SELECT coalesce($2::bigint, kagzi.clock()) - $3::bigint AS silent_since
)
SELECT w.namespace, CASE WHEN w.last_heartbeat_at <= i.silent_since THEN 'OFFLINE' ELSE w.status END AS status,
       count(*) AS workers, sum(w.concurrency)::bigint AS slots
FROM instant AS i CROSS JOIN kagzi.workers AS w
GROUP BY 1, 2
ORDER BY 2 DESC
LIMIT $1::integer;

-- name: running_loads
-- Leased runs, of which a worker holds about a dozen for each of its slots at most; and what time it is.
SELECT coalesce($1::bigint, kagzi.clock()) AS now, r.namespace, r.running
FROM (SELECT 1) AS one
LEFT JOIN (
    SELECT l.namespace, count(*) AS running FROM kagzi.workflow_runs AS l
    WHERE l.status = 'RUNNING' GROUP BY l.namespace LIMIT $2::integer
) AS r ON true;

-- name: facts_of
-- Runs without their payloads.
SELECT r.namespace, r.run_id, r.workflow_type, r.task_queue, r.worker_id, r.started_at, r.finished_at
FROM unnest($1::text[], $2::uuid[]) AS w (namespace, run_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = w.namespace AND r.run_id = w.run_id AND {{is_run(r)}};

-- name: sample_runs
-- The newest runs of a workflow or of all, among so many of the namespace. Looks no further than it has to.
SELECT r.run_id, r.version, r.status, r.created_at, r.started_at, r.finished_at
FROM (
    SELECT n.run_id, n.version, n.status, n.created_at, n.started_at, n.finished_at, n.workflow_type
    FROM kagzi.workflow_runs AS n WHERE n.namespace = $1::text
    ORDER BY n.namespace DESC, n.run_id DESC LIMIT $3::integer) AS r
WHERE ($2::text IS NULL OR r.workflow_type = $2::text) AND {{is_run(r)}}
ORDER BY r.run_id DESC
LIMIT $4::integer;

-- name: sample_errors
-- What some of them failed with; and what time it is.
SELECT coalesce($3::bigint, kagzi.clock()) AS now, f.run_id, f.error
FROM (SELECT 1) AS one
LEFT JOIN (
    SELECT r.run_id, r.error FROM unnest($2::uuid[]) AS w (run_id)
    JOIN kagzi.workflow_runs AS r ON r.namespace = $1::text AND r.run_id = w.run_id AND {{is_run(r)}}
    WHERE r.error IS NOT NULL
) AS f ON true;

-- name: sample_steps
-- Attempts of steps of some of them that have ended, run by run.
SELECT s.run_id, s.step_id, s.status = 'FAILED' AS failed, s.retry_at IS NOT NULL AS retried, s.started_at, s.finished_at
FROM unnest($2::uuid[]) AS w (run_id)
CROSS JOIN LATERAL (
    SELECT * FROM kagzi.step_runs AS a
    WHERE a.namespace = $1::text AND a.run_id = w.run_id AND a.kind = 'FUNCTION'
      AND a.status IN ('COMPLETED', 'FAILED') AND a.finished_at IS NOT NULL
    LIMIT $3::integer
) AS s
LIMIT $3::integer;

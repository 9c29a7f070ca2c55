-- name: survey
-- How much there is of everything, for people. What waits is counted up to a bound.
SELECT sum(CASE WHEN w.status = 'PENDING' THEN 1 ELSE 0 END), sum(CASE WHEN w.status = 'SLEEPING' THEN 1 ELSE 0 END),
    min(CASE WHEN w.available_at <= ?1 THEN w.available_at END),
    (SELECT count(*) FROM workflow_runs WHERE status = 'RUNNING'),
    (SELECT count(*) FROM workers WHERE status = 'ONLINE'),
    (SELECT count(*) FROM workers WHERE status = 'DRAINING'),
    (SELECT max(number) FROM schema_migrations)
FROM (SELECT status, available_at FROM workflow_runs WHERE status IN ('PENDING', 'SLEEPING') LIMIT ?2) AS w;

-- name: queue_loads
-- What could be claimed now, queue by queue. The names of the queues are found by hopping over the index of claims from
-- one to the next, so that what sleeps is not looked at, however much it is.
WITH RECURSIVE queues (namespace, task_queue) AS (
    SELECT * FROM (SELECT namespace, task_queue FROM workflow_runs
                   WHERE status IN ('PENDING', 'SLEEPING') ORDER BY namespace, task_queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.namespace FROM workflow_runs AS r
            WHERE r.status IN ('PENDING', 'SLEEPING') AND (r.namespace, r.task_queue) > (q.namespace, q.task_queue)
            ORDER BY r.namespace, r.task_queue LIMIT 1),
           (SELECT r.task_queue FROM workflow_runs AS r
            WHERE r.status IN ('PENDING', 'SLEEPING') AND (r.namespace, r.task_queue) > (q.namespace, q.task_queue)
            ORDER BY r.namespace, r.task_queue LIMIT 1)
    FROM queues AS q
    WHERE q.namespace IS NOT NULL
    LIMIT ?2
)
SELECT q.namespace, q.task_queue,
    (SELECT count(*) FROM (SELECT 1 FROM workflow_runs AS r
                           WHERE r.namespace = q.namespace AND r.task_queue = q.task_queue
                             AND r.status IN ('PENDING', 'SLEEPING') AND r.claim_key <= ?1
                           ORDER BY r.claim_key LIMIT ?3)),
    (SELECT min(d.available_at) FROM (SELECT r.available_at FROM workflow_runs AS r
                                      WHERE r.namespace = q.namespace AND r.task_queue = q.task_queue
                                        AND r.status IN ('PENDING', 'SLEEPING') AND r.claim_key <= ?1
                                      ORDER BY r.claim_key LIMIT ?3) AS d)
FROM queues AS q
WHERE q.namespace IS NOT NULL;

-- name: worker_loads
-- Workers and their slots.
SELECT namespace, status, count(*), sum(concurrency) FROM workers GROUP BY namespace, status LIMIT ?1;

-- name: running_loads
-- Leased runs, of which there are never more than there are slots.
SELECT namespace, count(*) FROM workflow_runs WHERE status = 'RUNNING' GROUP BY namespace LIMIT ?1;

-- name: facts_of
-- What to count runs under.
SELECT r.namespace, r.run_id, r.workflow_type, r.started_at, r.finished_at
FROM json_each(?1) AS w
JOIN workflow_runs AS r
    ON r.namespace = json_extract(w.value, '$[0]') AND r.run_id = json_extract(w.value, '$[1]');

-- name: survey
-- How much there is of everything, for people. What waits is counted up to a bound.
SELECT sum(CASE WHEN w.status = 'PENDING' THEN 1 ELSE 0 END), sum(CASE WHEN w.status = 'SLEEPING' THEN 1 ELSE 0 END),
    (SELECT count(*) FROM workflow_runs WHERE status = 'RUNNING'),
    (SELECT count(*) FROM workers WHERE status = 'ONLINE' AND last_heartbeat_at > ?2),
    (SELECT count(*) FROM workers WHERE status = 'DRAINING' AND last_heartbeat_at > ?2),
    (SELECT max(number) FROM schema_migrations)
FROM (SELECT status FROM workflow_runs WHERE status IN ('PENDING', 'SLEEPING') LIMIT ?1) AS w;

-- name: oldest_due
-- The run that has waited longest, of those that only a worker is missing for: what a limit, a rate or a pause holds back
-- waits for something else. It is looked for among so many.
SELECT w.available_at, w.namespace, w.run_id, w.task_queue, w.workflow_type, w.version
FROM (SELECT * FROM workflow_runs WHERE status IN ('PENDING', 'SLEEPING') LIMIT ?2) AS w
WHERE w.available_at <= ?1 AND (w.claim_key <= ?1 OR w.claim_key = 253402300799000002)
  AND NOT EXISTS (
      SELECT 1 FROM limits AS l
      WHERE l.namespace = w.namespace AND l.paused_at IS NOT NULL
        AND (l.scope = 'namespace' OR (l.scope = 'queue' AND l.name = w.task_queue)
             OR (l.scope = 'workflow' AND l.name = w.workflow_type)))
ORDER BY w.available_at
LIMIT 1;

-- name: first_queue_after
-- The first queue in which runs wait, in the namespaces after this one; within one see next_queue.
SELECT namespace, task_queue FROM workflow_runs
WHERE status IN ('PENDING', 'SLEEPING') AND namespace > ?1
ORDER BY namespace, task_queue LIMIT 1;

-- name: queue_load
-- What is due in a queue, with what is set aside because no worker executes it.
SELECT count(*), min(d.available_at)
FROM (SELECT available_at FROM (
          SELECT available_at FROM workflow_runs
          WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING') AND claim_key <= ?3
          ORDER BY claim_key LIMIT ?4)
      UNION ALL
      SELECT available_at FROM workflow_runs
      WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING') AND claim_key = 253402300799000002
      LIMIT ?4) AS d;

-- name: worker_loads
-- Workers and their slots. Those online first: where there are more namespaces than are told of, one whose online workers
-- are left out is left out as a whole.
SELECT namespace, CASE WHEN last_heartbeat_at <= ?2 THEN 'OFFLINE' ELSE status END, count(*), sum(concurrency)
FROM workers GROUP BY 1, 2 ORDER BY 2 DESC LIMIT ?1;

-- name: running_loads
-- Leased runs, of which a worker holds about a dozen for each of its slots at most. The index has to be named: to group by
-- namespace SQLite would rather walk all runs in the order of their key.
SELECT namespace, count(*) FROM workflow_runs INDEXED BY workflow_runs_leased
WHERE status = 'RUNNING' GROUP BY namespace LIMIT ?1;

-- name: facts_of
-- Runs without their payloads.
SELECT r.namespace, r.run_id, r.workflow_type, r.task_queue, r.worker_id, r.started_at, r.finished_at
FROM json_each(?1) AS w
JOIN workflow_runs AS r
    ON r.namespace = json_extract(w.value, '$[0]') AND r.run_id = json_extract(w.value, '$[1]') AND {{is_run(r)}};

-- name: sample_runs
-- The newest runs of a workflow or of all, among so many of the namespace. Looks no further than it has to.
SELECT some.run_id, some.version, some.status, some.created_at, some.started_at, some.finished_at
FROM (
    SELECT n.run_id, n.version, n.status, n.created_at, n.started_at, n.finished_at, n.workflow_type
    FROM workflow_runs AS n WHERE n.namespace = ?1 ORDER BY n.run_id DESC LIMIT ?3) AS some
WHERE (?2 IS NULL OR some.workflow_type = ?2) AND {{is_run(some)}}
LIMIT ?4;

-- name: sample_errors
-- What some of them failed with.
SELECT r.run_id, r.error FROM json_each(?2) AS w
CROSS JOIN workflow_runs AS r ON r.namespace = ?1 AND r.run_id = w.value AND {{is_run(r)}}
WHERE r.error IS NOT NULL;

-- name: sample_steps
-- Attempts of steps of some of them that have ended, run by run.
SELECT s.run_id, s.step_id, s.status = 'FAILED', s.retry_at IS NOT NULL, s.started_at, s.finished_at
FROM json_each(?2) AS w
CROSS JOIN step_runs AS s ON s.namespace = ?1 AND s.run_id = w.value
WHERE s.kind = 'FUNCTION' AND s.status IN ('COMPLETED', 'FAILED') AND s.finished_at IS NOT NULL
LIMIT ?3;

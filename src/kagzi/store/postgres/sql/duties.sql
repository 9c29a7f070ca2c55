-- Duties of the coordinator. Each takes a few rows, skips those that somebody holds, and may run anywhere at once.

-- name: find_dead_leases
-- Runs whose lease has ended. There is no index on its end, so that heartbeats are HOT updates; the RUNNING rows are few
-- beside all others. A worker holds about a dozen for each of its slots at most: it drives one, ten wait in memory for a
-- moment, and the end of another is being stored.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
SELECT r.namespace, r.run_id, r.crashes, r.crashed_seq, i.now
FROM instant AS i
CROSS JOIN kagzi.workflow_runs AS r
WHERE r.status = 'RUNNING' AND r.lease_expires_at <= i.now
LIMIT $2::integer
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: last_events
-- How far runs have come. After their locks were taken, so that nothing can come in between.
SELECT k.place, (SELECT max(s.completed_seq) FROM kagzi.step_runs AS s
                 WHERE s.namespace = k.namespace AND s.run_id = k.run_id) AS completed_seq
FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS k (namespace, run_id, place)
ORDER BY k.place;

-- name: recover_runs
-- End dead leases: back to the queue, or FAILED when it has happened too often.
UPDATE kagzi.workflow_runs AS r SET
    status = CASE WHEN k.error IS NULL THEN 'PENDING' ELSE 'FAILED' END,
    token = NULL, poll = NULL, lease_expires_at = NULL,
    worker_id = CASE WHEN k.error IS NOT NULL THEN r.worker_id END,
    crashes = k.crashes, crashed_seq = k.crashed_seq,
    available_at = k.available_at,
    claim_key = CASE WHEN k.error IS NOT NULL THEN NULL
                     ELSE {{claim_key(k.available_at, r.priority, $1::bigint)}} END,
    finished_at = CASE WHEN k.error IS NOT NULL THEN $1::bigint END,
    error = coalesce(k.error, r.error)
FROM unnest($2::text[], $3::uuid[], $4::integer[], $5::integer[], $6::bigint[], $7::bytea[])
    AS k (namespace, run_id, crashes, crashed_seq, available_at, error)
WHERE r.namespace = k.namespace AND r.run_id = k.run_id
RETURNING {{changed_run}};

-- name: time_out_steps
-- Steps that run for too long: their attempt has failed, and their run goes to another worker.
-- `locked` may see a run as it is now while `overdue` saw the step as it was, so the step is looked at once more when
-- it is updated, and only runs with such a step lose their lease. A step whose run nobody drives is not running.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), overdue AS MATERIALIZED (
    SELECT s.namespace, s.run_id, s.step_id, s.attempt
    FROM kagzi.step_runs AS s
    WHERE s.status = 'RUNNING' AND s.timeout_at <= (SELECT i.now FROM instant AS i) - $2::bigint
    ORDER BY s.timeout_at
    LIMIT $3::integer
), locked AS MATERIALIZED (
    SELECT r.namespace, r.run_id, r.status
    FROM (SELECT DISTINCT o.namespace, o.run_id FROM overdue AS o) AS o
    JOIN kagzi.workflow_runs AS r ON r.namespace = o.namespace AND r.run_id = o.run_id
    FOR NO KEY UPDATE OF r SKIP LOCKED
), timed_out AS (
    UPDATE kagzi.step_runs AS s SET status = 'FAILED', finished_at = i.now, error = $4::bytea
    FROM overdue AS o
    JOIN locked AS l ON l.namespace = o.namespace AND l.run_id = o.run_id AND l.status = 'RUNNING'
    CROSS JOIN instant AS i
    WHERE s.namespace = o.namespace AND s.run_id = o.run_id AND s.step_id = o.step_id AND s.attempt = o.attempt
      AND s.status = 'RUNNING' AND s.timeout_at <= i.now - $2::bigint
    RETURNING s.namespace, s.run_id
), left_over AS (
    UPDATE kagzi.step_runs AS s SET timeout_at = NULL
    FROM overdue AS o
    WHERE s.namespace = o.namespace AND s.run_id = o.run_id AND s.step_id = o.step_id AND s.attempt = o.attempt
      AND s.status = 'RUNNING'
      AND ((o.namespace, o.run_id) IN (SELECT l.namespace, l.run_id FROM locked AS l WHERE l.status <> 'RUNNING')
           OR NOT EXISTS (SELECT FROM kagzi.workflow_runs AS r
                          WHERE r.namespace = o.namespace AND r.run_id = o.run_id))
)
UPDATE kagzi.workflow_runs AS r SET
    status = 'PENDING', token = NULL, worker_id = NULL, poll = NULL, lease_expires_at = NULL, available_at = i.now,
    claim_key = {{claim_key_of_now(r.priority, i.now)}}
FROM (SELECT DISTINCT t.namespace, t.run_id FROM timed_out AS t) AS t
CROSS JOIN instant AS i
WHERE r.namespace = t.namespace AND r.run_id = t.run_id
RETURNING {{changed_run}};

-- name: find_overdue_runs
-- Live runs past their deadline, whatever they are doing.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
SELECT r.namespace, r.run_id, i.now
FROM instant AS i
CROSS JOIN kagzi.workflow_runs AS r
WHERE r.deadline_at IS NOT NULL AND r.finished_at IS NULL AND r.deadline_at <= (SELECT i.now FROM instant AS i)
  AND r.status IN ('PENDING', 'RUNNING', 'SLEEPING')
ORDER BY r.deadline_at
LIMIT $2::integer
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- fragment: waits_for_queue(r, now)
-- Whether a run is due and its queue is full. One of a paused queue is not meant: nobody would come for it.
{r}.status <> 'RUNNING' AND {r}.claim_key <= {now} AND EXISTS (
        SELECT FROM kagzi.limits AS l
        WHERE l.namespace = {r}.namespace AND l.scope = 'queue' AND l.name = {r}.task_queue AND l.paused_at IS NULL
          AND coalesce(l.concurrency, l.declared) <= (
              SELECT count(*) FROM kagzi.workflow_runs AS x
              WHERE x.status = 'RUNNING' AND x.namespace = {r}.namespace AND x.task_queue = {r}.task_queue))

-- name: prolong_cancels
-- Give runs that were told to end and wait for a slot of their queue time to be claimed and to clean up.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), waiting AS MATERIALIZED (
    SELECT r.namespace, r.run_id
    FROM kagzi.workflow_runs AS r
    WHERE r.cancel_deadline IS NOT NULL AND r.finished_at IS NULL
      AND r.cancel_deadline <= (SELECT i.now FROM instant AS i) AND r.status IN ('PENDING', 'SLEEPING')
      AND {{waits_for_queue(r, (SELECT i.now FROM instant AS i))}}
    ORDER BY r.cancel_deadline
    LIMIT $2::integer
    FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE kagzi.workflow_runs AS r SET
    cancel_deadline = i.now + {{CANCEL_GRACE}}::bigint, held_key = {{place_of_cancelled(r, i.now)}}
FROM waiting AS w CROSS JOIN instant AS i
WHERE r.namespace = w.namespace AND r.run_id = w.run_id;

-- name: find_overdue_cancels
-- Live runs that were told to end and have used up their time, whatever they are doing, but waiting for a slot.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
SELECT r.namespace, r.run_id, i.now
FROM instant AS i
CROSS JOIN kagzi.workflow_runs AS r
WHERE r.cancel_deadline IS NOT NULL AND r.finished_at IS NULL AND r.cancel_deadline <= (SELECT i.now FROM instant AS i)
  AND r.status IN ('PENDING', 'RUNNING', 'SLEEPING') AND ({{waits_for_queue(r, i.now)}}) IS NOT TRUE
ORDER BY r.cancel_deadline
LIMIT $2::integer
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: prune_runs
-- Delete what its namespace no longer keeps, among the next few runs in the order of the primary key.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), looked AS MATERIALIZED (
    SELECT r.namespace, r.run_id, r.finished_at
    FROM kagzi.workflow_runs AS r
    WHERE (r.namespace, r.run_id) > ($2::text, $3::uuid)
    ORDER BY r.namespace, r.run_id
    LIMIT $4::integer
), doomed AS MATERIALIZED (
    SELECT r.namespace, r.run_id
    FROM looked AS l
    LEFT JOIN kagzi.namespaces AS n ON n.namespace = l.namespace
    JOIN kagzi.workflow_runs AS r ON r.namespace = l.namespace AND r.run_id = l.run_id
    CROSS JOIN instant AS i
    WHERE l.finished_at <= i.now - coalesce(n.retention_days, 30) * 86400000000::bigint
    FOR UPDATE OF r SKIP LOCKED
), {{delete_details_of_doomed}}, runs AS (
    DELETE FROM kagzi.workflow_runs AS r USING doomed AS d WHERE r.namespace = d.namespace AND r.run_id = d.run_id
)
SELECT (SELECT count(*)::integer FROM doomed) AS deleted, (SELECT count(*)::integer FROM looked) AS looked,
       l.namespace, l.run_id
FROM (SELECT 1) AS one
LEFT JOIN LATERAL (SELECT * FROM looked ORDER BY namespace DESC, run_id DESC LIMIT 1) AS l ON true;

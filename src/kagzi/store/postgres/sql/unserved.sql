-- name: live_offers
-- What workers that are not lost execute, and what time it is.
SELECT i.now, w.namespace, w.queues, w.types, w.versions
FROM (SELECT coalesce($1::bigint, kagzi.clock()) AS now) AS i
LEFT JOIN kagzi.workers AS w ON w.status <> 'OFFLINE' AND w.last_heartbeat_at > i.now - $2::bigint;

-- name: is_any_aside
-- Whether runs are set aside.
SELECT EXISTS (SELECT FROM kagzi.workflow_runs AS r WHERE r.claim_key = 253402300799000002);

-- name: served_aside
-- Queues, workflows and versions of which runs are set aside although these offers serve them: for an offer of any version
-- the first one. Asks for what is served, however much is set aside beside it that nobody serves.
SELECT DISTINCT n.namespace, n.task_queue, n.workflow_type, n.version
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS o (namespace, task_queue, workflow_type, version)
CROSS JOIN LATERAL (
    SELECT r.namespace, r.task_queue, r.workflow_type, r.version FROM kagzi.workflow_runs AS r
    WHERE r.claim_key = 253402300799000002 AND r.namespace = o.namespace AND r.task_queue = o.task_queue
      AND r.workflow_type = o.workflow_type AND r.version >= coalesce(o.version, '')
    ORDER BY r.namespace, r.task_queue, r.workflow_type, r.version LIMIT 1
) AS n
WHERE o.version IS NULL OR n.version = o.version;

-- name: bring_back
-- A worker executes these again. The first come first, at the place they had. Those that somebody changes meanwhile wait
-- for the next look.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), back AS MATERIALIZED (
    SELECT r.namespace, r.run_id FROM kagzi.workflow_runs AS r
    WHERE r.claim_key = 253402300799000002 AND r.namespace = $2::text AND r.task_queue = $3::text
      AND r.workflow_type = $4::text AND r.version = $5::text
    ORDER BY r.available_at
    LIMIT $6::integer
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE kagzi.workflow_runs AS r SET claim_key = {{claim_key(r.available_at, r.priority, i.now)}}
FROM back AS b CROSS JOIN instant AS i
WHERE r.namespace = b.namespace AND r.run_id = b.run_id
RETURNING r.run_id;

-- name: find_overdue
-- What has been due for long, queue by queue, in the order of claiming.
SELECT d.namespace, d.run_id, d.task_queue, d.workflow_type, d.version
FROM unnest($1::text[], $2::text[]) AS q (namespace, task_queue)
CROSS JOIN LATERAL (
    SELECT r.namespace, r.run_id, r.task_queue, r.workflow_type, r.version FROM kagzi.workflow_runs AS r
    WHERE r.namespace = q.namespace AND r.task_queue = q.task_queue AND r.status IN ('PENDING', 'SLEEPING')
      AND r.claim_key <= $3::bigint
    ORDER BY r.namespace, r.task_queue, r.claim_key
    LIMIT $4::integer
) AS d;

-- name: set_aside
-- No worker of their queue executes these. What is claimed or changed meanwhile stays as it is: only what waits has a
-- claim key. (With its status in the condition the planner may walk over all that waits, by the index of claims.)
WITH due AS MATERIALIZED (
    SELECT r.run_id FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = ANY ($2::uuid[]) AND r.claim_key <= $3::bigint
    ORDER BY r.run_id
    FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE kagzi.workflow_runs AS r SET claim_key = 253402300799000002
FROM due AS d
WHERE r.namespace = $1::text AND r.run_id = d.run_id
RETURNING r.run_id;

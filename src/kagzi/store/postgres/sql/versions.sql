-- Written in transactions that lock no run.

-- name: remember_types
-- What a worker offers. Reads only, unless something is new: two workers that register with the same types wait for each
-- other in the order of their names. A type that waits in a queue of its own is offered there and nowhere else. A summary
-- of NULL is that of a worker that describes nothing: what others have told stays.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), offered AS (
    SELECT o.workflow_type, o.version, min(o.queue) AS queue,
           CASE WHEN min(o.queue) IS NULL THEN $6::text[] ELSE ARRAY[min(o.queue)] END AS queues,
           min(o.summary) AS summary, min(o.input_schema) AS input_schema, min(o.start_defaults) AS start_defaults
    FROM unnest($3::text[], $4::text[], $5::text[], $10::text[], $11::text[], $12::text[])
        AS o (workflow_type, version, queue, summary, input_schema, start_defaults)
    GROUP BY o.workflow_type, o.version
)
INSERT INTO kagzi.workflow_types AS t
    (namespace, workflow_type, version, queues, first_seen_at, last_seen_at, summary, input_schema, start_defaults)
SELECT $2::text, o.workflow_type, o.version, o.queues, i.now, i.now, o.summary, o.input_schema, o.start_defaults
FROM offered AS o
CROSS JOIN instant AS i
LEFT JOIN kagzi.workflow_types AS k
    ON k.namespace = $2::text AND k.workflow_type = o.workflow_type AND k.version = o.version
WHERE k.version IS NULL OR k.last_seen_at <= i.now - $7::bigint
   OR CASE WHEN o.queue IS NULL THEN NOT k.queues @> o.queues ELSE k.queues <> o.queues END
   OR (o.summary IS NOT NULL
       AND (o.summary, o.input_schema, o.start_defaults)
           IS DISTINCT FROM (k.summary, k.input_schema, k.start_defaults))
ORDER BY o.workflow_type COLLATE "C", o.version COLLATE "C"
ON CONFLICT (namespace, workflow_type, version) DO UPDATE SET
    last_seen_at = EXCLUDED.last_seen_at,
    summary = coalesce(EXCLUDED.summary, t.summary),
    input_schema = CASE WHEN EXCLUDED.summary IS NULL THEN t.input_schema ELSE EXCLUDED.input_schema END,
    start_defaults = CASE WHEN EXCLUDED.summary IS NULL THEN t.start_defaults ELSE EXCLUDED.start_defaults END,
    queues = CASE WHEN EXCLUDED.workflow_type = ANY ($8::text[]) THEN EXCLUDED.queues ELSE ARRAY(
        SELECT DISTINCT q.queue COLLATE "C" FROM unnest(t.queues || EXCLUDED.queues) AS q (queue)
        ORDER BY 1 LIMIT $9::integer) END;

-- name: read_interface
-- What was told of a version, or of every version by workers that execute all of them.
SELECT t.workflow_type, t.version, t.summary, t.input_schema, t.start_defaults
FROM kagzi.workflow_types AS t
WHERE t.namespace = $1::text AND t.workflow_type = $2::text AND t.version IN ($3::text, '')
ORDER BY t.version COLLATE "C" DESC
LIMIT 1;

-- name: resolve_version
-- Which version a run gets whose start names none, and what is told of it or of the version that is named.
SELECT v.version, t.version, t.input_schema, t.start_defaults
FROM (SELECT coalesce($3::text, kagzi.resolve_version($1::text, $2::text)) AS version) AS v
LEFT JOIN LATERAL (
    SELECT t.version, t.input_schema, t.start_defaults FROM kagzi.workflow_types AS t
    WHERE t.namespace = $1::text AND t.workflow_type = $2::text AND t.version IN (v.version, '')
    ORDER BY t.version COLLATE "C" DESC
    LIMIT 1
) AS t ON true;

-- name: set_default_version
-- Choose what starts by name get, if a worker has ever offered it or everything is allowed.
INSERT INTO kagzi.default_versions (namespace, workflow_type, version, set_at)
SELECT $2::text, $3::text, $4::text, coalesce($1::bigint, kagzi.clock())
WHERE $5::boolean OR EXISTS (
    SELECT FROM kagzi.workflow_types AS t
    WHERE t.namespace = $2::text AND t.workflow_type = $3::text AND t.version IN ($4::text, ''))
ON CONFLICT (namespace, workflow_type) DO UPDATE SET version = EXCLUDED.version, set_at = EXCLUDED.set_at
RETURNING version;

-- name: forget_default_version
-- Nobody chooses any more.
DELETE FROM kagzi.default_versions AS d WHERE d.namespace = $1::text AND d.workflow_type = $2::text;

-- name: list_versions
-- What workers have offered or somebody has chosen; the newest of each workflow first.
SELECT k.workflow_type, k.version, t.queues, t.first_seen_at, t.last_seen_at, d.version IS NOT NULL AS chosen, t.summary,
       kagzi.resolve_version($1::text, k.workflow_type) AS resolved
FROM (
    SELECT t.workflow_type, t.version FROM kagzi.workflow_types AS t WHERE t.namespace = $1::text
    UNION
    SELECT d.workflow_type, d.version FROM kagzi.default_versions AS d WHERE d.namespace = $1::text
) AS k
LEFT JOIN kagzi.workflow_types AS t
    ON t.namespace = $1::text AND t.workflow_type = k.workflow_type AND t.version = k.version
LEFT JOIN kagzi.default_versions AS d
    ON d.namespace = $1::text AND d.workflow_type = k.workflow_type AND d.version = k.version
WHERE $2::text IS NULL OR k.workflow_type = $2::text
ORDER BY k.workflow_type COLLATE "C", t.first_seen_at DESC NULLS LAST, length(k.version) DESC, k.version COLLATE "C" DESC
LIMIT $3::integer;

-- name: online_offers
-- What workers that are online execute.
SELECT w.types, w.versions FROM kagzi.workers AS w
WHERE w.namespace = $1::text AND w.status = 'ONLINE'
  AND w.last_heartbeat_at > coalesce($2::bigint, kagzi.clock()) - $3::bigint
ORDER BY w.worker_id
LIMIT $4::integer;

-- name: forget_types
-- Types that were not offered for longer than their namespace keeps what is over: no worker that is still remembered has
-- them either.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), unseen AS MATERIALIZED (
    SELECT t.namespace, t.workflow_type, t.version
    FROM kagzi.workflow_types AS t
    LEFT JOIN kagzi.namespaces AS n ON n.namespace = t.namespace
    CROSS JOIN instant AS i
    WHERE t.last_seen_at <= i.now - coalesce(n.retention_days, 30) * 86400000000::bigint
      AND NOT EXISTS (
          SELECT FROM kagzi.workers AS w CROSS JOIN unnest(w.types, w.versions) AS o (workflow_type, version)
          WHERE w.namespace = t.namespace AND o.workflow_type = t.workflow_type AND o.version = t.version)
    LIMIT $2::integer
    FOR UPDATE OF t SKIP LOCKED
)
DELETE FROM kagzi.workflow_types AS t USING unseen AS u
WHERE t.namespace = u.namespace AND t.workflow_type = u.workflow_type AND t.version = u.version
RETURNING t.version;

-- name: waiting_page
-- Runs that wait or sleep, in the order of claiming.
SELECT r.task_queue, r.claim_key, r.run_id, r.workflow_type = $2::text AND r.version = $3::text AS asked
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.status IN ('PENDING', 'SLEEPING')
  AND (r.task_queue, r.claim_key, r.run_id) > ($4::text, $5::bigint, $6::uuid)
ORDER BY r.task_queue, r.claim_key, r.run_id
LIMIT $7::integer;

-- name: move_runs
-- Another version for runs that nobody holds, locked in one order. The condition is looked at once more when the lock is
-- there: what was claimed meanwhile stays as it is.
WITH locked AS MATERIALIZED (
    SELECT r.run_id FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = ANY ($2::uuid[]) AND r.version = $3::text
      AND r.status IN ('PENDING', 'SLEEPING')
    ORDER BY r.run_id
    FOR NO KEY UPDATE OF r
)
UPDATE kagzi.workflow_runs AS r SET version = $4::text
FROM locked AS l
WHERE r.namespace = $1::text AND r.run_id = l.run_id
RETURNING r.run_id, r.task_queue;

-- name: move_checked_runs
-- Another version for runs that nobody holds, and that nobody has claimed since they were looked at: their history may
-- have grown. Locked and looked at as in move_runs.
WITH locked AS MATERIALIZED (
    SELECT r.run_id FROM kagzi.workflow_runs AS r
    JOIN unnest($2::uuid[], $3::integer[]) AS c (run_id, executions) ON c.run_id = r.run_id
    WHERE r.namespace = $1::text AND r.run_id = ANY ($2::uuid[]) AND r.workflow_type = $4::text AND r.version = $5::text
      AND r.executions = c.executions AND r.status IN ('PENDING', 'SLEEPING')
    ORDER BY r.run_id
    FOR NO KEY UPDATE OF r
)
UPDATE kagzi.workflow_runs AS r SET version = $6::text
FROM locked AS l
WHERE r.namespace = $1::text AND r.run_id = l.run_id
RETURNING r.task_queue;

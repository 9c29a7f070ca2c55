-- Pauses and limits of queues, workflows and namespaces.

-- fragment: limit_columns
-- What a limit says.
l.namespace, l.scope, l.name, l.paused_at, l.paused_by, l.pause_reason, l.concurrency, l.declared, l.key_concurrency,
    l.key_declared, l.shares, l.rate, l.rate_declared, l.key_rate, l.key_rate_declared, l.fair

-- fragment: limits_nothing
-- Whether nothing is left of a limit `l`. One of a workflow stays until nothing is held for it any more.
l.paused_at IS NULL AND l.concurrency IS NULL AND l.declared IS NULL AND l.key_concurrency IS NULL
    AND l.key_declared IS NULL AND l.shares IS NULL AND l.rate IS NULL AND l.rate_declared IS NULL AND l.key_rate IS NULL
    AND l.key_rate_declared IS NULL AND NOT l.fair

-- name: list_limits
-- What holds back runs of a namespace. Compared byte by byte, as SQLite does.
SELECT {{limit_columns}} FROM kagzi.limits AS l WHERE l.namespace = $1::text AND NOT ({{limits_nothing}})
ORDER BY l.scope COLLATE "C", l.name COLLATE "C";

-- name: pause
-- Hand out nothing of this; what is paused already stays as it is.
INSERT INTO kagzi.limits AS l (namespace, scope, name, paused_at, paused_by, pause_reason, updated_at)
SELECT $2::text, $3::text, $4::text, i.now, $5::text, $6::text, i.now
FROM (SELECT coalesce($1::bigint, kagzi.clock()) AS now) AS i
ON CONFLICT (namespace, scope, name) DO UPDATE SET
    paused_at = coalesce(l.paused_at, EXCLUDED.paused_at),
    paused_by = CASE WHEN l.paused_at IS NULL THEN EXCLUDED.paused_by ELSE l.paused_by END,
    pause_reason = CASE WHEN l.paused_at IS NULL THEN EXCLUDED.pause_reason ELSE l.pause_reason END,
    updated_at = CASE WHEN l.paused_at IS NULL THEN EXCLUDED.updated_at ELSE l.updated_at END
RETURNING {{limit_columns}};

-- name: resume
-- Hand it out again.
UPDATE kagzi.limits AS l SET paused_at = NULL, paused_by = NULL, pause_reason = NULL,
    updated_at = coalesce($1::bigint, kagzi.clock())
WHERE l.namespace = $2::text AND l.scope = $3::text AND l.name = $4::text;

-- name: set_limit
-- Let so many run at once, and begin so often. What is -1 or empty stays as it is.
INSERT INTO kagzi.limits AS l (namespace, scope, name, concurrency, key_concurrency, rate, key_rate, updated_at)
SELECT $2::text, $3::text, $4::text, nullif($5::integer, -1), nullif($6::integer, -1), nullif($7::text, ''),
       nullif($8::text, ''), coalesce($1::bigint, kagzi.clock())
ON CONFLICT (namespace, scope, name) DO UPDATE SET
    concurrency = CASE WHEN $5::integer = -1 THEN l.concurrency ELSE $5::integer END,
    key_concurrency = CASE WHEN $6::integer = -1 THEN l.key_concurrency ELSE $6::integer END,
    rate = CASE WHEN $7::text = '' THEN l.rate ELSE $7::text END,
    key_rate = CASE WHEN $8::text = '' THEN l.key_rate ELSE $8::text END,
    updated_at = EXCLUDED.updated_at;

-- name: declare_limit
-- The smallest that live workers declare.
INSERT INTO kagzi.limits AS l (namespace, scope, name, declared, key_declared, shares, rate_declared,
    key_rate_declared, fair, updated_at)
SELECT $2::text, $3::text, $4::text, $5::integer, $6::integer, $7::text, $8::text, $9::text, $10::boolean,
       coalesce($1::bigint, kagzi.clock())
ON CONFLICT (namespace, scope, name) DO UPDATE SET
    declared = EXCLUDED.declared, key_declared = EXCLUDED.key_declared, shares = EXCLUDED.shares,
    rate_declared = EXCLUDED.rate_declared, key_rate_declared = EXCLUDED.key_rate_declared, fair = EXCLUDED.fair,
    updated_at = EXCLUDED.updated_at;

-- name: live_extras
-- What live workers say of themselves.
SELECT w.queues, w.labels FROM kagzi.workers AS w
WHERE w.namespace = $1::text AND w.status <> 'OFFLINE' AND w.labels IS NOT NULL;

-- name: forget_limits
-- Limits of which nothing is left; those of workflows only if nothing is held. Locked in the order of lock_limits.
DELETE FROM kagzi.limits AS d
USING (
    SELECT l.namespace, l.scope, l.name FROM kagzi.limits AS l
    WHERE l.namespace = $1::text AND (l.scope <> 'workflow' OR $2::boolean) AND {{limits_nothing}}
    ORDER BY l.namespace, l.scope, l.name FOR UPDATE
) AS n
WHERE d.namespace = n.namespace AND d.scope = n.scope AND d.name = n.name;

-- name: limited_namespaces
-- Where anything is limited.
SELECT DISTINCT l.namespace FROM kagzi.limits AS l;

-- name: lock_limits
-- All limits of a namespace, in one order. What is counted for them is counted in later statements: this one's snapshot
-- may be older than the lock it has waited for.
SELECT {{limit_columns}} FROM kagzi.limits AS l WHERE l.namespace = $1::text
ORDER BY l.namespace, l.scope, l.name FOR UPDATE;

-- name: count_limited
-- What runs in a namespace, as limits count it.
SELECT r.task_queue, r.workflow_type, coalesce(r.limit_name, r.workflow_type) AS limit_name,
       coalesce(r.limit_key, '') AS limit_key, count(*)::integer AS runs
FROM kagzi.workflow_runs AS r
WHERE r.status = 'RUNNING' AND r.namespace = $1::text
GROUP BY 1, 2, 3, 4;

-- name: find_due_limited
-- The due runs of queues that have waited longest, with what limits ask for. Locks nothing: those that are not limited are
-- for others to claim.
SELECT coalesce($1::bigint, kagzi.clock()) AS now, d.*
FROM unnest($3::text[]) AS q (task_queue)
CROSS JOIN LATERAL (
    SELECT r.run_id, r.task_queue, r.workflow_type, coalesce(r.limit_name, r.workflow_type) AS limit_name,
           coalesce(r.limit_key, '') AS limit_key, r.claim_key, r.executions = 0 AS first, r.version
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $2::text AND r.task_queue = q.task_queue AND r.status IN ('PENDING', 'SLEEPING')
      AND r.claim_key <= (SELECT coalesce($1::bigint, kagzi.clock()))
      AND substr(r.token::text, 9) IS DISTINCT FROM substr($4::uuid::text, 9)
      AND (r.workflow_type = ANY ($5::text[])
           OR length(r.workflow_type) || ':' || r.workflow_type || r.version = ANY ($6::text[]))
    ORDER BY r.namespace, r.task_queue, r.claim_key
    LIMIT $7::integer
) AS d
ORDER BY d.claim_key, d.run_id;

-- name: claim_limited
-- Lease these runs, as claim_runs does. Those that somebody else has locked or taken stay out: only what waits has a claim
-- key. So do those that a debounced start has joined since they were chosen, if they count for another limit or are of
-- another version now: they are chosen anew.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), due AS MATERIALIZED (
    SELECT r.namespace, r.run_id, r.claim_key
    FROM unnest($7::uuid[], $8::text[], $9::text[], $10::text[]) AS c (run_id, limit_name, limit_key, version)
    JOIN kagzi.workflow_runs AS r ON r.namespace = $3::text AND r.run_id = c.run_id
    WHERE r.claim_key <= (SELECT i.now FROM instant AS i) AND r.version = c.version
      AND coalesce(r.limit_name, r.workflow_type) = c.limit_name AND coalesce(r.limit_key, '') = c.limit_key
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE kagzi.workflow_runs AS r SET
    {{lease_of_poll(r, i.now)}}
FROM due AS d CROSS JOIN instant AS i
WHERE r.namespace = d.namespace AND r.run_id = d.run_id
RETURNING d.claim_key AS place, {{claim_columns(r)}},
          r.executions = 1 AND r.origin_run_id IS NULL AND r.inbox_seq = 0 AS fresh, true AS limited;

-- name: hold_runs
-- There is no room for these runs. They keep their place in their line; where there are rates, those that have begun come
-- first (by 2^50 in held_key), since no rate holds them. Those that were told to end have more time for it while they are
-- held: free_lines takes it from them again. Those that somebody has locked are left: they are met again. Only what waits has a claim key; to ask for its status as well lets the planner walk over all that waits, by the
-- index of claims, instead of finding these few by their ids.
UPDATE kagzi.workflow_runs AS r
SET held_key = coalesce(r.held_key,
        r.claim_key - CASE WHEN $4::boolean AND r.executions > 0 THEN 1125899906842624 ELSE 0 END),
    claim_key = 253402300799000001, limit_name = coalesce(r.limit_name, r.workflow_type),
    limit_key = coalesce(r.limit_key, ''), cancel_deadline = r.cancel_deadline + {{HELD_GRACE}}::bigint
FROM (
    SELECT h.namespace, h.run_id
    FROM kagzi.workflow_runs AS h
    WHERE h.namespace = $2::text AND h.run_id = ANY ($3::uuid[])
      AND h.claim_key <= coalesce($1::bigint, kagzi.clock())
    FOR UPDATE SKIP LOCKED
) AS k
WHERE r.namespace = k.namespace AND r.run_id = k.run_id;

-- name: find_lines
-- Lines behind another one, with how many of each are claimable and how many are held, up to a bound, and the place of the
-- first that is held. Goes from line to line
-- by the index, however many runs are in one.
WITH RECURSIVE line AS (
    (SELECT r.limit_name, r.limit_key, r.task_queue, r.workflow_type, r.version, 1 AS place
     FROM kagzi.workflow_runs AS r
     WHERE r.namespace = $2::text AND r.held_key IS NOT NULL AND r.status IN ('PENDING', 'SLEEPING')
       AND (r.limit_name, r.limit_key, r.task_queue, r.workflow_type, r.version)
           > ($3::text, $4::text, $5::text, $6::text, $7::text)
     ORDER BY r.limit_name, r.limit_key, r.task_queue, r.workflow_type, r.version
     LIMIT 1)
    UNION ALL
    SELECT n.limit_name, n.limit_key, n.task_queue, n.workflow_type, n.version, l.place + 1
    FROM line AS l
    CROSS JOIN LATERAL (
        SELECT r.limit_name, r.limit_key, r.task_queue, r.workflow_type, r.version
        FROM kagzi.workflow_runs AS r
        WHERE r.namespace = $2::text AND r.held_key IS NOT NULL AND r.status IN ('PENDING', 'SLEEPING')
          AND (r.limit_name, r.limit_key, r.task_queue, r.workflow_type, r.version)
              > (l.limit_name, l.limit_key, l.task_queue, l.workflow_type, l.version)
        ORDER BY r.limit_name, r.limit_key, r.task_queue, r.workflow_type, r.version
        LIMIT 1
    ) AS n
    WHERE l.place < $8::integer
)
SELECT l.limit_name, l.limit_key, l.task_queue, l.workflow_type, l.version,
       (SELECT count(*)::integer FROM (
           SELECT FROM kagzi.workflow_runs AS r
           WHERE r.namespace = $2::text AND r.limit_name = l.limit_name AND r.limit_key = l.limit_key
             AND r.task_queue = l.task_queue AND r.workflow_type = l.workflow_type AND r.version = l.version
             AND r.held_key IS NOT NULL AND r.status IN ('PENDING', 'SLEEPING')
             AND r.claim_key <= coalesce($1::bigint, kagzi.clock())
           LIMIT $9::integer) AS c) AS ready,
       (SELECT count(*)::integer FROM (
           SELECT FROM kagzi.workflow_runs AS r
           WHERE r.namespace = $2::text AND r.limit_name = l.limit_name AND r.limit_key = l.limit_key
             AND r.task_queue = l.task_queue AND r.workflow_type = l.workflow_type AND r.version = l.version
             AND r.held_key IS NOT NULL AND r.status IN ('PENDING', 'SLEEPING')
             AND r.claim_key = 253402300799000001
           LIMIT $9::integer) AS c) AS held,
       (SELECT r.held_key FROM kagzi.workflow_runs AS r
        WHERE r.namespace = $2::text AND r.limit_name = l.limit_name AND r.limit_key = l.limit_key
          AND r.task_queue = l.task_queue AND r.workflow_type = l.workflow_type AND r.version = l.version
          AND r.held_key IS NOT NULL AND r.status IN ('PENDING', 'SLEEPING') AND r.claim_key = 253402300799000001
        ORDER BY r.held_key LIMIT 1) AS first,
       EXISTS (
           SELECT FROM kagzi.workflow_runs AS r
           WHERE r.namespace = $2::text AND r.limit_name = l.limit_name AND r.limit_key = l.limit_key
             AND r.task_queue = l.task_queue AND r.workflow_type = l.workflow_type AND r.version = l.version
             AND r.held_key IS NOT NULL AND r.status IN ('PENDING', 'SLEEPING')
             AND r.claim_key > coalesce($1::bigint, kagzi.clock()) AND r.claim_key < 253402300799000001) AS later
FROM line AS l
ORDER BY l.place;

-- name: free_lines
-- The first of these lines can be claimed again, at the place they had, or at a moment. Those that were told to end have
-- what was left of their time, and enough to be claimed and to clean up. They are found in a CTE, which runs
-- once: as part of a join the LIMIT may apply anew for every row.
WITH freed AS MATERIALIZED (
    SELECT f.run_id, l.at
    FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[], $9::bigint[])
        AS l (limit_name, limit_key, task_queue, workflow_type, version, wanted, at)
    CROSS JOIN LATERAL (
        SELECT h.run_id
        FROM kagzi.workflow_runs AS h
        WHERE h.namespace = $2::text AND h.limit_name = l.limit_name AND h.limit_key = l.limit_key
          AND h.task_queue = l.task_queue AND h.workflow_type = l.workflow_type AND h.version = l.version
          AND h.held_key IS NOT NULL AND h.status IN ('PENDING', 'SLEEPING') AND h.claim_key = 253402300799000001
        ORDER BY h.held_key
        LIMIT l.wanted
        FOR UPDATE SKIP LOCKED
    ) AS f
)
UPDATE kagzi.workflow_runs AS r SET claim_key = coalesce(k.at, least(
    r.held_key + CASE WHEN r.held_key < 1125899906842624 THEN 1125899906842624 ELSE 0 END,
    coalesce($1::bigint, kagzi.clock()))),
    cancel_deadline = CASE WHEN r.cancel_deadline IS NOT NULL THEN
        greatest(r.cancel_deadline - {{HELD_GRACE}}::bigint,
                 coalesce(k.at, $1::bigint, kagzi.clock()) + {{CANCEL_GRACE}}::bigint) END
FROM freed AS k
WHERE r.namespace = $2::text AND r.run_id = k.run_id
RETURNING r.task_queue;

-- name: read_waiting
-- A run that waits to be claimed, as limits see it, and its place in its line.
SELECT r.run_id, r.task_queue, r.workflow_type, coalesce(r.limit_name, r.workflow_type) AS limit_name,
       coalesce(r.limit_key, '') AS limit_key,
       CASE WHEN r.claim_key = 253402300799000001 THEN r.held_key ELSE r.claim_key END AS place,
       r.executions = 0 AS first, r.version, coalesce($3::bigint, kagzi.clock()) AS now
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.status IN ('PENDING', 'SLEEPING');

-- name: count_before
-- How many are held before a place of a line, up to a bound. Many that were started in one batch share a place, and stand
-- in it as their ids do.
SELECT count(*)::integer FROM (
    SELECT FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.limit_name = $2::text AND r.limit_key = $3::text AND r.task_queue = $4::text
      AND r.workflow_type = $5::text AND r.version = $6::text AND r.held_key IS NOT NULL
      AND r.status IN ('PENDING', 'SLEEPING') AND r.claim_key = 253402300799000001 AND r.held_key <= $7::bigint
      AND (r.held_key < $7::bigint OR r.run_id < $9::uuid)
    LIMIT $8::integer) AS c;

-- name: count_due_before
-- How many of a queue are due before another one, up to a bound.
SELECT count(*)::integer FROM (
    SELECT FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.task_queue = $2::text AND r.status IN ('PENDING', 'SLEEPING')
      AND r.claim_key <= $3::bigint AND (r.claim_key < $3::bigint OR r.run_id < $5::uuid)
    LIMIT $4::integer) AS c;

-- name: read_turns
-- Where these rates and turns stand.
SELECT t.scope, t.name, t.limit_key, t.turn
FROM unnest($2::text[], $3::text[], $4::text[]) AS k (scope, name, limit_key)
JOIN kagzi.limit_turns AS t
    ON t.namespace = $1::text AND t.scope = k.scope AND t.name = k.name AND t.limit_key = k.limit_key COLLATE "C";

-- name: write_turns
-- Where they stand now.
INSERT INTO kagzi.limit_turns (namespace, scope, name, limit_key, turn)
SELECT $1::text, k.scope, k.name, k.limit_key, k.turn
FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) AS k (scope, name, limit_key, turn)
ON CONFLICT (namespace, scope, name, limit_key) DO UPDATE SET turn = EXCLUDED.turn;

-- name: delete_turns
-- What says nothing any more, some of it.
DELETE FROM kagzi.limit_turns AS t
WHERE (t.namespace, t.scope, t.name, t.limit_key) IN (
    SELECT o.namespace, o.scope, o.name, o.limit_key FROM kagzi.limit_turns AS o
    WHERE o.namespace = $2::text AND o.turn < coalesce($1::bigint, kagzi.clock()) - 60 * 1000000
    LIMIT 500);

-- name: forget_turns
-- Runs that were told when to come are held until they are told anew: their rate has changed.
UPDATE kagzi.workflow_runs AS r SET claim_key = 253402300799000001,
    cancel_deadline = r.cancel_deadline + {{HELD_GRACE}}::bigint
FROM (
    SELECT h.namespace, h.run_id FROM kagzi.workflow_runs AS h
    WHERE h.namespace = $2::text AND h.held_key IS NOT NULL AND h.status IN ('PENDING', 'SLEEPING')
      AND h.claim_key > coalesce($1::bigint, kagzi.clock()) AND h.claim_key < 253402300799000001
    FOR UPDATE SKIP LOCKED
) AS k
WHERE r.namespace = k.namespace AND r.run_id = k.run_id;

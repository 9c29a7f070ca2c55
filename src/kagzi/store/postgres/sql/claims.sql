-- name: claim_runs
-- Lease the due runs that have waited longest, or find again what this very poll has claimed before: its first answer
-- was lost, so for the worker the lease begins now. Always one row with the time, even if there is no run in it. The
-- limit is applied inside a CTE, which runs once; under IN (SELECT … LIMIT) it may run again for every row and claim
-- more than the limit. The token begins with how often the run was claimed: a poll that arrives twice must not revive
-- what was written under its first lease. `lease_length` is fixed with the first claim, so that heartbeats know what
-- to renew a lease to. A `fresh` run has no history: nobody has driven it, it repeats no other, nothing was sent to it.
-- If the namespace has a limit or a pause, nothing is claimed and `limits` is true: claim_runs_past_limits is asked then.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now,
           EXISTS (SELECT FROM kagzi.limits AS l WHERE l.namespace = $3::text) AS limits
), again AS (
    {{claimed_before}}, false AS limited
), due AS MATERIALIZED (
    SELECT d.namespace, d.run_id, d.claim_key
    FROM unnest($7::text[]) AS q (task_queue)
    CROSS JOIN LATERAL (
        SELECT r.namespace, r.run_id, r.claim_key
        FROM kagzi.workflow_runs AS r
        {{is_for_poll(r, q.task_queue)}}
        LIMIT (SELECT CASE WHEN i.limits OR EXISTS (SELECT FROM again) THEN 0 ELSE $8::integer END FROM instant AS i)
        FOR UPDATE SKIP LOCKED
    ) AS d
    ORDER BY d.claim_key
    LIMIT $8::integer
), claimed AS (
    UPDATE kagzi.workflow_runs AS r SET
        {{lease_of_poll(r, i.now)}}
    FROM due AS d CROSS JOIN instant AS i
    WHERE r.namespace = d.namespace AND r.run_id = d.run_id
    RETURNING {{claimed_now}}
)
SELECT c.*, i.now, 0 AS candidates, i.limits
FROM instant AS i
LEFT JOIN (
    SELECT * FROM claimed
    UNION ALL
    SELECT * FROM again
) AS c ON true
ORDER BY c.place, c.run_id;

-- name: claim_runs_past_limits
-- Lease due runs as claim_runs does, in a namespace with limits or pauses. What is `limited` is not claimed here but by claim_limited, under the lock of
-- its limits.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), again AS (
    {{claimed_before}},
        {{counts_for_limits(r)}} AS limited
), limits AS MATERIALIZED (
    SELECT l.scope, l.name, l.paused_at, coalesce(l.concurrency, l.declared) AS most
    FROM kagzi.limits AS l WHERE l.namespace = $3::text
), due AS MATERIALIZED (
    SELECT d.namespace, d.run_id, d.claim_key, d.limited
    FROM (
        SELECT u.task_queue, EXISTS (SELECT FROM limits AS l WHERE l.scope = 'queue' AND l.name = u.task_queue) AS limited
        FROM unnest($7::text[]) AS u (task_queue)
        WHERE NOT EXISTS (
            SELECT FROM limits AS l
            WHERE (l.paused_at IS NOT NULL AND (l.scope = 'namespace' OR (l.scope = 'queue' AND l.name = u.task_queue)))
               -- A queue that is full would fill the answer with what cannot be claimed. Only a hint: it is counted again
               -- under the lock of its limit.
               OR (l.scope = 'queue' AND l.name = u.task_queue AND l.most IS NOT NULL
                   AND l.most <= (SELECT count(*) FROM kagzi.workflow_runs AS x
                                  WHERE x.status = 'RUNNING' AND x.namespace = $3::text
                                    AND x.task_queue = u.task_queue)))
        OFFSET 0  -- so that nothing of a paused queue is locked first and left out afterwards
    ) AS q
    CROSS JOIN LATERAL (
        SELECT r.namespace, r.run_id, r.claim_key,
               q.limited OR r.workflow_type = ANY (ARRAY (SELECT l.name FROM limits AS l WHERE l.scope = 'workflow'))
                   OR coalesce(r.limit_name = ANY (ARRAY (SELECT l.name FROM limits AS l WHERE l.scope = 'workflow')), false)
                   AS limited
        FROM kagzi.workflow_runs AS r
        {{is_for_poll(r, q.task_queue)}}
        LIMIT (SELECT CASE WHEN EXISTS (SELECT FROM again) THEN 0 ELSE $8::integer END)
        FOR UPDATE SKIP LOCKED
    ) AS d
    ORDER BY d.claim_key
    LIMIT $8::integer
), claimed AS (
    UPDATE kagzi.workflow_runs AS r SET
        {{lease_of_poll(r, i.now)}}
    FROM due AS d CROSS JOIN instant AS i
    WHERE r.namespace = d.namespace AND r.run_id = d.run_id AND NOT d.limited
    RETURNING {{claimed_now}}
)
SELECT c.*, i.now, (SELECT count(*)::integer FROM due AS d WHERE d.limited) AS candidates,
       EXISTS (SELECT FROM limits) AS limits
FROM instant AS i
LEFT JOIN (
    SELECT * FROM claimed
    UNION ALL
    SELECT * FROM again
) AS c ON true
ORDER BY c.place, c.run_id;

-- name: read_inputs
-- Inputs that are kept apart from their runs.
SELECT run_id, data
FROM kagzi.workflow_payloads
WHERE namespace = $1::text AND run_id = ANY ($2::uuid[]) AND kind = 'input';

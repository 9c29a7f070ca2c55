-- Children: spawning them, telling their parents, and ending them after those.

-- fragment: follows(r)
-- A live run that is to follow the end of its parent and was not told yet.
{r}.finished_at IS NULL
        AND ({r}.parent_policy = 'terminate' OR ({r}.parent_policy = 'cancel' AND NOT {r}.cancel_requested))

-- name: lock_families
-- Lock runs that may end, and their parents, which hear of it: all in one order, so that nobody waits in a circle. Whose
-- child a run is never changes, so it may be read before the lock is there.
WITH asked AS MATERIALIZED (
    SELECT k.namespace, k.run_id FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
), family AS MATERIALIZED (
    SELECT a.namespace, a.run_id FROM asked AS a
    UNION
    SELECT r.namespace, r.parent_run_id
    FROM asked AS a
    JOIN kagzi.workflow_runs AS r ON r.namespace = a.namespace AND r.run_id = a.run_id
    WHERE r.parent_run_id IS NOT NULL AND r.parent_policy <> 'none'
)
SELECT count(*)
FROM (
    SELECT r.run_id
    FROM family AS f
    JOIN kagzi.workflow_runs AS r ON r.namespace = f.namespace AND r.run_id = f.run_id
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
) AS locked;

-- name: find_parents
-- The live parents of runs that are about to end, by their place.
SELECT k.place::integer AS place, p.namespace, p.run_id
FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS k (namespace, run_id, place)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
JOIN kagzi.workflow_runs AS p ON p.namespace = r.namespace AND p.run_id = r.parent_run_id
WHERE r.parent_run_id IS NOT NULL AND r.parent_policy <> 'none' AND p.finished_at IS NULL;

-- name: lock_parents
-- Lock parents that nobody holds, for a duty that does not wait.
SELECT r.namespace, r.run_id
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: spawn_children
-- Insert children and the steps that show them, under the lock of their parents. A step that is there stays, and its child
-- is not inserted: then this spawn came twice, or a retry has kept the child. What is `placed` and not `made` has an id
-- that is taken, of two in one batch by the first. Sorted by external id as all starts are, byte by byte: those are sorted
-- outside of the database, which may have another order of letters.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), asked AS MATERIALIZED (
    SELECT n.*, i.now, greatest(i.now + coalesce(n.delay, 0), n.start_at) AS available_at,
           NULL::bigint AS lease_length
    FROM unnest($2::text[], $3::uuid[], $4::text[], $5::integer[], $6::bigint[], $7::bigint[], $8::bytea[], $9::uuid[],
                $10::text[], $11::text[], $12::text[], $13::text[], $14::integer[], $15::bytea[], $16::bigint[],
                $17::bigint[], $18::bigint[], $19::bigint[], $20::text[], $21::integer[], {{carried_arrays($22)}})
        WITH ORDINALITY
        AS n (namespace, parent_run_id, parent_step_id, attempt, started_at, input_hash, step_input, run_id,
              external_id, task_queue, workflow_type, version, priority, input, timeout, deadline_at, delay, start_at,
              parent_policy, depth, {{carried}}, place)
    CROSS JOIN instant AS i
), placed AS (
    INSERT INTO kagzi.step_runs (
        namespace, run_id, step_id, attempt, kind, status, started_at, input_hash, input, child_run_id)
    SELECT a.namespace, a.parent_run_id, a.parent_step_id, a.attempt, 'CHILD_WORKFLOW', 'RUNNING', a.started_at,
           a.input_hash, a.step_input, a.run_id
    FROM asked AS a
    ON CONFLICT DO NOTHING
    RETURNING namespace, run_id AS parent_run_id, child_run_id AS run_id
), made AS (
    INSERT INTO kagzi.workflow_runs (
        {{run_columns}}, parent_run_id, parent_step_id, parent_policy, depth, handles_run_id)
    SELECT {{run_values}}, parent_run_id, parent_step_id, parent_policy, depth,
           -- What is below a failure handler handles the same failure, and calls no other.
           (SELECT p.handles_run_id FROM kagzi.workflow_runs AS p
            WHERE p.namespace = asked.namespace AND p.run_id = asked.parent_run_id)
    FROM asked
    WHERE ((namespace, run_id) IN (SELECT p.namespace, p.run_id FROM placed AS p)) IS TRUE
    ORDER BY namespace COLLATE "C", external_id COLLATE "C", place
    ON CONFLICT DO NOTHING
    RETURNING run_id
), marked AS (
    UPDATE kagzi.workflow_runs AS r SET has_children = true
    FROM (SELECT DISTINCT p.namespace, p.parent_run_id FROM placed AS p) AS p
    WHERE r.namespace = p.namespace AND r.run_id = p.parent_run_id AND r.has_children IS NOT TRUE
)
SELECT (SELECT array_agg(run_id) FROM placed) AS placed, (SELECT array_agg(run_id) FROM made) AS made,
       (SELECT now FROM instant) AS now;

-- name: unplace_children
-- Steps that this transaction has placed, whose children are spawned once more: the id that was taken is free now.
DELETE FROM kagzi.step_runs AS s
USING unnest($1::text[], $2::uuid[], $3::text[]) AS k (namespace, run_id, step_id)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.step_id = k.step_id AND s.child_run_id = ANY ($4::uuid[]);

-- name: clear_places
-- Steps that were begun to have a child, call by call, give their places to those.
DELETE FROM kagzi.step_runs AS s
USING unnest($1::text[], $2::uuid[], $3::text[], $4::integer[]) AS k (namespace, run_id, step_id, attempt)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.step_id = k.step_id AND s.attempt = k.attempt
  AND s.kind = 'CHILD_WORKFLOW' AND s.status = 'RUNNING' AND s.child_run_id IS NULL AND s.completed_seq IS NULL
RETURNING s.namespace, s.run_id, s.step_id, s.attempt;

-- name: find_own_children
-- Which of these runs are the children of these very steps.
SELECT r.run_id
FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[]) AS k (namespace, run_id, parent_run_id, step_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
WHERE r.parent_run_id = k.parent_run_id AND r.parent_step_id = k.step_id;

-- name: refuse_children
-- Outcomes of children that could not be, or are gone.
UPDATE kagzi.step_runs AS s SET status = 'FAILED', error = k.error, finished_at = greatest($1::bigint, s.started_at)
FROM unnest($2::text[], $3::uuid[], $4::text[], $5::uuid[], $6::bytea[]) AS k (namespace, run_id, step_id, child_run_id, error)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.step_id = k.step_id AND s.child_run_id = k.child_run_id
  AND s.status = 'RUNNING' AND s.completed_seq IS NULL AND s.generation = 0
RETURNING s.namespace, s.run_id, s.child_run_id, $1::bigint AS now;

-- name: refuse_places
-- Outcomes of children whose places other steps have: nothing else would ever answer the ones who wait for them. An event
-- stays, and is what the workflow gets.
UPDATE kagzi.step_runs AS s SET
    kind = 'CHILD_WORKFLOW', status = 'FAILED', child_run_id = k.child_run_id, output = NULL, error = k.error,
    finished_at = greatest($1::bigint, s.started_at), retry_at = NULL, timeout_at = NULL
FROM unnest($2::text[], $3::uuid[], $4::text[], $5::integer[], $6::uuid[], $7::bytea[])
    AS k (namespace, run_id, step_id, attempt, child_run_id, error)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.step_id = k.step_id AND s.attempt = k.attempt
  AND s.child_run_id IS NULL AND s.completed_seq IS NULL
RETURNING s.namespace, s.run_id, s.child_run_id, $1::bigint AS now;

-- name: tell_outcomes
-- Outcomes of children, in the steps of their live parents. What was told before stays as it is. The step began by the
-- clock of a worker, which may be ahead by what its calls take: it does not end before that.
UPDATE kagzi.step_runs AS s SET
    status = CASE WHEN e.status IN ('COMPLETED', 'CANCELLED') THEN e.status ELSE 'FAILED' END,
    output = e.output, error = e.error, finished_at = greatest(e.finished_at, s.started_at)
FROM (
    SELECT r.namespace, r.run_id, r.parent_run_id, r.parent_step_id, r.status, coalesce(r.output, o.data) AS output,
           r.error, r.finished_at
    FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
    JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
    JOIN kagzi.workflow_runs AS p ON p.namespace = r.namespace AND p.run_id = r.parent_run_id
    LEFT JOIN kagzi.workflow_payloads AS o
        ON o.namespace = r.namespace AND o.run_id = r.run_id AND o.kind = 'output' AND r.output IS NULL
    WHERE r.parent_run_id IS NOT NULL AND r.parent_policy <> 'none' AND r.finished_at IS NOT NULL
      AND p.finished_at IS NULL
) AS e
WHERE s.namespace = e.namespace AND s.run_id = e.parent_run_id AND s.step_id = e.parent_step_id
  AND s.child_run_id = e.run_id AND s.status = 'RUNNING' AND s.completed_seq IS NULL AND s.generation = 0
RETURNING s.namespace, s.run_id, s.child_run_id, e.finished_at AS now;

-- name: raise_inboxes
-- The inboxes of runs have grown, by one for each child; those that wait for one of these can be claimed.
UPDATE kagzi.workflow_runs AS r SET
    inbox_seq = r.inbox_seq + n.outcomes,
    available_at = CASE WHEN {{woken(r, n)}} THEN n.now ELSE r.available_at END,
    claim_key = CASE WHEN {{woken(r, n)}} THEN {{claim_key_of_now(r.priority, n.now)}} ELSE r.claim_key END
FROM (
    SELECT k.namespace, k.run_id, count(*)::integer AS outcomes, max(k.now) AS now,
           array_append(array_agg('c:' || k.child_run_id::text), 'c:*') AS names
    FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::bigint[]) AS k (namespace, run_id, child_run_id, now)
    GROUP BY k.namespace, k.run_id
) AS n
WHERE r.namespace = n.namespace AND r.run_id = n.run_id AND r.finished_at IS NULL
RETURNING {{changed_run}}, r.inbox_seq;

-- fragment: woken(r, n)
-- Whether a run sleeps, and waits for one of these names. One that is due already and held for a limit keeps its place.
{r}.status = 'SLEEPING' AND {r}.available_at > {n}.now AND {r}.waiting_for IS NOT NULL
                          AND {r}.waiting_for::jsonb ?| {n}.names

-- name: take_outcomes
-- Numbers of outcomes that workflows have got; in the transaction that records their other events. One that it has under
-- the same number counts: then the chunk came twice.
UPDATE kagzi.step_runs AS s SET completed_seq = t.completed_seq, finished_at = t.finished_at
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::integer[], $5::integer[], $6::bigint[])
    AS t (namespace, run_id, step_id, attempt, completed_seq, finished_at)
WHERE s.namespace = t.namespace AND s.run_id = t.run_id AND s.step_id = t.step_id AND s.attempt = t.attempt
  AND s.child_run_id IS NOT NULL AND s.status <> 'RUNNING'
  AND (s.completed_seq IS NULL OR s.completed_seq = t.completed_seq);

-- name: give_outcomes_back
-- Completed children that a retry of the run no longer sees: their outcome can be taken again.
UPDATE kagzi.step_runs AS s SET completed_seq = NULL
FROM unnest($1::text[], $2::uuid[], $3::integer[]) AS k (namespace, run_id, keep_seq)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.generation = 0 AND s.completed_seq > k.keep_seq
  AND s.child_run_id IS NOT NULL AND s.status = 'COMPLETED';

-- name: read_outcomes
-- Outcomes that the holder of a lease has not taken yet, and how far its inbox goes; a row without an outcome if there is
-- none. In one statement, so that the number says no more than what was looked for.
SELECT r.inbox_seq, r.cancel_requested, {{shown_step}}, NULL::bytea AS input
FROM kagzi.workflow_runs AS r
LEFT JOIN kagzi.step_runs AS s
    ON s.namespace = r.namespace AND s.run_id = r.run_id AND s.child_run_id IS NOT NULL AND s.completed_seq IS NULL
       AND s.status <> 'RUNNING' AND s.generation = 0
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid AND r.status = 'RUNNING'
ORDER BY s.finished_at, s.step_id;

-- name: find_untold
-- Children of a live run that have ended, or are gone, although its step shows them as RUNNING.
SELECT s.step_id, s.child_run_id, c.run_id IS NULL AS gone, coalesce($3::bigint, kagzi.clock()) AS now
FROM kagzi.workflow_runs AS p
JOIN kagzi.step_runs AS s ON s.namespace = p.namespace AND s.run_id = p.run_id
LEFT JOIN kagzi.workflow_runs AS c ON c.namespace = s.namespace AND c.run_id = s.child_run_id
WHERE p.namespace = $1::text AND p.run_id = $2::uuid AND p.finished_at IS NULL AND s.status = 'RUNNING'
  AND s.child_run_id IS NOT NULL AND s.generation = 0 AND (c.run_id IS NULL OR c.finished_at IS NOT NULL);

-- name: forget_cascades
-- Ends that nobody is left to be told of. Never held while runs are locked.
DELETE FROM kagzi.cascades AS k
WHERE NOT EXISTS (SELECT FROM kagzi.workflow_runs AS r
                  WHERE r.namespace = k.namespace AND r.parent_run_id = k.run_id AND {{follows(r)}});

-- name: find_cascades
-- Children that are to follow the end of their parent.
SELECT r.namespace, r.run_id, r.parent_policy
FROM kagzi.cascades AS k
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.parent_run_id = k.run_id
WHERE r.parent_run_id IS NOT NULL AND {{follows(r)}}
LIMIT $1::integer;

-- Chunks. A batch is one statement, hence one round trip and one transaction.
--
-- Locks: all runs of the batch, in (namespace, run_id) order, before anything is written. The fence is the join on the
-- token in `locked`: a row that somebody is taking over is waited for, and looked at again once it is free.
--
-- `place` is the number of a run within the batch. In most batches each run has one step, or one step and one
-- transition: then places and ids of those are not sent, and those of the runs are used. Rows that belong to a run are
-- let through by `(place IN (SELECT place FROM locked …)) IS TRUE`, which is always a hashed subquery: with IN alone
-- the planner would make a join of it, by nested loop, and the cost of a batch would grow with its square.

-- name: record_steps
-- Record steps of leased runs.
WITH locked AS MATERIALIZED (
    SELECT c.place, r.status
    FROM unnest($1::text[], $2::uuid[], $3::uuid[]) WITH ORDINALITY AS c (namespace, run_id, token, place)
    JOIN kagzi.workflow_runs AS r ON r.namespace = c.namespace AND r.run_id = c.run_id AND r.token = c.token
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
), recorded AS (
    {{record_steps_of_locked}}
)
SELECT array_agg(place::integer) AS granted, NULL::integer[] AS moved, NULL::integer[] AS news,
       array_agg(place::integer) FILTER (WHERE status <> 'RUNNING') AS over,
       array_agg(status) FILTER (WHERE status <> 'RUNNING') AS over_as
FROM locked;

-- name: record_steps_and_move_runs
-- The same, and move runs on: park, hand back, retry, complete, fail, end cancelled.
-- A run whose inbox has grown beyond what its ParkRun has seen keeps its lease, and so does one that is to complete and
-- was told to end (`seen` the least integer, or none). The token stays on the row, so that a repeated batch is recognised.
WITH locked AS MATERIALIZED (
    SELECT c.place, r.status,
           CASE WHEN coalesce(c.seen, -2147483648) = -2147483648 THEN NOT r.cancel_requested
                ELSE c.seen >= r.inbox_seq END AS quiet
    FROM unnest($1::text[], $2::uuid[], $3::uuid[], $20::integer[]) WITH ORDINALITY
        AS c (namespace, run_id, token, seen, place)
    JOIN kagzi.workflow_runs AS r ON r.namespace = c.namespace AND r.run_id = c.run_id AND r.token = c.token
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
), recorded AS (
    {{record_steps_of_locked}}
), instant AS MATERIALIZED (
    SELECT coalesce($21::bigint, kagzi.clock()) AS now
), moved AS (
    UPDATE kagzi.workflow_runs AS r SET
        status = m.status,
        -- Whoever was told to end does not wait in the queue.
        available_at = CASE WHEN m.finished THEN r.available_at
                            WHEN r.cancel_requested AND m.status = 'PENDING' THEN least(m.available_at, m.now)
                            ELSE m.available_at END,
        claim_key = CASE WHEN m.finished THEN NULL
                         WHEN r.cancel_requested AND m.status = 'PENDING'
                             THEN {{claim_key(least(m.available_at, m.now), r.priority, m.now)}}
                         ELSE {{claim_key(m.available_at, r.priority, m.now)}} END,
        lease_expires_at = NULL,
        finished_at = CASE WHEN m.finished THEN m.now END,
        attempts = r.attempts + CASE WHEN m.keep_seq IS NULL THEN 0 ELSE 1 END,
        crashed_seq = least(r.crashed_seq, m.keep_seq),
        output = m.output,
        error = CASE WHEN m.finished THEN m.error ELSE coalesce(m.error, r.error) END,
        waiting_for = m.waiting_for
    FROM (
        SELECT coalesce(t.place, t.ordinal) AS place, t.namespace, t.run_id, t.status, t.output, t.error, t.waiting_for,
               t.keep_seq, i.now, coalesce(t.available_at, i.now) AS available_at,
               t.status IN ('COMPLETED', 'FAILED', 'CANCELLED') AS finished
        FROM unnest($22::integer[], coalesce($23::text[], $1::text[]), coalesce($24::uuid[], $2::uuid[]), $25::text[],
                    $26::bigint[], $27::integer[], $28::bytea[], $29::bytea[], $30::text[]) WITH ORDINALITY
            AS t (place, namespace, run_id, status, available_at, keep_seq, output, error, waiting_for, ordinal)
        CROSS JOIN instant AS i
    ) AS m
    WHERE r.namespace = m.namespace AND r.run_id = m.run_id
      AND (m.place IN (SELECT l.place FROM locked AS l WHERE l.status = 'RUNNING' AND l.quiet)) IS TRUE
)
SELECT array_agg(place::integer) AS granted,
       array_agg(place::integer) FILTER (WHERE status = 'RUNNING' AND quiet) AS moved,
       array_agg(place::integer) FILTER (WHERE status = 'RUNNING' AND NOT quiet) AS news,
       array_agg(place::integer) FILTER (WHERE status <> 'RUNNING') AS over,
       array_agg(status) FILTER (WHERE status <> 'RUNNING') AS over_as
FROM locked;

-- name: store_outputs
-- Outputs too large for their run's row; in the transaction that completed the runs.
INSERT INTO kagzi.workflow_payloads (namespace, run_id, kind, data)
SELECT p.namespace, p.run_id, 'output', p.data
FROM unnest($1::text[], $2::uuid[], $3::bytea[]) AS p (namespace, run_id, data);

-- name: set_steps_aside
-- What a retry of the run leaves behind becomes an old generation; in the transaction that moved the runs. Children that
-- run or have succeeded stay: their work is not done twice. So do switches of the code that were on.
-- The number of the generation is the run's new count of attempts; a smallint holds it as long as people can read it.
UPDATE kagzi.step_runs AS s SET
    generation = least(r.attempts, 32767), step_id = s.step_id || '~' || r.attempts, completed_seq = NULL,
    timeout_at = NULL
FROM unnest($1::text[], $2::uuid[], $3::integer[]) AS k (namespace, run_id, keep_seq)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.generation = 0
  AND (s.completed_seq IS NULL OR s.completed_seq > k.keep_seq)
  AND NOT (s.child_run_id IS NOT NULL AND s.status IN ('RUNNING', 'COMPLETED'))
  AND NOT (s.kind = 'SIGNAL' AND s.completed_seq IS NULL);

-- name: forget_step_timeouts
-- Bodies that nobody runs any more have no timeout: whoever takes these runs over starts them anew.
UPDATE kagzi.step_runs AS s SET timeout_at = NULL
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.status = 'RUNNING' AND s.timeout_at IS NOT NULL;


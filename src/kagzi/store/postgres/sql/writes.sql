-- Everything the batcher sends. A batch is one statement, hence one round trip and one transaction.
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
-- A completed event is never overwritten; a RUNNING row gives way to anything, and to another RUNNING one of a later
-- lease, because that one has another timeout. What an attempt was given does not change once it has ended.
WITH locked AS MATERIALIZED (
    SELECT c.place, r.status
    FROM unnest($1::text[], $2::uuid[], $3::uuid[]) WITH ORDINALITY AS c (namespace, run_id, token, place)
    JOIN kagzi.workflow_runs AS r ON r.namespace = c.namespace AND r.run_id = c.run_id AND r.token = c.token
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
), recorded AS (
    INSERT INTO kagzi.step_runs AS s (
        namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at, retry_at,
        timeout_at, input_hash, input, output, error)
    SELECT n.namespace, n.run_id, n.step_id, coalesce(n.attempt, 1), coalesce(n.kind, 'FUNCTION'),
           coalesce(n.status, 'COMPLETED'), n.completed_seq, n.started_at, n.finished_at, n.retry_at,
           n.timeout_at, coalesce(n.input_hash, 0), n.input, n.output, n.error
    FROM unnest($4::integer[], coalesce($5::text[], $1::text[]), coalesce($6::uuid[], $2::uuid[]), $7::text[],
                $8::integer[], $9::text[], $10::text[], $11::integer[], $12::bigint[], $13::bigint[], $14::bigint[],
                $15::bigint[], $16::bigint[], $17::bytea[], $18::bytea[], $19::bytea[]) WITH ORDINALITY
        AS n (place, namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at,
              retry_at, timeout_at, input_hash, input, output, error, ordinal)
    WHERE (coalesce(n.place, n.ordinal) IN (SELECT l.place FROM locked AS l WHERE l.status = 'RUNNING')) IS TRUE
    ON CONFLICT (namespace, run_id, step_id, attempt) DO UPDATE SET
        kind = EXCLUDED.kind, status = EXCLUDED.status, completed_seq = EXCLUDED.completed_seq,
        started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at, retry_at = EXCLUDED.retry_at,
        timeout_at = EXCLUDED.timeout_at, input_hash = EXCLUDED.input_hash,
        input = CASE WHEN s.status = 'RUNNING' THEN coalesce(EXCLUDED.input, s.input) ELSE s.input END,
        output = EXCLUDED.output, error = EXCLUDED.error
    WHERE s.completed_seq IS NULL AND (EXCLUDED.status <> 'RUNNING' OR s.status = 'RUNNING')
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
    FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::integer[]) WITH ORDINALITY
        AS c (namespace, run_id, token, seen, place)
    JOIN kagzi.workflow_runs AS r ON r.namespace = c.namespace AND r.run_id = c.run_id AND r.token = c.token
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
), recorded AS (
    INSERT INTO kagzi.step_runs AS s (
        namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at, retry_at,
        timeout_at, input_hash, input, output, error)
    SELECT n.namespace, n.run_id, n.step_id, coalesce(n.attempt, 1), coalesce(n.kind, 'FUNCTION'),
           coalesce(n.status, 'COMPLETED'), n.completed_seq, n.started_at, n.finished_at, n.retry_at,
           n.timeout_at, coalesce(n.input_hash, 0), n.input, n.output, n.error
    FROM unnest($5::integer[], coalesce($6::text[], $1::text[]), coalesce($7::uuid[], $2::uuid[]), $8::text[],
                $9::integer[], $10::text[], $11::text[], $12::integer[], $13::bigint[], $14::bigint[], $15::bigint[],
                $16::bigint[], $17::bigint[], $18::bytea[], $19::bytea[], $20::bytea[]) WITH ORDINALITY
        AS n (place, namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at,
              retry_at, timeout_at, input_hash, input, output, error, ordinal)
    WHERE (coalesce(n.place, n.ordinal) IN (SELECT l.place FROM locked AS l WHERE l.status = 'RUNNING')) IS TRUE
    ON CONFLICT (namespace, run_id, step_id, attempt) DO UPDATE SET
        kind = EXCLUDED.kind, status = EXCLUDED.status, completed_seq = EXCLUDED.completed_seq,
        started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at, retry_at = EXCLUDED.retry_at,
        timeout_at = EXCLUDED.timeout_at, input_hash = EXCLUDED.input_hash,
        input = CASE WHEN s.status = 'RUNNING' THEN coalesce(EXCLUDED.input, s.input) ELSE s.input END,
        output = EXCLUDED.output, error = EXCLUDED.error
    WHERE s.completed_seq IS NULL AND (EXCLUDED.status <> 'RUNNING' OR s.status = 'RUNNING')
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
                         WHEN m.available_at > m.now AND NOT (r.cancel_requested AND m.status = 'PENDING')
                             THEN m.available_at
                         ELSE least(least(m.available_at, m.now) - r.priority * 60000000::bigint, m.now) END,
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
-- What a retry of the run leaves behind becomes an old generation; in the transaction that moved the runs.
-- The number of the generation is the run's new count of attempts; a smallint holds it as long as people can read it.
UPDATE kagzi.step_runs AS s SET
    generation = least(r.attempts, 32767), step_id = s.step_id || '~' || r.attempts, completed_seq = NULL,
    timeout_at = NULL
FROM unnest($1::text[], $2::uuid[], $3::integer[]) AS k (namespace, run_id, keep_seq)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.generation = 0
  AND (s.completed_seq IS NULL OR s.completed_seq > k.keep_seq);

-- name: forget_step_timeouts
-- Bodies that nobody runs any more have no timeout: whoever takes these runs over starts them anew.
UPDATE kagzi.step_runs AS s SET timeout_at = NULL
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.status = 'RUNNING' AND s.timeout_at IS NOT NULL;

-- name: start_runs
-- Insert runs. An id that is taken, by run_id or by external_id, inserts nothing; the caller looks it up then.
-- Sorted by external id, so that two processes that start the same runs do not wait for each other in a circle.
-- What most runs of a batch have in common is sent once if all of them have: a column with one value is that of every run.
-- A run that is due in the past waits from now on: it is no older than others that are started now.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), asked AS MATERIALIZED (
    SELECT coalesce(n.namespace, ($2::text[])[1]) AS namespace, n.run_id, n.external_id,
           coalesce(n.task_queue, ($5::text[])[1]) AS task_queue,
           coalesce(n.workflow_type, ($6::text[])[1]) AS workflow_type, coalesce(n.version, ($7::text[])[1]) AS version,
           n.priority, n.input, n.retry_policy, n.lease_length, n.timeout, n.deadline_at,
           -- These two matter only to runs with a token.
           coalesce(n.birth_length, ($16::bigint[])[1]) AS birth_length, n.token,
           coalesce(n.worker_id, ($18::uuid[])[1]) AS worker_id,
           n.trace_context, n.poll, i.now, greatest(i.now + coalesce(n.delay, 0), n.start_at) AS available_at,
           n.token IS NOT NULL AND greatest(i.now + coalesce(n.delay, 0), n.start_at) <= i.now AS born
    FROM unnest($2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[], $9::bytea[],
                $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[],
                $17::uuid[], $18::uuid[], $19::text[], $20::integer[])
        AS n (namespace, run_id, external_id, task_queue, workflow_type, version, priority, input,
              retry_policy, lease_length, timeout, deadline_at, delay, start_at, birth_length, token, worker_id,
              trace_context, poll)
    CROSS JOIN instant AS i
)
INSERT INTO kagzi.workflow_runs (
    namespace, run_id, external_id, task_queue, workflow_type, version, priority, input, retry_policy,
    created_at, available_at, deadline_at, status, claim_key, lease_length, lease_expires_at, started_at, executions,
    token, worker_id, poll, trace_context)
SELECT namespace, run_id, external_id, task_queue, workflow_type, version, coalesce(priority, 0), input, retry_policy,
       now, available_at, least(now + timeout, deadline_at),
       CASE WHEN born THEN 'RUNNING' ELSE 'PENDING' END,
       CASE WHEN born THEN NULL
            WHEN available_at > now THEN available_at
            ELSE least(available_at - coalesce(priority, 0) * 60000000::bigint, now) END,
       CASE WHEN born THEN coalesce(lease_length, birth_length) ELSE lease_length END,
       CASE WHEN born THEN now + birth_length END,
       CASE WHEN born THEN now END,
       CASE WHEN born THEN 1 ELSE 0 END,
       CASE WHEN born THEN token END,
       CASE WHEN born THEN worker_id END,
       CASE WHEN born THEN poll END,
       trace_context
FROM asked
ON CONFLICT DO NOTHING
RETURNING namespace, run_id, status, started_at, available_at;

-- name: store_inputs
-- Inputs too large for their run's row; in the transaction that inserted the runs.
INSERT INTO kagzi.workflow_payloads (namespace, run_id, kind, data)
SELECT p.namespace, p.run_id, 'input', p.data
FROM unnest($1::text[], $2::uuid[], $3::bytea[]) AS p (namespace, run_id, data);

-- name: find_started_runs
-- Who has the ids that a start found taken.
SELECT w.place, r.namespace, r.run_id, r.external_id, r.task_queue, r.workflow_type, r.version, r.status, r.token,
       r.started_at, r.available_at, coalesce(r.input, p.data) AS input
FROM unnest($1::text[], $2::uuid[], $3::text[]) WITH ORDINALITY AS w (namespace, run_id, external_id, place)
CROSS JOIN LATERAL (
    SELECT a.* FROM kagzi.workflow_runs AS a WHERE a.namespace = w.namespace AND a.run_id = w.run_id
    UNION ALL
    SELECT b.* FROM kagzi.workflow_runs AS b
    WHERE b.namespace = w.namespace AND b.external_id = w.external_id AND b.run_id <> w.run_id
      AND b.external_id IS NOT NULL
) AS r
LEFT JOIN kagzi.workflow_payloads AS p
    ON p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input' AND r.input IS NULL;

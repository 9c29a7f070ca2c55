-- The same as writes.sql for a batch of one, which is what an idle system sends. Without arrays, a statement costs the
-- driver and the server a third less, and that is time somebody waits for.

-- name: record_step
-- Record one step of a leased run; see record_steps.
WITH locked AS MATERIALIZED (
    SELECT r.status
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid
    FOR NO KEY UPDATE OF r
), recorded AS (
    INSERT INTO kagzi.step_runs AS s (
        namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at, retry_at,
        timeout_at, input_hash, input, output, error)
    SELECT $1::text, $2::uuid, $4::text, $5::integer, $6::text, $7::text, $8::integer, $9::bigint, $10::bigint,
           $11::bigint, $12::bigint, $13::bigint, $14::bytea, $15::bytea, $16::bytea
    FROM locked AS l
    WHERE l.status = 'RUNNING'
    ON CONFLICT (namespace, run_id, step_id, attempt) DO UPDATE SET
        kind = EXCLUDED.kind, status = EXCLUDED.status, completed_seq = EXCLUDED.completed_seq,
        started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at, retry_at = EXCLUDED.retry_at,
        timeout_at = EXCLUDED.timeout_at, input_hash = EXCLUDED.input_hash,
        input = CASE WHEN s.status = 'RUNNING' THEN coalesce(EXCLUDED.input, s.input) ELSE s.input END,
        output = EXCLUDED.output, error = EXCLUDED.error
    WHERE s.completed_seq IS NULL AND (EXCLUDED.status <> 'RUNNING' OR s.status = 'RUNNING')
)
SELECT status, true AS quiet FROM locked;

-- name: record_step_and_move_run
-- Record one step, or none, and move its run on; see record_steps_and_move_runs.
WITH locked AS MATERIALIZED (
    SELECT r.status,
           CASE WHEN $17::integer = -2147483648 THEN NOT r.cancel_requested
                ELSE $17::integer >= r.inbox_seq END AS quiet
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid
    FOR NO KEY UPDATE OF r
), recorded AS (
    INSERT INTO kagzi.step_runs AS s (
        namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at, retry_at,
        timeout_at, input_hash, input, output, error)
    SELECT $1::text, $2::uuid, $4::text, $5::integer, $6::text, $7::text, $8::integer, $9::bigint, $10::bigint,
           $11::bigint, $12::bigint, $13::bigint, $14::bytea, $15::bytea, $16::bytea
    FROM locked AS l
    WHERE l.status = 'RUNNING' AND $4::text IS NOT NULL
    ON CONFLICT (namespace, run_id, step_id, attempt) DO UPDATE SET
        kind = EXCLUDED.kind, status = EXCLUDED.status, completed_seq = EXCLUDED.completed_seq,
        started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at, retry_at = EXCLUDED.retry_at,
        timeout_at = EXCLUDED.timeout_at, input_hash = EXCLUDED.input_hash,
        input = CASE WHEN s.status = 'RUNNING' THEN coalesce(EXCLUDED.input, s.input) ELSE s.input END,
        output = EXCLUDED.output, error = EXCLUDED.error
    WHERE s.completed_seq IS NULL AND (EXCLUDED.status <> 'RUNNING' OR s.status = 'RUNNING')
), instant AS MATERIALIZED (
    SELECT coalesce($18::bigint, kagzi.clock()) AS now
), moved AS (
    UPDATE kagzi.workflow_runs AS r SET
        status = $19::text,
        available_at = coalesce($20::bigint, r.available_at),
        claim_key = CASE WHEN $20::bigint > i.now THEN $20::bigint
                         WHEN $20::bigint <= i.now THEN least($20::bigint - r.priority * 60000000::bigint, i.now) END,
        lease_expires_at = NULL,
        finished_at = CASE WHEN $20::bigint IS NULL THEN i.now END,
        output = $21::bytea,
        error = CASE WHEN $20::bigint IS NULL THEN $22::bytea ELSE r.error END,
        waiting_for = $23::text
    FROM locked AS l CROSS JOIN instant AS i
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND l.status = 'RUNNING' AND l.quiet
)
SELECT status, quiet FROM locked;

-- name: start_run
-- Insert one run; see start_runs.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), asked AS MATERIALIZED (
    SELECT $2::text AS namespace, $3::uuid AS run_id, $4::text AS external_id, $5::text AS task_queue,
           $6::text AS workflow_type, $7::text AS version, $8::integer AS priority, $9::bytea AS input,
           $10::bytea AS retry_policy, $11::bigint AS lease_length, $12::bigint AS timeout, $13::bigint AS deadline_at,
           $16::bigint AS birth_length, $17::uuid AS token, $18::uuid AS worker_id, $19::text AS trace_context,
           $20::integer AS poll, i.now,
           greatest(i.now + coalesce($14::bigint, 0), $15::bigint) AS available_at,
           $17::uuid IS NOT NULL AND greatest(i.now + coalesce($14::bigint, 0), $15::bigint) <= i.now AS born
    FROM instant AS i
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

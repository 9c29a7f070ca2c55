-- The same as chunks.sql and starts.sql for a batch of one, which is what an idle system sends. Without arrays, a statement costs the
-- driver and the server a third less, and that is time somebody waits for.

-- name: record_step
-- Record one step of a leased run; see record_steps.
WITH locked AS MATERIALIZED (
    SELECT r.status
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid
    FOR NO KEY UPDATE OF r
), recorded AS (
    INSERT INTO kagzi.step_runs AS s ({{step_columns}})
    SELECT $1::text, $2::uuid, $4::text, $5::integer, $6::text, $7::text, $8::integer, $9::bigint, $10::bigint,
           $11::bigint, $12::bigint, $13::bigint, $14::bytea, $15::bytea, $16::bytea
    FROM locked AS l
    WHERE l.status = 'RUNNING'
    {{step_replaces}}
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
    INSERT INTO kagzi.step_runs AS s ({{step_columns}})
    SELECT $1::text, $2::uuid, $4::text, $5::integer, $6::text, $7::text, $8::integer, $9::bigint, $10::bigint,
           $11::bigint, $12::bigint, $13::bigint, $14::bytea, $15::bytea, $16::bytea
    FROM locked AS l
    WHERE l.status = 'RUNNING' AND $4::text IS NOT NULL
    {{step_replaces}}
), instant AS MATERIALIZED (
    SELECT coalesce($18::bigint, kagzi.clock()) AS now
), moved AS (
    UPDATE kagzi.workflow_runs AS r SET
        status = $19::text,
        available_at = coalesce($20::bigint, r.available_at),
        claim_key = CASE WHEN $20::bigint IS NOT NULL THEN {{claim_key($20::bigint, r.priority, i.now)}} END,
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
           $20::integer AS poll, $21::text AS on_failure, $22::text AS on_failure_queue, $23::text AS tags, i.now,
           greatest(i.now + coalesce($14::bigint, 0), $15::bigint) AS available_at,
           $17::uuid IS NOT NULL AND greatest(i.now + coalesce($14::bigint, 0), $15::bigint) <= i.now
           AND NOT {{is_limited($2::text, $5::text, $6::text)}} AS born
    FROM instant AS i
)
INSERT INTO kagzi.workflow_runs ({{born_run_columns}})
SELECT {{born_run_values}}
FROM asked
ON CONFLICT DO NOTHING
RETURNING namespace, run_id, status, started_at, available_at;

-- Debounced starts: many of one key become one run.

-- name: join_run
-- Give the run that nobody has begun the input of a later start, and put it off. Nothing if there is none: a claim has the
-- run's lock when it begins it, and the condition is looked at once more when that is given. Nothing either if this very
-- start has made a run before: it arrives twice, and what later starts have said since must stay.
-- One that comes twice, because its answer was lost, has joined once.
-- It leaves the line of a limit in which it was held (`left_line`): its key or its version may be another one now.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), found AS MATERIALIZED (
    SELECT r.namespace, r.run_id, r.held_key IS NOT NULL AS left_line,
           least(i.now + $7::bigint, r.created_at + $8::bigint) AS at
    FROM kagzi.workflow_runs AS r CROSS JOIN instant AS i
    WHERE r.namespace = $2::text AND r.workflow_type = $3::text AND r.debounce_key = $4::text
      AND r.started_at IS NULL AND r.finished_at IS NULL AND r.task_queue = $5::text
      AND NOT EXISTS (SELECT FROM kagzi.workflow_runs AS o
                      WHERE o.namespace = $2::text AND o.run_id = $6::uuid)
    FOR NO KEY UPDATE OF r
), dropped AS (
    DELETE FROM kagzi.workflow_payloads AS p USING found AS f
    WHERE p.namespace = f.namespace AND p.run_id = f.run_id AND p.kind = 'input'
)
UPDATE kagzi.workflow_runs AS r SET
    joins = CASE WHEN r.joined_by = $6::uuid THEN r.joins ELSE coalesce(r.joins, 0) + 1 END,
    joined_at = i.now, joined_by = $6::uuid, lineage = '["' || r.run_id || '","' || $6::uuid || '"]', input = $9::bytea, version = $10::text, trace_context = $11::text, limit_name = $12::text, limit_key = $13::text,
    deadline_at = least(i.now + $14::bigint, $15::bigint), available_at = f.at,
    claim_key = {{claim_key(f.at, r.priority, i.now)}}, held_key = NULL
FROM found AS f CROSS JOIN instant AS i
WHERE r.namespace = f.namespace AND r.run_id = f.run_id
RETURNING r.run_id, r.status, r.available_at, f.left_line;

-- name: start_debounced_run
-- Insert the run that later starts may join. Nothing if its id is taken, or if another has the key since.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), asked AS MATERIALIZED (
    SELECT $2::text AS namespace, $3::uuid AS run_id, NULL::text AS external_id, $4::text AS task_queue,
           $5::text AS workflow_type, $6::text AS version, $7::integer AS priority, $8::bytea AS input,
           i.now, i.now + $9::bigint AS available_at, $10::bigint AS timeout, $11::bigint AS deadline_at,
           $12::bigint AS lease_length, {{carried_parameters($15)}}
    FROM instant AS i
)
INSERT INTO kagzi.workflow_runs ({{run_columns}}, limit_name, debounce_key)
SELECT {{run_values}}, $13::text, $14::text
FROM asked
ON CONFLICT DO NOTHING
RETURNING run_id, status, available_at;

-- name: find_debounced
-- Why neither was possible: this start has come before, or the run with its key waits in another queue.
SELECT r.run_id, r.task_queue, r.workflow_type, r.status, r.available_at
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.run_id = $2::uuid
UNION ALL
SELECT r.run_id, r.task_queue, r.workflow_type, r.status, r.available_at
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.workflow_type = $3::text AND r.debounce_key = $4::text
  AND r.started_at IS NULL AND r.finished_at IS NULL AND r.run_id <> $2::uuid AND r.task_queue <> $5::text;

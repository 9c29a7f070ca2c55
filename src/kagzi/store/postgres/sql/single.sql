-- What chunks.sql and starts.sql do, for a batch of one, which is what an idle system sends. Without arrays, a statement costs the
-- driver and the server a third less, and that is time somebody waits for.

-- name: record_step
-- Record one step of a leased run; see record_steps.
WITH locked AS MATERIALIZED (
    SELECT r.status
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid
    FOR NO KEY UPDATE OF r
), recorded AS (
    {{record_step_of_locked(l.status = 'RUNNING')}}
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
    {{record_step_of_locked(l.status = 'RUNNING' AND $4::text IS NOT NULL)}}
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

-- name: record_step_and_fail_run
-- Record one step, or none, and fail its run, unless something handles its failure (read_failed_runs): then nothing is
-- written, and `handled` is true. Whether the namespace has a handler is read when the statement begins. One that is
-- named while it runs may not be called for this failure, as if it had been named a moment later.
WITH locked AS MATERIALIZED (
    SELECT r.status,
           r.handles_run_id IS NULL AND (
               r.on_failure IS NOT NULL
               OR EXISTS (SELECT FROM kagzi.namespaces AS n WHERE n.namespace = $1::text AND n.on_failure IS NOT NULL)
               OR EXISTS (SELECT FROM kagzi.workflow_types AS t
                          WHERE t.namespace = $1::text AND t.workflow_type = '__kagzi_failure_handler')
           ) AS handled
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid
    FOR NO KEY UPDATE OF r
), recorded AS (
    {{record_step_of_locked(l.status = 'RUNNING' AND NOT l.handled AND $4::text IS NOT NULL)}}
), failed AS (
    UPDATE kagzi.workflow_runs AS r SET
        status = 'FAILED', claim_key = NULL, lease_expires_at = NULL, finished_at = coalesce($17::bigint, kagzi.clock()),
        output = NULL, error = $18::bytea, waiting_for = NULL
    FROM locked AS l
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND l.status = 'RUNNING' AND NOT l.handled
)
SELECT status, true AS quiet, handled FROM locked;

-- name: end_run_of_family
-- Record one step, or take one outcome, or neither, end a run that may have a parent, and tell that one: what lock_families,
-- record_steps_and_move_runs, take_outcomes, tell_outcomes and raise_inboxes do for a batch. Not for failures, which may
-- have handlers. If the outcome is not there to be taken, nothing is written, and `taken` is false.
WITH parent AS MATERIALIZED (
    SELECT r.parent_run_id AS run_id, r.parent_step_id AS step_id
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.parent_run_id IS NOT NULL AND r.parent_policy <> 'none'
), family AS MATERIALIZED (
    SELECT r.run_id, r.status, r.token, r.finished_at,
           CASE WHEN $17::integer = -2147483648 THEN NOT r.cancel_requested
                ELSE $17::integer >= r.inbox_seq END AS quiet
    -- Joined by both columns: where nothing is known of the table yet, all runs of a namespace given as such would be read.
    FROM unnest(ARRAY[$1::text, $1::text], ARRAY[$2::uuid, (SELECT p.run_id FROM parent AS p)]) AS k (namespace, run_id)
    JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
), locked AS MATERIALIZED (
    SELECT f.status, f.quiet FROM family AS f WHERE f.run_id = $2::uuid AND f.token = $3::uuid
), recorded AS (
    {{record_step_of_locked(l.status = 'RUNNING' AND $4::text IS NOT NULL AND NOT $22::boolean)}}
), taken AS (
    UPDATE kagzi.step_runs AS s SET completed_seq = $8::integer, finished_at = $10::bigint
    FROM locked AS l
    WHERE $22::boolean AND l.status = 'RUNNING'
      AND s.namespace = $1::text AND s.run_id = $2::uuid AND s.step_id = $4::text AND s.attempt = $5::integer
      AND s.child_run_id IS NOT NULL AND s.status <> 'RUNNING'
      AND (s.completed_seq IS NULL OR s.completed_seq = $8::integer)
    RETURNING s.step_id
), ended AS (
    UPDATE kagzi.workflow_runs AS r SET
        status = $19::text, claim_key = NULL, lease_expires_at = NULL,
        finished_at = coalesce($18::bigint, kagzi.clock()), output = $20::bytea, error = $21::bytea, waiting_for = NULL
    FROM locked AS l
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND l.status = 'RUNNING' AND l.quiet
      AND (NOT $22::boolean OR EXISTS (SELECT FROM taken))
    RETURNING r.finished_at
), told AS (
    UPDATE kagzi.step_runs AS s SET
        status = $19::text, output = $20::bytea, error = $21::bytea,
        finished_at = greatest(e.finished_at, s.started_at)
    FROM parent AS p CROSS JOIN ended AS e
    WHERE s.namespace = $1::text AND s.run_id = p.run_id AND s.step_id = p.step_id AND s.child_run_id = $2::uuid
      AND s.status = 'RUNNING' AND s.completed_seq IS NULL AND s.generation = 0
      AND EXISTS (SELECT FROM family AS f WHERE f.run_id = p.run_id AND f.finished_at IS NULL)
    RETURNING s.namespace, s.run_id, e.finished_at AS now, ARRAY['c:' || $2::uuid::text, 'c:*'] AS names
), raised AS (
    UPDATE kagzi.workflow_runs AS r SET
        inbox_seq = r.inbox_seq + 1,
        available_at = CASE WHEN {{woken(r, n)}} THEN n.now ELSE r.available_at END,
        claim_key = CASE WHEN {{woken(r, n)}} THEN {{claim_key_of_now(r.priority, n.now)}} ELSE r.claim_key END
    FROM told AS n
    WHERE r.namespace = n.namespace AND r.run_id = n.run_id
    RETURNING {{changed_run}}, r.inbox_seq
)
SELECT l.status AS was, l.quiet, NOT $22::boolean OR EXISTS (SELECT FROM taken) AS taken,
       r.namespace, r.run_id, r.task_queue, r.status, r.available_at, r.inbox_seq
FROM locked AS l LEFT JOIN raised AS r ON true;

-- name: spawn_child
-- Record one step, or take one outcome, or neither, and insert a child with the step that shows it; see spawn_children. If
-- its place or its run id is taken nothing of it is written, and `made` is false: spawn_children knows what that means. An
-- outcome that was taken stays so; if it is not there to be taken, nothing is written at all.
WITH locked AS MATERIALIZED (
    SELECT r.status, r.handles_run_id
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid
    FOR NO KEY UPDATE OF r
), instant AS MATERIALIZED (
    SELECT coalesce($17::bigint, kagzi.clock()) AS now
), free AS MATERIALIZED (
    SELECT l.handles_run_id FROM locked AS l
    WHERE l.status = 'RUNNING'
      AND NOT EXISTS (SELECT FROM kagzi.step_runs AS s
                      WHERE s.namespace = $1::text AND s.run_id = $2::uuid AND s.step_id = $19::text
                        AND s.attempt = $20::integer)
), taken AS (
    UPDATE kagzi.step_runs AS s SET completed_seq = $8::integer, finished_at = $10::bigint
    FROM free
    WHERE $18::boolean AND s.namespace = $1::text AND s.run_id = $2::uuid AND s.step_id = $4::text
      AND s.attempt = $5::integer AND s.child_run_id IS NOT NULL AND s.status <> 'RUNNING'
      AND (s.completed_seq IS NULL OR s.completed_seq = $8::integer)
    RETURNING s.step_id
), asked AS MATERIALIZED (
    SELECT $1::text AS namespace, $24::uuid AS run_id, $25::text AS external_id, $26::text AS task_queue,
           $27::text AS workflow_type, $28::text AS version, $29::integer AS priority, $30::bytea AS input,
           $31::bigint AS timeout, $32::bigint AS deadline_at, $35::text AS parent_policy, $36::integer AS depth,
           {{carried_parameters($37)}}, NULL::bigint AS lease_length, i.now,
           greatest(i.now + coalesce($33::bigint, 0), $34::bigint) AS available_at, f.handles_run_id
    FROM free AS f CROSS JOIN instant AS i
    WHERE NOT $18::boolean OR EXISTS (SELECT FROM taken)
), made AS (
    INSERT INTO kagzi.workflow_runs (
        {{run_columns}}, parent_run_id, parent_step_id, parent_policy, depth, handles_run_id)
    SELECT {{run_values}}, $2::uuid, $19::text, parent_policy, depth, handles_run_id
    FROM asked
    ON CONFLICT DO NOTHING
    RETURNING run_id
), placed AS (
    INSERT INTO kagzi.step_runs (
        namespace, run_id, step_id, attempt, kind, status, started_at, input_hash, input, child_run_id)
    SELECT $1::text, $2::uuid, $19::text, $20::integer, 'CHILD_WORKFLOW', 'RUNNING', $21::bigint, $22::bigint,
           $23::bytea, m.run_id
    FROM made AS m
), recorded AS (
    INSERT INTO kagzi.step_runs AS s ({{step_columns}})
    SELECT $1::text, $2::uuid, $4::text, $5::integer, $6::text, $7::text, $8::integer, $9::bigint, $10::bigint,
           $11::bigint, $12::bigint, $13::bigint, $14::bytea, $15::bytea, $16::bytea
    FROM made AS m
    WHERE $4::text IS NOT NULL AND NOT $18::boolean
    {{step_replaces}}
), marked AS (
    UPDATE kagzi.workflow_runs AS r SET has_children = true
    FROM made AS m
    WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.has_children IS NOT TRUE
)
SELECT l.status, EXISTS (SELECT FROM made) AS made, i.now FROM locked AS l CROSS JOIN instant AS i;

-- name: start_run
-- Insert one run; see start_runs.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
INSERT INTO kagzi.workflow_runs ({{born_run_columns}})
SELECT {{born_run_values}}
FROM (
    SELECT $2::text AS namespace, $3::uuid AS run_id, $4::text AS external_id, $5::text AS task_queue,
           $6::text AS workflow_type, $7::text AS version, $8::integer AS priority, $9::bytea AS input,
           $10::bigint AS lease_length, $11::bigint AS timeout, $12::bigint AS deadline_at,
           $15::bigint AS birth_length, $16::uuid AS token, $17::uuid AS worker_id, $18::integer AS poll,
           $19::text AS limit_name, $20::uuid AS parent_run_id, $21::text AS parent_step_id,
           $22::integer AS parent_attempt, {{carried_parameters($23)}}, i.now,
           greatest(i.now + coalesce($13::bigint, 0), $14::bigint) AS available_at,
           $16::uuid IS NOT NULL AND greatest(i.now + coalesce($13::bigint, 0), $14::bigint) <= i.now
           AND NOT {{is_limited($2::text, $5::text, $6::text, $19::text)}} AS born
    FROM instant AS i
    OFFSET 0  -- each value is made once, and none is kept
) AS asked
ON CONFLICT DO NOTHING
RETURNING namespace, run_id, status, started_at, available_at;

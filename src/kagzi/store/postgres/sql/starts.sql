-- Starts of runs. A batch is one statement, hence one round trip and one transaction.

-- name: start_runs
-- Insert runs. An id that is taken, by run_id or by external_id, inserts nothing; the caller looks it up then.
-- Sorted by external id, so that two processes that start the same runs do not wait for each other in a circle.
-- What most runs of a batch have in common is sent once if all of them have: a column with one value is that of every run.
-- A run that is due in the past waits from now on: it is no older than others that are started now.
-- Whether there are limits at all is asked once, and of each run only if there are.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
INSERT INTO kagzi.workflow_runs ({{born_run_columns}})
SELECT {{born_run_values}}
FROM (
    SELECT coalesce(n.namespace, ($2::text[])[1]) AS namespace, n.run_id, n.external_id,
           coalesce(n.task_queue, ($5::text[])[1]) AS task_queue,
           coalesce(n.workflow_type, ($6::text[])[1]) AS workflow_type, coalesce(n.version, ($7::text[])[1]) AS version,
           n.priority, n.input, n.lease_length, n.timeout, n.deadline_at,
           -- These two matter only to runs with a token.
           coalesce(n.birth_length, ($15::bigint[])[1]) AS birth_length, n.token,
           coalesce(n.worker_id, ($17::uuid[])[1]) AS worker_id, n.poll, n.limit_name,
           n.parent_run_id, n.parent_step_id, n.parent_attempt, {{carried(n)}}, i.now,
           greatest(i.now + coalesce(n.delay, 0), n.start_at) AS available_at,
           n.token IS NOT NULL AND greatest(i.now + coalesce(n.delay, 0), n.start_at) <= i.now
           AND NOT ((SELECT EXISTS (SELECT FROM kagzi.limits)) AND {{is_limited(coalesce(n.namespace, ($2::text[])[1]), coalesce(n.task_queue, ($5::text[])[1]), coalesce(n.workflow_type, ($6::text[])[1]), n.limit_name)}}) AS born
    FROM unnest($2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[], $9::bytea[],
                $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::uuid[],
                $17::uuid[], $18::integer[], $19::text[], $20::uuid[], $21::text[], $22::integer[],
                {{carried_arrays($23)}})
        AS n (namespace, run_id, external_id, task_queue, workflow_type, version, priority, input, lease_length,
              timeout, deadline_at, delay, start_at, birth_length, token, worker_id, poll, limit_name,
              parent_run_id, parent_step_id, parent_attempt, {{carried}})
    CROSS JOIN instant AS i
    OFFSET 0  -- each value is made once, and none is kept
) AS asked
ON CONFLICT DO NOTHING
RETURNING namespace, run_id, status, started_at, available_at;

-- name: store_inputs
-- Inputs too large for their run's row; in the transaction that inserted the runs.
INSERT INTO kagzi.workflow_payloads (namespace, run_id, kind, data)
SELECT p.namespace, p.run_id, 'input', p.data
FROM unnest($1::text[], $2::uuid[], $3::bytea[]) AS p (namespace, run_id, data);

-- name: find_started_runs
-- Who has the ids that a start found taken. A run that has given its own up was started with it.
SELECT w.place, r.namespace, r.run_id, coalesce(r.external_id, r.former_id) AS external_id, r.task_queue, r.workflow_type, r.version, r.status, r.token,
       r.started_at, r.available_at,
       coalesce((SELECT v.value FROM kagzi.run_values AS v
                 WHERE (r.incarnation IS NOT NULL OR r.repeats_run_id IS NOT NULL) AND v.namespace = r.namespace AND v.run_id = r.run_id
                   AND v.name = '@first_input'), r.input, p.data) AS input
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

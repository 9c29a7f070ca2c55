-- Failure handlers: runs that are inserted in the transaction that fails another. `__kagzi_failure_handler` is the type of
-- the handler that workers register for a whole namespace, `@failed_input` the name of what the failed run was given.

-- name: read_failed_runs
-- Those of the runs that this transaction has ended which call for a handler. Runs that handle a failure do not, nor do those
-- below them, or a handler that fails would call itself.
SELECT r.namespace, r.run_id, r.workflow_type, r.version, r.task_queue, r.external_id, r.status, r.error, r.attempts,
       r.crashes, r.created_at, r.started_at, r.finished_at, r.parent_run_id, r.priority, r.on_failure,
       r.on_failure_queue, n.on_failure AS namespace_handler, n.on_failure_queue AS namespace_queue,
       t.queue AS registered_queue
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
LEFT JOIN kagzi.namespaces AS n ON n.namespace = r.namespace
LEFT JOIN LATERAL (
    SELECT t.queues[1] AS queue FROM kagzi.workflow_types AS t
    WHERE t.namespace = r.namespace AND t.workflow_type = '__kagzi_failure_handler'
    ORDER BY t.version = kagzi.resolve_version(t.namespace, t.workflow_type) DESC
    LIMIT 1
) AS t ON true
WHERE r.status IN ('FAILED', 'TIMED_OUT') AND r.handles_run_id IS NULL
  AND (r.on_failure IS NOT NULL OR n.on_failure IS NOT NULL OR t.queue IS NOT NULL);

-- name: start_handlers
-- Insert handlers, each at the moment in which its run failed. They have neither an id that could meet a user's nor a
-- deadline.
INSERT INTO kagzi.workflow_runs AS r (
    namespace, run_id, task_queue, workflow_type, version, priority, input, created_at, available_at, status, claim_key,
    handles_run_id, lineage, {{carried_to_handler}})
SELECT f.namespace, k.run_id, k.task_queue, k.workflow_type, kagzi.resolve_version(f.namespace, k.workflow_type),
       f.priority, k.input, f.finished_at, f.finished_at, 'PENDING', {{claim_key_of_now(f.priority, f.finished_at)}},
       f.run_id, '["' || k.run_id || '",' || substr(coalesce(f.lineage, '["' || f.run_id || '"]'), 2),
       {{carried_to_handler(f)}}
FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::bytea[])
    AS k (namespace, failed_run_id, run_id, task_queue, workflow_type, input)
JOIN kagzi.workflow_runs AS f ON f.namespace = k.namespace AND f.run_id = k.failed_run_id
RETURNING {{changed_run}}, r.workflow_type;

-- name: keep_failed_inputs
-- What failed runs were given, as it is, for their handlers: the failed runs may be deleted before these come to it.
INSERT INTO kagzi.run_values (namespace, run_id, name, value, at, seq)
SELECT r.namespace, k.handler_id, '@failed_input', coalesce(r.input, p.data), r.finished_at, 0
FROM unnest($1::text[], $2::uuid[], $3::uuid[]) AS k (namespace, run_id, handler_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
LEFT JOIN kagzi.workflow_payloads AS p
    ON p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input' AND r.input IS NULL;

-- name: read_failed_inputs
-- What the failed runs were given whose handlers these are.
SELECT v.run_id, v.value FROM kagzi.run_values AS v
WHERE v.namespace = $1::text AND v.run_id = ANY ($2::uuid[]) AND v.name = '@failed_input';

-- name: copy_failed_input
-- The same, for the run that repeats a handler; and what a run was started with that has begun anew since.
INSERT INTO kagzi.run_values (namespace, run_id, name, value, at, seq)
SELECT v.namespace, $3::uuid, v.name, v.value, v.at, v.seq FROM kagzi.run_values AS v
WHERE v.namespace = $1::text AND v.run_id = $2::uuid AND v.name IN ('@failed_input', '@first_input');

-- Failure handlers: runs that are inserted in the transaction that fails another. `__kagzi_failure_handler` is the type of
-- the handler that workers register for a whole namespace, `@failed_input` the name of what the failed run was given.

-- name: read_failed_run
-- A run that this transaction has ended, if it calls for a handler. Runs that handle a failure do not, nor do those below
-- them, or a handler that fails would call itself.
SELECT r.namespace, r.run_id, r.workflow_type, r.version, r.task_queue, r.external_id, r.status, r.error, r.attempts,
    r.crashes, r.created_at, r.started_at, r.finished_at, r.parent_run_id, r.priority, r.on_failure,
    r.on_failure_queue, n.on_failure AS namespace_handler, n.on_failure_queue AS namespace_queue,
    (SELECT t.queues FROM workflow_types AS t
     WHERE t.namespace = r.namespace AND t.workflow_type = '__kagzi_failure_handler' LIMIT 1) AS registered_queue
FROM workflow_runs AS r
LEFT JOIN namespaces AS n ON n.namespace = r.namespace
WHERE r.namespace = ?1 AND r.run_id = ?2 AND r.status IN ('FAILED', 'TIMED_OUT') AND r.handles_run_id IS NULL
  AND (r.on_failure IS NOT NULL OR n.on_failure IS NOT NULL OR registered_queue IS NOT NULL);

-- name: start_handler
-- Insert the handler of a run, at the moment in which that failed. It has neither an id that could meet a user's nor a deadline.
INSERT INTO workflow_runs (namespace, run_id, task_queue, workflow_type, version, status, priority, created_at,
    available_at, claim_key, input, handles_run_id, lineage, {{carried_to_handler}})
SELECT r.namespace, ?3, ?4, ?5, ?6, 'PENDING', r.priority, r.finished_at, r.finished_at, ?7, ?8, r.run_id,
    '["' || ?3 || '",' || substr(coalesce(r.lineage, '["' || r.run_id || '"]'), 2),
    {{carried_to_handler(r)}}
FROM workflow_runs AS r
WHERE r.namespace = ?1 AND r.run_id = ?2;

-- name: keep_failed_input
-- What a failed run was given, as it is, for its handler: the failed run may be deleted before that one comes to it.
INSERT INTO run_values (namespace, run_id, name, value, at, seq)
SELECT r.namespace, ?3, '@failed_input',
    coalesce(r.input, (SELECT p.data FROM workflow_payloads AS p
                       WHERE p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input')),
    r.finished_at, 0
FROM workflow_runs AS r
WHERE r.namespace = ?1 AND r.run_id = ?2;

-- name: copy_failed_input
-- The same, for the run that repeats a handler; and what a run was started with that has begun anew since.
INSERT INTO run_values (namespace, run_id, name, value, at, seq)
SELECT namespace, ?3, name, value, at, seq FROM run_values
WHERE namespace = ?1 AND run_id = ?2 AND name IN ('@failed_input', '@first_input');

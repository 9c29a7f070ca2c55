-- name: insert_runs
-- Insert new runs. Those whose id or external id is taken stay out; the number of rows tells that there were any.
INSERT INTO workflow_runs ({{run_columns}}, token, worker_id, poll, lease_expires_at, started_at, executions,
    limit_name, parent_run_id, parent_step_id, parent_attempt, parent_policy)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {{carried_values(?)}}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: find_started_run
-- The run that has this id, else the one that has this external id. One that has given its own up was started with it.
SELECT r.namespace, r.run_id, coalesce(r.external_id, r.former_id), r.workflow_type, r.task_queue, r.version,
    r.status, r.token, r.started_at, r.available_at,
    coalesce((SELECT v.value FROM run_values AS v
              WHERE (r.incarnation IS NOT NULL OR r.repeats_run_id IS NOT NULL) AND v.namespace = r.namespace AND v.run_id = r.run_id
                AND v.name = '@first_input'),
             r.input, (SELECT p.data FROM workflow_payloads AS p
                       WHERE p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input'))
FROM workflow_runs AS r
WHERE r.namespace = ?1 AND (r.run_id = ?2 OR (?3 IS NOT NULL AND r.external_id = ?3))
ORDER BY r.run_id = ?2 DESC
LIMIT 1;

-- name: insert_payloads
-- Inputs and outputs that are too large for their run's row.
INSERT INTO workflow_payloads (namespace, run_id, kind, data)
VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING;

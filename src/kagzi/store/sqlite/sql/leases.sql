-- name: confirm_lease
-- The holder of a lease was heard of: its claim has arrived, and it holds from now on.
UPDATE workflow_runs SET poll = NULL, lease_expires_at = ?4 + lease_length
WHERE namespace = ?1 AND run_id = ?2 AND token = ?3 AND status = 'RUNNING' AND poll IS NOT NULL;

-- name: read_lease
-- A run by the token of its latest lease.
SELECT r.worker_id, r.status, r.poll IS NULL, coalesce(r.input, i.data), r.lease_length, r.attempts, r.inbox_seq,
    r.retry_policy, v.value, coalesce(r.depth, 0), coalesce(r.incarnation, 0)
FROM workflow_runs AS r
LEFT JOIN run_values AS v
    ON r.handles_run_id IS NOT NULL AND v.namespace = r.namespace AND v.run_id = r.run_id AND v.name = '@failed_input'
LEFT JOIN workflow_payloads AS i
    ON r.input IS NULL AND i.namespace = r.namespace AND i.run_id = r.run_id AND i.kind = 'input'
WHERE r.namespace = ?1 AND r.run_id = ?2 AND r.token = ?3;

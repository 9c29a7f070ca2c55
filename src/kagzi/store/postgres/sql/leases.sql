-- name: confirm_lease
-- The holder of a lease was heard of: its claim has arrived, and it holds from now on.
UPDATE kagzi.workflow_runs AS r
SET poll = NULL, lease_expires_at = coalesce($4::bigint, kagzi.clock()) + r.lease_length
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid AND r.status = 'RUNNING'
  AND r.poll IS NOT NULL;

-- name: read_lease
-- A run by the token of its latest lease.
SELECT coalesce($4::bigint, kagzi.clock()) AS now, r.worker_id, r.status, r.poll IS NULL AS confirmed,
       coalesce(r.input, i.data) AS input, r.lease_length, r.attempts, r.inbox_seq, r.retry_policy,
       v.value AS failed_input, coalesce(r.depth, 0) AS depth, coalesce(r.incarnation, 0) AS incarnation
FROM kagzi.workflow_runs AS r
LEFT JOIN kagzi.run_values AS v
    ON v.namespace = r.namespace AND v.run_id = r.run_id AND v.name = '@failed_input' AND r.handles_run_id IS NOT NULL
LEFT JOIN kagzi.workflow_payloads AS i
    ON i.namespace = r.namespace AND i.run_id = r.run_id AND i.kind = 'input' AND r.input IS NULL
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid;

-- Ends of runs, and what follows from them in the same transaction.

-- name: end_runs
-- End live runs, whatever they are doing. Their holders are fenced off.
UPDATE kagzi.workflow_runs AS r SET
    status = $4::text, finished_at = i.now, error = $5::bytea, token = NULL, claim_key = NULL, lease_expires_at = NULL
FROM unnest($2::text[], $3::uuid[]) AS k (namespace, run_id)
CROSS JOIN (SELECT coalesce($1::bigint, kagzi.clock()) AS now OFFSET 0) AS i
WHERE r.namespace = k.namespace AND r.run_id = k.run_id AND r.status IN ('PENDING', 'RUNNING', 'SLEEPING')
RETURNING {{changed_run}};

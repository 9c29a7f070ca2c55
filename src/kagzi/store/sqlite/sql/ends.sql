-- Ends of runs, and what follows from them in the same transaction.

-- name: end_run
-- End a live run, whatever it is doing. Its holder is fenced off.
UPDATE workflow_runs
SET status = ?3, token = NULL, lease_expires_at = NULL, claim_key = NULL, error = ?4, finished_at = ?5
WHERE namespace = ?1 AND run_id = ?2 AND finished_at IS NULL;

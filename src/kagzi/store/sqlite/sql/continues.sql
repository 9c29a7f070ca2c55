-- Runs that begin anew in place.

-- name: keep_first_input
-- What a run was started with, kept once: a start that comes again is compared with it.
INSERT INTO run_values (namespace, run_id, name, value, at, seq)
SELECT r.namespace, r.run_id, '@first_input',
    coalesce(r.input, (SELECT p.data FROM workflow_payloads AS p
                       WHERE p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input')),
    ?3, 0
FROM workflow_runs AS r
WHERE r.namespace = ?1 AND r.run_id = ?2
ON CONFLICT DO NOTHING;

-- name: continue_run
-- Begin anew: another input, perhaps another version, and a clock that begins now. The run is not unbegun, so that a
-- cancellation is told. `executions` goes on, because tokens are made of it.
UPDATE workflow_runs
SET status = 'PENDING', available_at = ?6, claim_key = ?7, lease_expires_at = NULL, waiting_for = NULL,
    input = ?4, version = coalesce(?5, version), incarnation = coalesce(incarnation, 0) + 1,
    executions_before = executions, started_at = ?6, attempts = 0, crashes = 0, crashed_seq = NULL, error = NULL
WHERE namespace = ?1 AND run_id = ?2 AND token = ?3 AND status = 'RUNNING';

-- name: delete_input
-- Remove an input that is kept apart from its run.
DELETE FROM workflow_payloads WHERE namespace = ?1 AND run_id = ?2 AND kind = 'input';

-- name: drop_incarnations
-- Of what was recorded, people see the last incarnation that has ended: what was set aside before it goes.
DELETE FROM step_runs WHERE namespace = ?1 AND run_id = ?2 AND generation <> 0;

-- name: set_incarnation_aside
-- What the incarnation has recorded that ends here. Its children live on; their outcomes are told to nobody.
UPDATE step_runs
SET generation = r.incarnation, step_id = step_id || '~i' || r.incarnation, completed_seq = NULL, timeout_at = NULL
FROM workflow_runs AS r
WHERE step_runs.namespace = ?1 AND step_runs.run_id = ?2 AND step_runs.generation = 0
  AND r.namespace = step_runs.namespace AND r.run_id = step_runs.run_id;

-- name: settle_taken_signals
-- Signals that were taken stay taken: by no event that is left.
UPDATE signals SET taken_seq = 0 WHERE namespace = ?1 AND run_id = ?2 AND taken_seq > 0;

-- name: forget_taken_signals
-- A key is remembered as long as a sender may repeat it: one that it has made itself for a shorter time than a given one.
DELETE FROM signals
WHERE namespace = ?1 AND run_id = ?2 AND taken_seq = 0 AND sent_at < ?3 - iif(substr(key, 1, 1) = '~', ?4, ?5);

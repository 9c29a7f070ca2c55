-- name: count_held_runs
-- How many of these runs are held under these tokens, with nothing in their inbox. The runs to look for lead (CROSS JOIN),
-- whatever the planner thinks.
SELECT count(*)
FROM json_each(?2) AS wanted
CROSS JOIN workflow_runs AS r
WHERE r.namespace = ?1 AND r.run_id = wanted.key AND r.token = wanted.value AND r.status = 'RUNNING'
  AND r.inbox_seq = 0;

-- name: read_leases
-- Who holds these runs, all in one row: every row that Python fetches gives the interpreter away and has to wait for it.
SELECT json_group_array(json_array(run_id, token, status, inbox_seq, priority, attempts, cancel_requested))
FROM workflow_runs
WHERE namespace = ?1 AND run_id IN (SELECT value FROM json_each(?2));

-- name: write_steps
-- Record attempts of steps. An event is never overwritten; a RUNNING row gives way to anything, and to another RUNNING
-- one of a later lease, because that one has another timeout. What an attempt was given does not change once it ended.
INSERT INTO step_runs (namespace, run_id, status, kind, step_id, attempt, completed_seq, started_at, finished_at,
    retry_at, timeout_at, input, input_hash, output, error)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, run_id, step_id, attempt) DO UPDATE SET
    status = excluded.status, kind = excluded.kind, completed_seq = excluded.completed_seq,
    started_at = excluded.started_at, finished_at = excluded.finished_at, retry_at = excluded.retry_at,
    timeout_at = excluded.timeout_at, input_hash = excluded.input_hash, output = excluded.output,
    error = excluded.error,
    input = CASE WHEN step_runs.status = 'RUNNING' THEN coalesce(excluded.input, input) ELSE input END
WHERE step_runs.completed_seq IS NULL AND (excluded.status <> 'RUNNING' OR step_runs.status = 'RUNNING');

-- name: complete_steps
-- Record attempts of functions that have returned: what `write_steps` does, without the values that these do not have.
INSERT INTO step_runs (namespace, run_id, status, kind, step_id, attempt, completed_seq, started_at, finished_at,
    input, input_hash, output)
VALUES (?, ?, 'COMPLETED', 'FUNCTION', ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, run_id, step_id, attempt) DO UPDATE SET
    status = excluded.status, kind = excluded.kind, completed_seq = excluded.completed_seq,
    started_at = excluded.started_at, finished_at = excluded.finished_at, retry_at = NULL, timeout_at = NULL,
    input_hash = excluded.input_hash, output = excluded.output, error = NULL,
    input = CASE WHEN step_runs.status = 'RUNNING' THEN excluded.input ELSE input END
WHERE step_runs.completed_seq IS NULL;

-- name: finish_runs
-- End runs under their lease. The token stays, so that a repeat is recognised.
WITH ended (namespace, run_id, token, status, output, error, finished_at) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?))
UPDATE workflow_runs AS r
SET status = ended.status, output = ended.output, error = ended.error, finished_at = ended.finished_at,
    claim_key = NULL, lease_expires_at = NULL
FROM ended
WHERE r.namespace = ended.namespace AND r.run_id = ended.run_id AND r.token = ended.token AND r.status = 'RUNNING';

-- name: release_runs
-- Let go of runs under their lease: parked, or handed back. The token stays, so that a repeat is recognised.
WITH released (namespace, run_id, token, status, available_at, claim_key, waiting_for) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?))
UPDATE workflow_runs AS r
SET status = released.status, available_at = released.available_at, claim_key = released.claim_key,
    waiting_for = released.waiting_for, lease_expires_at = NULL
FROM released
WHERE r.namespace = released.namespace AND r.run_id = released.run_id AND r.token = released.token
  AND r.status = 'RUNNING';

-- name: retry_run
-- Give a failed run another try: it counts against the run's own policy.
UPDATE workflow_runs
SET status = 'PENDING', attempts = ?4, available_at = ?5, claim_key = ?6, error = ?7, lease_expires_at = NULL,
    crashed_seq = min(crashed_seq, ?8)
WHERE namespace = ?1 AND run_id = ?2 AND token = ?3 AND status = 'RUNNING';

-- name: set_steps_aside
-- Everything after the kept events becomes an old generation: visible to people, unseen by replay. Children that run or
-- have succeeded stay: their work is not done twice. So do switches of the code that were on.
UPDATE step_runs
SET generation = ?4, step_id = step_id || '~' || ?4, completed_seq = NULL, timeout_at = NULL
WHERE namespace = ?1 AND run_id = ?2 AND generation = 0 AND (completed_seq > ?3 OR completed_seq IS NULL)
  AND NOT (child_run_id IS NOT NULL AND status IN ('RUNNING', 'COMPLETED'))
  AND NOT (kind = 'SIGNAL' AND completed_seq IS NULL);

-- name: forget_step_timeouts
-- The steps that were running under a lease that is gone: nobody runs them now, so they cannot take too long.
UPDATE step_runs SET timeout_at = NULL
WHERE namespace = ?1 AND run_id = ?2 AND status = 'RUNNING' AND timeout_at IS NOT NULL;

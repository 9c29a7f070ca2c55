-- name: get_steps
-- Every attempt of a run's steps, or of one of them, old generations too: events in order first, then the others by
-- start. Where nobody looks at payloads they are not read: those of a long run are many megabytes.
SELECT step_id, attempt, kind, status, completed_seq, started_at, finished_at, retry_at, input_hash,
    CASE WHEN ?3 THEN output END, error, CASE WHEN ?3 THEN input END, child_run_id
FROM step_runs
WHERE namespace = ?1 AND run_id = ?2 AND (?4 IS NULL OR step_id = ?4)
ORDER BY completed_seq IS NULL, completed_seq, started_at, step_id, attempt;

-- name: read_history
-- What replay needs of several runs: old generations and inputs stay out.
SELECT run_id, {{shown_step}}, NULL, child_run_id
FROM step_runs
WHERE namespace = ?1 AND run_id IN (SELECT value FROM json_each(?2)) AND generation = 0;

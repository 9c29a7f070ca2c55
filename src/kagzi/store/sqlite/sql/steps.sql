-- name: get_steps
-- Every attempt of a run's steps, old generations too: events in order first, then the others by start.
SELECT {{shown_step}}, input, child_run_id
FROM step_runs
WHERE namespace = ?1 AND run_id = ?2
ORDER BY completed_seq IS NULL, completed_seq, started_at, step_id, attempt;

-- name: read_history
-- What replay needs of several runs: old generations and inputs stay out.
SELECT run_id, {{shown_step}}, NULL, child_run_id
FROM step_runs
WHERE namespace = ?1 AND run_id IN (SELECT value FROM json_each(?2)) AND generation = 0;

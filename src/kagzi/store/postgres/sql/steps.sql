-- name: read_history
-- What replay needs of claimed runs. A statement of its own after the claim: within one statement a step that was
-- committed while the claim waited for its run's lock would be missing. Run by run: asked for all of them with ANY, and
-- in order, the planner of a young table walks through the steps of the whole namespace.
SELECT h.*
FROM unnest($2::uuid[]) AS w (run_id)
CROSS JOIN LATERAL (
    SELECT {{shown_step}}, NULL::bytea AS input
    FROM kagzi.step_runs AS s
    WHERE s.namespace = $1::text AND s.run_id = w.run_id AND s.generation = 0
    ORDER BY s.completed_seq NULLS LAST, s.started_at, s.step_id, s.attempt
) AS h;

-- name: get_steps
-- What is recorded of one run, or of one of its steps, for people. Where nobody looks at payloads they are not read: those
-- of a long run are many megabytes.
SELECT s.step_id, s.attempt, s.kind, s.status, s.completed_seq, s.started_at, s.finished_at, s.retry_at, s.input_hash,
       CASE WHEN $3::boolean THEN s.output END AS output, s.error, s.child_run_id,
       CASE WHEN $3::boolean THEN s.input END AS input
FROM kagzi.step_runs AS s
WHERE s.namespace = $1::text AND s.run_id = $2::uuid AND ($4::text IS NULL OR s.step_id = $4::text)
ORDER BY s.completed_seq NULLS LAST, s.started_at, s.step_id, s.attempt;

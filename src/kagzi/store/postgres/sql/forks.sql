-- Forks: runs that go on from a chosen step of another one.

-- name: find_forked_run
-- The run that is to be forked. Locked, so that a chunk in flight comes before or after, and retention later.
SELECT r.status FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND {{is_run(r)}}
FOR SHARE OF r;

-- name: number_of_step
-- The number of the event that a step became.
SELECT s.completed_seq FROM kagzi.step_runs AS s
WHERE s.namespace = $1::text AND s.run_id = $2::uuid AND s.step_id = $3::text AND s.generation = 0
  AND s.completed_seq IS NOT NULL;

-- name: steps_named
-- The steps that have ended and have this id ($3), or a name in which this one occurs ($4: as it stands in ids).
SELECT s.step_id FROM kagzi.step_runs AS s
WHERE s.namespace = $1::text AND s.run_id = $2::uuid AND s.generation = 0 AND s.completed_seq IS NOT NULL
  AND (s.step_id = $3::text OR strpos(s.step_id, $4::text) > 0)
ORDER BY s.completed_seq;

-- name: change_fork
-- What a fork has other than its source, if anything.
UPDATE kagzi.workflow_runs AS r SET
    version = coalesce($3::text, r.version), input = CASE WHEN $4::boolean THEN $5::bytea ELSE r.input END
WHERE r.namespace = $1::text AND r.run_id = $2::uuid;

-- name: find_fork
-- The run that has this id, and whether it is what is asked for: then this request came twice. It
-- may have been moved to another version since.
SELECT r.status, r.available_at, r.workflow_type,
       (r.repeats_run_id = $3::uuid
           AND ($4::bytea IS NULL OR coalesce(r.input, p.data) = $4::bytea OR r.incarnation IS NOT NULL)
           AND (r.origin_run_id IS NOT NULL) = ($5::integer > 0)) IS TRUE AS same
FROM kagzi.workflow_runs AS r
LEFT JOIN kagzi.workflow_payloads AS p ON p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input'
WHERE r.namespace = $1::text AND r.run_id = $2::uuid;

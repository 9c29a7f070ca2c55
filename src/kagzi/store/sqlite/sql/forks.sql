-- Forks: runs that go on from a chosen step of another one.

-- name: number_of_step
-- The number of the event that a step became.
SELECT completed_seq FROM step_runs
WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND generation = 0 AND completed_seq IS NOT NULL;

-- name: steps_named
-- The steps that have ended and have this id (?3), or a name in which this one occurs (?4: as it stands in ids).
SELECT step_id FROM step_runs
WHERE namespace = ?1 AND run_id = ?2 AND generation = 0 AND completed_seq IS NOT NULL
  AND (step_id = ?3 OR instr(step_id, ?4) > 0)
ORDER BY completed_seq;

-- name: change_fork
-- What a fork has other than its source, if anything.
UPDATE workflow_runs SET version = coalesce(?3, version), input = CASE WHEN ?4 THEN ?5 ELSE input END
WHERE namespace = ?1 AND run_id = ?2;

-- name: find_fork
-- The run that has this id, and whether it is what is asked for: then this request came twice. It
-- may have been moved to another version since.
SELECT r.status, r.available_at, r.workflow_type,
       r.repeats_run_id IS ?3 AND (?4 IS NULL OR coalesce(r.input, p.data) = ?4 OR r.incarnation IS NOT NULL)
           AND (r.origin_run_id IS NOT NULL) = (?5 > 0)
FROM workflow_runs AS r
LEFT JOIN workflow_payloads AS p ON p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input'
WHERE r.namespace = ?1 AND r.run_id = ?2;

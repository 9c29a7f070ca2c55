-- Ids that go from a finished run to the one that takes its place.

-- name: give_up_id
-- A finished run gives its id up: the one change that such a run allows, and once.
UPDATE workflow_runs SET former_id = external_id, external_id = NULL, superseded_by = ?3
WHERE namespace = ?1 AND run_id = ?2 AND external_id IS NOT NULL AND finished_at IS NOT NULL;

-- name: find_run_to_repeat
-- Where a finished run stands, who has its id if it has given that up, and where that one stands.
SELECT r.status, r.external_id, r.superseded_by, s.status, s.available_at
FROM workflow_runs AS r
LEFT JOIN workflow_runs AS s ON s.namespace = r.namespace AND s.run_id = r.superseded_by
WHERE r.namespace = ?1 AND r.run_id = ?2 AND {{is_run(r)}};

-- name: take_id
-- The new run has the id now, and names the run that had it.
UPDATE workflow_runs SET
    external_id = (SELECT o.former_id FROM workflow_runs AS o WHERE o.namespace = ?1 AND o.run_id = ?3),
    repeats_run_id = ?3
WHERE namespace = ?1 AND run_id = ?2;

-- name: find_earlier_child
-- The run that has this id, if it has finished; and whether it is a child that this very step has spawned before: in an
-- earlier attempt of its run, or in one that its run repeats.
WITH RECURSIVE lineage (run_id, step) AS (
    SELECT ?3, 0
    UNION ALL
    SELECT r.repeats_run_id, l.step + 1
    FROM lineage AS l
    JOIN workflow_runs AS r ON r.namespace = ?1 AND r.run_id = l.run_id
    WHERE r.repeats_run_id IS NOT NULL AND l.step < 100
)
SELECT h.run_id, h.workflow_type, h.status,
       h.parent_step_id IS ?4 AND h.parent_run_id IN (SELECT l.run_id FROM lineage AS l)
FROM workflow_runs AS h
WHERE h.namespace = ?1 AND h.external_id = ?2 AND h.finished_at IS NOT NULL;

-- Ids that go from a finished run to the one that takes its place.

-- name: give_up_id
-- A finished run gives its id up: the one change that such a run allows, and once. Nothing if somebody else was first; the
-- condition is looked at once more when the lock is there.
UPDATE kagzi.workflow_runs AS r SET former_id = r.external_id, external_id = NULL, superseded_by = $3::uuid
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.external_id IS NOT NULL AND r.finished_at IS NOT NULL;

-- name: take_id
-- The new run has the id now, and names the run that had it.
UPDATE kagzi.workflow_runs AS r SET external_id = o.former_id, repeats_run_id = o.run_id
FROM kagzi.workflow_runs AS o
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND o.namespace = $1::text AND o.run_id = $3::uuid;

-- name: find_earlier_children
-- The runs that have these ids, if they have finished; and whether each is a child that this very step has spawned before:
-- in an earlier attempt of its run, or in one that its run repeats.
WITH RECURSIVE asked AS MATERIALIZED (
    SELECT k.* FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[]) WITH ORDINALITY
        AS k (namespace, external_id, parent_run_id, step_id, place)
), lineage (place, namespace, run_id, step) AS (
    SELECT a.place, a.namespace, a.parent_run_id, 0 FROM asked AS a
    UNION ALL
    SELECT l.place, l.namespace, r.repeats_run_id, l.step + 1
    FROM lineage AS l
    JOIN kagzi.workflow_runs AS r ON r.namespace = l.namespace AND r.run_id = l.run_id
    WHERE r.repeats_run_id IS NOT NULL AND l.step < 100
)
SELECT a.place::integer AS place, h.run_id, h.workflow_type, h.status,
       (h.parent_step_id = a.step_id AND EXISTS (SELECT FROM lineage AS l
                                                 WHERE l.place = a.place AND l.run_id = h.parent_run_id)) IS TRUE AS own
FROM asked AS a
JOIN kagzi.workflow_runs AS h ON h.namespace = a.namespace AND h.external_id = a.external_id
WHERE h.finished_at IS NOT NULL AND h.external_id IS NOT NULL;

-- name: lock_holder
-- A finished run that is to give its id up to a child. Without waiting: the transaction holds locks of other runs already.
SELECT r.run_id FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.external_id IS NOT NULL
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- Children: spawning them, telling their parents, and ending them after those.

-- fragment: follows(r)
-- A live run that is to follow the end of its parent and was not told yet.
{r}.finished_at IS NULL
        AND ({r}.parent_policy = 'terminate' OR ({r}.parent_policy = 'cancel' AND NOT {r}.cancel_requested))

-- name: place_child
-- The step of a child. One that is there stays: then this spawn came twice, or a retry has kept the child.
INSERT INTO step_runs (namespace, run_id, step_id, attempt, kind, status, started_at, input_hash, input, child_run_id)
VALUES (?1, ?2, ?3, ?4, 'CHILD_WORKFLOW', 'RUNNING', ?5, ?6, ?7, ?8)
ON CONFLICT DO NOTHING;

-- name: clear_place
-- A step that was begun to have a child, call by call, gives its place to it.
DELETE FROM step_runs
WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND attempt = ?4 AND kind = 'CHILD_WORKFLOW' AND status = 'RUNNING'
  AND child_run_id IS NULL AND completed_seq IS NULL;

-- name: insert_child
-- A child. Nothing if its id is taken. What is below a failure handler handles the same failure, and calls no other.
INSERT INTO workflow_runs (parent_run_id, parent_step_id, parent_policy, depth, {{run_columns}}, handles_run_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, {{carried_values(?19)}},
    (SELECT p.handles_run_id FROM workflow_runs AS p WHERE p.namespace = ?5 AND p.run_id = ?1))
ON CONFLICT DO NOTHING;

-- name: mark_parent
-- A run has children from now on.
UPDATE workflow_runs SET has_children = 1 WHERE namespace = ?1 AND run_id = ?2 AND has_children IS NULL;

-- name: is_own_child
-- Whether the run that has this id is the child of this very step.
SELECT EXISTS (SELECT 1 FROM workflow_runs
               WHERE namespace = ?1 AND run_id = ?2 AND parent_run_id = ?3 AND parent_step_id = ?4);

-- name: refuse_child
-- The outcome of a child that could not be.
UPDATE step_runs SET status = 'FAILED', error = ?5, finished_at = max(?6, started_at)
WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND attempt = ?4 AND status = 'RUNNING';

-- name: refuse_place
-- The outcome of a child whose place another step has: nothing else would ever answer the one who waits for the child.
-- An event stays, and is what the workflow gets.
UPDATE step_runs SET
    kind = 'CHILD_WORKFLOW', status = 'FAILED', child_run_id = ?5, output = NULL, error = ?6,
    finished_at = max(?7, started_at), retry_at = NULL, timeout_at = NULL
WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND attempt = ?4 AND child_run_id IS NULL AND completed_seq IS NULL;

-- name: find_outcome
-- How a child has ended, and its parent if that is live and to be told.
SELECT c.parent_run_id, c.parent_step_id, c.status, coalesce(c.output, o.data), c.error, c.finished_at
FROM workflow_runs AS c
LEFT JOIN workflow_payloads AS o
    ON c.output IS NULL AND o.namespace = c.namespace AND o.run_id = c.run_id AND o.kind = 'output'
JOIN workflow_runs AS p ON p.namespace = c.namespace AND p.run_id = c.parent_run_id AND p.finished_at IS NULL
WHERE c.namespace = ?1 AND c.run_id = ?2 AND c.parent_policy <> 'none' AND c.finished_at IS NOT NULL;

-- name: tell_outcome
-- The outcome of a child, in its parent's step. One that was told before stays as it is. The step began by the clock of a
-- worker, which may be ahead by what its calls take: it does not end before that.
UPDATE step_runs SET status = ?5, output = ?6, error = ?7, finished_at = max(?8, started_at)
WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND child_run_id = ?4 AND status = 'RUNNING'
  AND completed_seq IS NULL AND generation = 0;

-- name: take_outcome
-- The number of an outcome that the workflow has got. One that it has under the same number counts: then the chunk came
-- twice.
UPDATE step_runs SET completed_seq = ?5, finished_at = ?6
WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND attempt = ?4 AND child_run_id IS NOT NULL
  AND status <> 'RUNNING' AND (completed_seq IS NULL OR completed_seq = ?5);

-- name: give_outcomes_back
-- Completed children that a retry of the run no longer sees: their outcome can be taken again.
UPDATE step_runs SET completed_seq = NULL
WHERE namespace = ?1 AND run_id = ?2 AND generation = 0 AND completed_seq > ?3 AND child_run_id IS NOT NULL
  AND status = 'COMPLETED';

-- name: read_outcomes
-- Outcomes that a run has not taken yet.
SELECT {{shown_step}}, NULL, child_run_id
FROM step_runs
WHERE namespace = ?1 AND run_id = ?2 AND child_run_id IS NOT NULL AND completed_seq IS NULL AND status <> 'RUNNING'
  AND generation = 0
ORDER BY finished_at, step_id;

-- name: find_untold
-- Children of a live run that have ended, or are gone, although its step shows them as RUNNING.
SELECT s.step_id, s.attempt, s.child_run_id, c.run_id IS NULL
FROM workflow_runs AS p
JOIN step_runs AS s ON s.namespace = p.namespace AND s.run_id = p.run_id
LEFT JOIN workflow_runs AS c ON c.namespace = s.namespace AND c.run_id = s.child_run_id
WHERE p.namespace = ?1 AND p.run_id = ?2 AND p.finished_at IS NULL AND s.status = 'RUNNING'
  AND s.child_run_id IS NOT NULL AND s.generation = 0 AND (c.run_id IS NULL OR c.finished_at IS NOT NULL);

-- name: forget_cascades
-- Ends that nobody is left to be told of.
DELETE FROM cascades
WHERE NOT EXISTS (SELECT 1 FROM workflow_runs AS r
                  WHERE r.namespace = cascades.namespace AND r.parent_run_id = cascades.run_id AND {{follows(r)}});

-- name: find_cascades
-- Children that are to follow the end of their parent. A CROSS JOIN, so that SQLite begins with the few cascades and not
-- with all children.
SELECT r.namespace, r.run_id, r.parent_policy
FROM cascades AS k
CROSS JOIN workflow_runs AS r ON r.namespace = k.namespace AND r.parent_run_id = k.run_id
WHERE {{follows(r)}}
LIMIT ?1;

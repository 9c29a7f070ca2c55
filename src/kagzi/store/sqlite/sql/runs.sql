-- name: get_run
-- One run as the engine shows it. Templates of schedules are no runs.
SELECT {{shown_run}}
FROM workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.run_id = ?2 AND r.status NOT IN ('SCHEDULED', 'PAUSED');

-- name: get_run_by_external_id
-- The run that has this external id.
SELECT {{shown_run}}
FROM workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.external_id = ?2;

-- fragment: listed
-- What a list lets through; a filter that is NULL lets everything.
CASE WHEN ?3 IS NULL THEN r.status NOT IN ('SCHEDULED', 'PAUSED') ELSE r.status IN (?3, ?9) END
  AND (?4 IS NULL OR r.workflow_type = ?4) AND (?5 IS NULL OR r.task_queue = ?5)
  AND (?6 IS NULL OR r.created_at > ?6) AND (?7 IS NULL OR r.created_at < ?7)

-- name: list_runs
-- Runs of a namespace, newest first, beyond a run id and down to another one. Templates of schedules are no runs.
SELECT {{shown_run}}
FROM workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.run_id < ?2 AND r.run_id >= ?10
  AND {{listed}}
ORDER BY r.run_id DESC
LIMIT ?8;

-- name: list_runs_backward
-- The same, going the other way: the nearest newer runs, nearest first.
SELECT {{shown_run}}
FROM workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.run_id > ?2 AND r.run_id <= ?10
  AND {{listed}}
ORDER BY r.run_id
LIMIT ?8;

-- name: list_children
-- The same of the children of one run; a statement of its own, so that their index is used.
SELECT {{shown_run}}
FROM workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.parent_run_id = ?11 AND r.run_id < ?2 AND r.run_id >= ?10
  AND {{listed}}
ORDER BY r.run_id DESC
LIMIT ?8;

-- name: list_children_backward
-- The same, going the other way.
SELECT {{shown_run}}
FROM workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.parent_run_id = ?11 AND r.run_id > ?2 AND r.run_id <= ?10
  AND {{listed}}
ORDER BY r.run_id
LIMIT ?8;

-- name: search_edge
-- The last of so many runs that are older than a run id, if there are as many.
SELECT run_id FROM workflow_runs WHERE namespace = ?1 AND run_id < ?2 ORDER BY run_id DESC LIMIT 1 OFFSET ?3 - 1;

-- name: search_edge_backward
-- The last of so many runs that are newer than a run id, if there are as many.
SELECT run_id FROM workflow_runs WHERE namespace = ?1 AND run_id > ?2 ORDER BY run_id LIMIT 1 OFFSET ?3 - 1;

-- name: finished_of
-- Which of these (namespace, run_id) have finished or do not exist.
SELECT json_group_array(json(w.value))
FROM json_each(?1) AS w
LEFT JOIN workflow_runs AS r
    ON r.namespace = json_extract(w.value, '$[0]') AND r.run_id = json_extract(w.value, '$[1]')
WHERE r.run_id IS NULL OR r.finished_at IS NOT NULL;

-- name: horizon
-- When leases, steps, deadlines, workers and schedules are next due; each is the first entry of an index, or a scan of what is live.
SELECT
    (SELECT min(lease_expires_at) FROM workflow_runs WHERE status = 'RUNNING'),
    (SELECT min(timeout_at) FROM step_runs WHERE status = 'RUNNING'),
    (SELECT min(deadline_at) FROM workflow_runs WHERE deadline_at IS NOT NULL AND finished_at IS NULL),
    (SELECT min(cancel_deadline) FROM workflow_runs WHERE cancel_deadline IS NOT NULL AND finished_at IS NULL),
    (SELECT min(last_heartbeat_at) FROM workers WHERE status <> 'OFFLINE'),
    (SELECT min(available_at) FROM workflow_runs WHERE status = 'SCHEDULED'),
    (SELECT at FROM schedule_ends ORDER BY end_id LIMIT 1),
    (SELECT min(at) FROM cascades);

-- name: earliest_claim
-- The earliest claim of a queue.
SELECT min(claim_key) FROM workflow_runs
WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING');

-- name: ensure_namespace
-- Make a namespace known, on first use.
INSERT INTO namespaces (namespace, retention_days, created_at, updated_at) VALUES (?1, ?3, ?2, ?2)
ON CONFLICT DO NOTHING;

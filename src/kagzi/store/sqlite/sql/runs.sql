-- name: get_run
-- One run as the engine shows it. Templates of schedules are no runs.
SELECT {{shown_run}}
FROM workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.run_id = ?2 AND {{is_run(r)}};

-- name: get_run_by_external_id
-- The run that has this external id.
SELECT {{shown_run}}
FROM workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.external_id = ?2;

-- name: find_run
-- Which run has this id, without reading it.
SELECT run_id FROM workflow_runs WHERE namespace = ?1 AND external_id = ?2;

-- name: finished_of
-- Which of these (namespace, run_id) have finished or do not exist.
SELECT json_group_array(json(w.value))
FROM json_each(?1) AS w
LEFT JOIN workflow_runs AS r
    ON r.namespace = json_extract(w.value, '$[0]') AND r.run_id = json_extract(w.value, '$[1]') AND {{is_run(r)}}
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
    (SELECT min(at) FROM cascades),
    (SELECT min(next_at) FROM jobs WHERE next_at IS NOT NULL),
    EXISTS (SELECT 1 FROM limits);

-- name: earliest_claim
-- The earliest claim of a queue.
SELECT min(claim_key) FROM workflow_runs
WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING');

-- name: ensure_namespace
-- Make a namespace known, on first use.
INSERT INTO namespaces (namespace, retention_days, created_at, updated_at) VALUES (?1, ?3, ?2, ?2)
ON CONFLICT DO NOTHING;

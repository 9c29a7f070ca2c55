-- name: get_run
-- One run with its payloads. Templates of schedules are no runs.
SELECT {{shown_run}}
FROM kagzi.workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND {{is_run(r)}};

-- name: get_runs
-- Several runs with their payloads.
SELECT {{shown_run}}
FROM unnest($1::text[], $2::uuid[]) AS w (namespace, run_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = w.namespace AND r.run_id = w.run_id
{{payloads_of_run}}
WHERE {{is_run(r)}};

-- name: get_run_by_external_id
-- The run that has this id.
SELECT {{shown_run}}
FROM kagzi.workflow_runs AS r
{{payloads_of_run}}
WHERE r.namespace = $1::text AND r.external_id = $2::text;

-- name: find_run
-- Which run has this id, without reading it.
SELECT r.run_id FROM kagzi.workflow_runs AS r WHERE r.namespace = $1::text AND r.external_id = $2::text;

-- name: finished_of
-- Which of these runs have finished or do not exist.
SELECT w.namespace, w.run_id
FROM unnest($1::text[], $2::uuid[]) AS w (namespace, run_id)
LEFT JOIN kagzi.workflow_runs AS r ON r.namespace = w.namespace AND r.run_id = w.run_id AND {{is_run(r)}}
WHERE r.run_id IS NULL OR r.finished_at IS NOT NULL;

-- name: horizon
-- When something is next due, in one look.
SELECT coalesce($1::bigint, kagzi.clock()) AS now,
       ARRAY (
           SELECT (SELECT r.claim_key FROM kagzi.workflow_runs AS r
                   WHERE r.namespace = q.namespace AND r.task_queue = q.task_queue
                     AND r.status IN ('PENDING', 'SLEEPING')
                     -- What is paused nobody need look for. Asked once for a queue, before its runs.
                     AND NOT EXISTS (SELECT FROM kagzi.limits AS l
                                     WHERE l.namespace = q.namespace AND l.paused_at IS NOT NULL
                                       AND (l.scope = 'namespace' OR (l.scope = 'queue' AND l.name = q.task_queue)))
                   ORDER BY r.namespace, r.task_queue, r.claim_key LIMIT 1)
           FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS q (namespace, task_queue, place)
           ORDER BY q.place
       ) AS due,
       (SELECT min(r.lease_expires_at) FROM kagzi.workflow_runs AS r WHERE r.status = 'RUNNING') AS lease,
       (SELECT s.timeout_at FROM kagzi.step_runs AS s
        WHERE s.status = 'RUNNING' AND s.timeout_at IS NOT NULL ORDER BY s.timeout_at LIMIT 1) AS step_timeout,
       (SELECT r.deadline_at FROM kagzi.workflow_runs AS r
        WHERE r.deadline_at IS NOT NULL AND r.finished_at IS NULL ORDER BY r.deadline_at LIMIT 1) AS deadline,
       (SELECT r.cancel_deadline FROM kagzi.workflow_runs AS r
        WHERE r.cancel_deadline IS NOT NULL AND r.finished_at IS NULL ORDER BY r.cancel_deadline LIMIT 1) AS cancel,
       (SELECT min(w.last_heartbeat_at) FROM kagzi.workers AS w WHERE w.status <> 'OFFLINE') AS heartbeat,
       -- Nobody can make a schedule before this index is built, so that runs are never read one by one for it.
       CASE WHEN EXISTS (SELECT FROM kagzi.schedules) THEN
           (SELECT r.available_at FROM kagzi.workflow_runs AS r
            WHERE r.status = 'SCHEDULED' AND r.available_at IS NOT NULL ORDER BY r.available_at LIMIT 1)
       END AS schedule,
       (SELECT e.at FROM kagzi.schedule_ends AS e ORDER BY e.end_id LIMIT 1) AS schedule_end,
       (SELECT k.at FROM kagzi.cascades AS k ORDER BY k.at LIMIT 1) AS cascade,
       (SELECT min(j.next_at) FROM kagzi.jobs AS j WHERE j.next_at IS NOT NULL) AS job,
       EXISTS (SELECT FROM kagzi.limits) AS limited;

-- name: ensure_namespace
-- Namespaces come into being when they are first used.
INSERT INTO kagzi.namespaces (namespace, retention_days, created_at, updated_at)
SELECT $2::text, $3::integer, i.now, i.now FROM (SELECT coalesce($1::bigint, kagzi.clock()) AS now) AS i
ON CONFLICT (namespace) DO NOTHING;

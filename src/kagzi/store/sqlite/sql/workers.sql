-- name: register_worker
-- A worker introduces itself, or comes back after it was taken for lost.
INSERT INTO workers (worker_id, namespace, queues, types, versions, hostname, pid, version, concurrency, status,
    registered_at, last_heartbeat_at, labels)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'ONLINE', ?10, ?10, ?11)
ON CONFLICT (worker_id) DO UPDATE SET
    queues = excluded.queues, types = excluded.types, versions = excluded.versions,
    hostname = excluded.hostname, pid = excluded.pid, version = excluded.version, concurrency = excluded.concurrency,
    labels = excluded.labels, status = 'ONLINE', last_heartbeat_at = excluded.last_heartbeat_at, deregistered_at = NULL
WHERE workers.namespace = excluded.namespace;

-- name: record_worker_event
-- For people: what happened to a worker, and when.
INSERT INTO worker_events (namespace, worker_id, event, at) VALUES (?1, ?2, ?3, ?4);

-- name: find_worker
-- Whether the engine knows a worker.
SELECT namespace, status FROM workers WHERE worker_id = ?1 AND (?2 IS NULL OR namespace = ?2);

-- name: beat_worker
-- The worker is alive.
UPDATE workers SET last_heartbeat_at = ?2, completed = ?3, failed = ?4
WHERE worker_id = ?1 AND status <> 'OFFLINE' AND (?5 IS NULL OR namespace = ?5);

-- name: find_leases_of_worker
-- Every run that a worker holds.
SELECT namespace, run_id, token, task_queue, priority, poll, inbox_seq, cancel_requested, lease_length
FROM workflow_runs
WHERE worker_id = ?1 AND status = 'RUNNING' AND (?2 IS NULL OR namespace = ?2);

-- name: renew_leases
-- Renew to now + length, never additively.
UPDATE workflow_runs SET lease_expires_at = ?3 + lease_length
WHERE worker_id = ?1 AND status = 'RUNNING' AND run_id IN (SELECT value FROM json_each(?2));

-- name: read_tokens
-- The tokens of these runs, whatever their status; but not of those that another worker is driving.
SELECT json_group_array(json_array(run_id, token))
FROM workflow_runs
WHERE namespace = ?1 AND run_id IN (SELECT value FROM json_each(?2)) AND (status <> 'RUNNING' OR worker_id = ?3);

-- name: revoke_lease
-- Take a run from its holder and make it claimable. The token goes, so that whatever the holder still sends is refused.
UPDATE workflow_runs
SET status = 'PENDING', token = NULL, worker_id = NULL, poll = NULL, available_at = ?3, claim_key = ?4,
    lease_expires_at = NULL
WHERE namespace = ?1 AND run_id = ?2 AND status = 'RUNNING';

-- name: leave_worker
-- The worker has gone, by itself or unheard.
UPDATE workers SET status = 'OFFLINE', deregistered_at = ?2
WHERE worker_id = ?1 AND status <> 'OFFLINE' AND (?3 IS NULL OR namespace = ?3)
RETURNING namespace;

-- name: list_workers
-- The workers of a namespace, also those that have gone.
SELECT worker_id, namespace, queues, types, versions, hostname, pid, version, concurrency, status, registered_at,
    last_heartbeat_at, completed, failed, labels
FROM workers
WHERE namespace = ?1
ORDER BY registered_at, worker_id;

-- name: find_silent_workers
-- Workers nobody has heard of since an instant.
SELECT worker_id, namespace FROM workers
WHERE status <> 'OFFLINE' AND last_heartbeat_at <= ?1
ORDER BY last_heartbeat_at, worker_id
LIMIT ?2;

-- name: find_gone_workers
-- Workers that have been gone for longer than their namespace keeps what is over. There are as many rows as processes were
-- started meanwhile, so an index would cost more than it saves.
SELECT w.worker_id
FROM workers AS w
LEFT JOIN namespaces AS n ON n.namespace = w.namespace
WHERE w.status = 'OFFLINE'
  AND coalesce(w.deregistered_at, w.last_heartbeat_at) <= ?1 - coalesce(n.retention_days, 30) * 86400000000
LIMIT ?2;

-- name: delete_worker
-- Remove a worker, unless it has come back since it was looked at.
DELETE FROM workers WHERE worker_id = ?1 AND status = 'OFFLINE';

-- name: find_old_worker_events
-- What happened to workers longer ago than their namespace keeps what is over.
SELECT e.event_id
FROM worker_events AS e
LEFT JOIN namespaces AS n ON n.namespace = e.namespace
WHERE e.at <= ?1 - coalesce(n.retention_days, 30) * 86400000000
ORDER BY e.event_id
LIMIT ?2;

-- name: delete_worker_event
-- Remove an event.
DELETE FROM worker_events WHERE event_id = ?1;

-- name: read_types
-- What is remembered of these types.
SELECT t.workflow_type, t.version, t.queues, t.last_seen_at, t.summary, t.input_schema, t.start_defaults
FROM (SELECT DISTINCT value FROM json_each(?2)) AS o
JOIN workflow_types AS t ON t.namespace = ?1 AND t.workflow_type = o.value;

-- name: remember_type
-- What a worker offers.
INSERT INTO workflow_types
    (namespace, workflow_type, version, queues, first_seen_at, last_seen_at, summary, input_schema, start_defaults)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?8)
ON CONFLICT (namespace, workflow_type, version) DO UPDATE SET
    queues = excluded.queues, last_seen_at = excluded.last_seen_at, summary = excluded.summary,
    input_schema = excluded.input_schema, start_defaults = excluded.start_defaults;

-- name: read_interface
-- What was told of a version, or of every version by workers that execute all of them.
SELECT workflow_type, version, summary, input_schema, start_defaults FROM workflow_types
WHERE namespace = ?1 AND workflow_type = ?2 AND version IN (?3, '')
ORDER BY version DESC
LIMIT 1;

-- name: resolve_version
-- Which version a run gets whose start names none. Of versions first seen together the longer number is the newer one.
SELECT coalesce(
    (SELECT version FROM default_versions WHERE namespace = ?1 AND workflow_type = ?2),
    (SELECT version FROM workflow_types WHERE namespace = ?1 AND workflow_type = ?2 AND version <> ''
     ORDER BY first_seen_at DESC, length(version) DESC, version DESC LIMIT 1),
    '1');

-- name: set_default_version
-- Choose what starts by name get, if a worker has ever offered it or everything is allowed.
INSERT INTO default_versions (namespace, workflow_type, version, set_at)
SELECT ?1, ?2, ?3, ?4
WHERE ?5 OR EXISTS (
    SELECT 1 FROM workflow_types WHERE namespace = ?1 AND workflow_type = ?2 AND version IN (?3, ''))
ON CONFLICT (namespace, workflow_type) DO UPDATE SET version = excluded.version, set_at = excluded.set_at;

-- name: forget_default_version
-- Nobody chooses any more.
DELETE FROM default_versions WHERE namespace = ?1 AND workflow_type = ?2;

-- name: list_versions
-- What workers have offered or somebody has chosen; the newest of each workflow first.
SELECT k.workflow_type, k.version, t.queues, t.first_seen_at, t.last_seen_at, d.version IS NOT NULL, t.summary
FROM (
    SELECT workflow_type, version FROM workflow_types WHERE namespace = ?1
    UNION
    SELECT workflow_type, version FROM default_versions WHERE namespace = ?1) AS k
LEFT JOIN workflow_types AS t ON t.namespace = ?1 AND t.workflow_type = k.workflow_type AND t.version = k.version
LEFT JOIN default_versions AS d ON d.namespace = ?1 AND d.workflow_type = k.workflow_type AND d.version = k.version
WHERE ?2 IS NULL OR k.workflow_type = ?2
ORDER BY k.workflow_type, t.first_seen_at DESC NULLS LAST, length(k.version) DESC, k.version DESC
LIMIT ?3;

-- name: online_offers
-- What workers that are online execute.
SELECT types, versions FROM workers
WHERE namespace = ?1 AND status = 'ONLINE' AND last_heartbeat_at > ?2
ORDER BY worker_id
LIMIT ?3;

-- name: find_unseen_types
-- Types that were not offered for longer than their namespace keeps what is over: no worker that is still remembered has
-- them either.
SELECT t.namespace, t.workflow_type, t.version, t.last_seen_at
FROM workflow_types AS t
LEFT JOIN namespaces AS n ON n.namespace = t.namespace
WHERE t.last_seen_at <= ?1 - coalesce(n.retention_days, 30) * 86400000000
  AND NOT EXISTS (
      SELECT 1 FROM workers AS w, json_each(w.types) AS o
      JOIN json_each(w.versions) AS v ON v.key = o.key
      WHERE w.namespace = t.namespace AND o.value = t.workflow_type AND v.value = t.version)
LIMIT ?2;

-- name: forget_type
-- Remove a type, unless it was offered again since it was looked at.
DELETE FROM workflow_types WHERE namespace = ?1 AND workflow_type = ?2 AND version = ?3 AND last_seen_at = ?4;

-- name: waiting_page
-- Runs that wait or sleep, in the order of claiming.
SELECT task_queue, claim_key, run_id, workflow_type = ?2 AND version = ?3
FROM workflow_runs
WHERE namespace = ?1 AND status IN ('PENDING', 'SLEEPING') AND (task_queue, claim_key, run_id) > (?4, ?5, ?6)
ORDER BY task_queue, claim_key, run_id
LIMIT ?7;

-- name: move_run
-- Another version for a run that nobody holds.
UPDATE workflow_runs SET version = ?3
WHERE namespace = ?1 AND run_id = ?2 AND status IN ('PENDING', 'SLEEPING');

-- name: move_checked_run
-- Another version for a run that nobody holds, and that nobody has claimed since it was looked at.
UPDATE workflow_runs SET version = ?3
WHERE namespace = ?1 AND run_id = ?2 AND status IN ('PENDING', 'SLEEPING') AND workflow_type = ?4 AND version = ?5
  AND executions = ?6
RETURNING task_queue;

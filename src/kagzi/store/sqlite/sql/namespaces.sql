-- name: create_namespace
-- Make a namespace on purpose; nothing if it is there.
INSERT INTO namespaces (namespace, display_name, description, retention_days, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT DO NOTHING
RETURNING namespace, display_name, description, enabled, created_at, updated_at, on_failure, on_failure_queue;

-- name: get_namespace
-- One namespace by its name.
SELECT namespace, display_name, description, enabled, created_at, updated_at, on_failure, on_failure_queue FROM namespaces WHERE namespace = ?1;

-- name: list_namespaces
-- Namespaces after a name.
SELECT namespace, display_name, description, enabled, created_at, updated_at, on_failure, on_failure_queue
FROM namespaces
WHERE namespace > ?1
ORDER BY namespace
LIMIT ?2;

-- name: update_namespace
-- Describe a namespace differently, enable or disable it, say what handles failures. What is NULL stays.
UPDATE namespaces SET
    display_name = coalesce(?2, display_name), description = coalesce(?3, description),
    enabled = coalesce(?4, enabled), updated_at = ?5,
    on_failure = CASE WHEN ?6 IS NULL THEN on_failure ELSE nullif(?6, '') END,
    on_failure_queue = CASE WHEN ?6 IS NULL THEN on_failure_queue ELSE ?7 END
WHERE namespace = ?1
RETURNING namespace, display_name, description, enabled, created_at, updated_at, on_failure, on_failure_queue;

-- name: disabled_namespaces
-- Where no runs are started.
SELECT namespace FROM namespaces WHERE NOT enabled LIMIT 10000;

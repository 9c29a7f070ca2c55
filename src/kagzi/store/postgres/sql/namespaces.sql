-- name: create_namespace
-- Make a namespace on purpose; nothing if it is there.
INSERT INTO kagzi.namespaces AS n (namespace, display_name, description, retention_days, created_at, updated_at)
SELECT $2::text, $3::text, $4::text, $5::integer, i.now, i.now
FROM (SELECT coalesce($1::bigint, kagzi.clock()) AS now) AS i
ON CONFLICT (namespace) DO NOTHING
RETURNING n.namespace, n.display_name, n.description, n.enabled, n.created_at, n.updated_at, n.on_failure, n.on_failure_queue;

-- name: get_namespace
-- One namespace by its name.
SELECT n.namespace, n.display_name, n.description, n.enabled, n.created_at, n.updated_at, n.on_failure, n.on_failure_queue
FROM kagzi.namespaces AS n
WHERE n.namespace = $1::text;

-- name: list_namespaces
-- Namespaces after a name. Compared byte by byte, as SQLite does.
SELECT n.namespace, n.display_name, n.description, n.enabled, n.created_at, n.updated_at, n.on_failure, n.on_failure_queue
FROM kagzi.namespaces AS n
WHERE n.namespace COLLATE "C" > $1::text
ORDER BY n.namespace COLLATE "C"
LIMIT $2::integer;

-- name: update_namespace
-- Describe a namespace differently, enable or disable it, say what handles failures. What is NULL stays.
UPDATE kagzi.namespaces AS n SET
    display_name = coalesce($3::text, n.display_name), description = coalesce($4::text, n.description),
    enabled = coalesce($5::boolean, n.enabled), updated_at = coalesce($1::bigint, kagzi.clock()),
    on_failure = CASE WHEN $6::text IS NULL THEN n.on_failure ELSE nullif($6::text, '') END,
    on_failure_queue = CASE WHEN $6::text IS NULL THEN n.on_failure_queue ELSE $7::text END
WHERE n.namespace = $2::text
RETURNING n.namespace, n.display_name, n.description, n.enabled, n.created_at, n.updated_at, n.on_failure, n.on_failure_queue;

-- name: disabled_namespaces
-- Where no runs are started.
SELECT n.namespace FROM kagzi.namespaces AS n WHERE NOT n.enabled LIMIT 10000;

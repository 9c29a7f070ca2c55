-- Pauses of queues, workflows and namespaces.

-- fragment: limit_columns
-- What a limit says.
l.namespace, l.scope, l.name, l.paused_at, l.paused_by, l.pause_reason

-- name: list_limits
-- What holds back runs of a namespace. Compared byte by byte, as SQLite does.
SELECT {{limit_columns}} FROM kagzi.limits AS l WHERE l.namespace = $1::text
ORDER BY l.scope COLLATE "C", l.name COLLATE "C";

-- name: pause
-- Hand out nothing of this; what is paused already stays as it is.
INSERT INTO kagzi.limits AS l (namespace, scope, name, paused_at, paused_by, pause_reason, updated_at)
SELECT $2::text, $3::text, $4::text, i.now, $5::text, $6::text, i.now
FROM (SELECT coalesce($1::bigint, kagzi.clock()) AS now) AS i
ON CONFLICT (namespace, scope, name) DO UPDATE SET
    paused_at = coalesce(l.paused_at, EXCLUDED.paused_at),
    paused_by = CASE WHEN l.paused_at IS NULL THEN EXCLUDED.paused_by ELSE l.paused_by END,
    pause_reason = CASE WHEN l.paused_at IS NULL THEN EXCLUDED.pause_reason ELSE l.pause_reason END,
    updated_at = CASE WHEN l.paused_at IS NULL THEN EXCLUDED.updated_at ELSE l.updated_at END
RETURNING {{limit_columns}};

-- name: resume
-- Hand it out again.
DELETE FROM kagzi.limits AS l WHERE l.namespace = $1::text AND l.scope = $2::text AND l.name = $3::text;

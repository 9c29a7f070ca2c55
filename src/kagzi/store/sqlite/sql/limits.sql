-- Pauses of queues, workflows and namespaces.

-- fragment: limit_columns
-- What a limit says.
namespace, scope, name, paused_at, paused_by, pause_reason

-- name: list_limits
-- What holds back runs of a namespace.
SELECT {{limit_columns}} FROM limits WHERE namespace = ?1 ORDER BY scope, name;

-- name: limited
-- All that has limits. Few have, so that reading them all is cheaper than asking for each run.
SELECT namespace, scope, name FROM limits;

-- name: paused
-- What of a namespace is not handed out.
SELECT scope, name FROM limits WHERE namespace = ?1 AND paused_at IS NOT NULL;

-- name: all_paused
-- The same of all namespaces.
SELECT namespace, scope, name FROM limits WHERE paused_at IS NOT NULL;

-- name: pause
-- Hand out nothing of this; what is paused already stays as it is.
INSERT INTO limits (namespace, scope, name, paused_at, paused_by, pause_reason, updated_at)
VALUES (?1, ?2, ?3, ?6, ?4, ?5, ?6)
ON CONFLICT (namespace, scope, name) DO UPDATE SET
    paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_reason = excluded.pause_reason,
    updated_at = excluded.updated_at
    WHERE paused_at IS NULL;

-- name: resume
-- Hand it out again.
DELETE FROM limits WHERE namespace = ?1 AND scope = ?2 AND name = ?3;

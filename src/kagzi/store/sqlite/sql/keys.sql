-- name: any_key
-- Whether there is or was any key.
SELECT EXISTS (SELECT 1 FROM api_keys);

-- name: live_keys
-- The keys that open something.
SELECT key_id, namespace, role, name, digest, created_at, expires_at, revoked_at, last_used_at
FROM api_keys
WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)
ORDER BY created_at DESC
LIMIT ?2;

-- name: create_key
-- A new key.
INSERT INTO api_keys (key_id, namespace, role, name, digest, created_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
RETURNING key_id, namespace, role, name, digest, created_at, expires_at, revoked_at, last_used_at;

-- name: get_key
-- One key, dead or alive.
SELECT key_id, namespace, role, name, digest, created_at, expires_at, revoked_at, last_used_at
FROM api_keys WHERE key_id = ?1;

-- name: list_keys
-- Keys older than a position, the newest first; of one namespace or of all.
SELECT key_id, namespace, role, name, digest, created_at, expires_at, revoked_at, last_used_at
FROM api_keys
WHERE (?1 IS NULL OR namespace = ?1) AND (created_at < ?2 OR (created_at = ?2 AND key_id < ?3))
ORDER BY created_at DESC, key_id DESC
LIMIT ?4;

-- name: expire_key
-- Let a key end.
UPDATE api_keys SET expires_at = ?2 WHERE key_id = ?1;

-- name: revoke_key
-- Refuse a key from now on. Once is enough.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?2) WHERE key_id = ?1
RETURNING key_id, namespace, role, name, digest, created_at, expires_at, revoked_at, last_used_at;

-- name: touch_key
-- When a key was last used. Several servers tell of one key; the latest wins.
UPDATE api_keys SET last_used_at = ?2 WHERE key_id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2);

-- name: open_session
-- Somebody has logged in with a key.
INSERT INTO sessions (session_id, key_id, ends_at) VALUES (?1, ?2, ?3);

-- name: prune_sessions
-- Forget sessions that are over, and of a key all but the newest.
DELETE FROM sessions
WHERE ends_at <= ?1
   OR session_id IN (SELECT session_id FROM sessions WHERE key_id = ?2 ORDER BY ends_at DESC LIMIT -1 OFFSET ?3);

-- name: live_sessions
-- The key of each of these sessions (a JSON array) that is not over.
SELECT session_id, key_id FROM sessions
WHERE session_id IN (SELECT value FROM json_each(?1)) AND ends_at > ?2;

-- name: end_session
-- Somebody has logged out.
DELETE FROM sessions WHERE session_id = ?1;

-- name: append_audit
-- Add an entry to the audit log.
INSERT INTO audit_log (at, actor, action, namespace, target, request_id, peer, result)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: list_audit
-- Entries before a position, the newest first. A filter that is NULL lets everything through.
SELECT entry_id, at, actor, action, namespace, target, request_id, peer, result
FROM audit_log
WHERE entry_id < ?1 AND (?2 IS NULL OR namespace = ?2) AND (?3 IS NULL OR actor = ?3)
ORDER BY entry_id DESC
LIMIT ?4;

-- name: find_old_audit
-- Whether there is anything for prune_audit.
SELECT EXISTS (SELECT 1 FROM (SELECT at FROM audit_log ORDER BY entry_id LIMIT ?1) WHERE at <= ?2);

-- name: prune_audit
-- Delete what is past its retention among the oldest entries.
DELETE FROM audit_log
WHERE entry_id IN (SELECT entry_id FROM audit_log ORDER BY entry_id LIMIT ?1) AND at <= ?2;

-- name: get_secret
-- A secret of this database.
SELECT value FROM secrets WHERE name = ?;

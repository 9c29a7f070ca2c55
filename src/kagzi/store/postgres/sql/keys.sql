-- name: live_keys
-- The keys that open something, and whether there is or was any: always one row at least.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
SELECT i.now, EXISTS (SELECT FROM kagzi.api_keys) AS configured,
       k.key_id, k.namespace, k.role, k.name, k.digest, k.created_at, k.expires_at, k.revoked_at, k.last_used_at
FROM instant AS i
LEFT JOIN LATERAL (
    SELECT * FROM kagzi.api_keys AS a
    WHERE a.revoked_at IS NULL AND (a.expires_at IS NULL OR a.expires_at > i.now)
    ORDER BY a.created_at DESC
    LIMIT $2::integer
) AS k ON true;

-- name: create_key
-- A new key, and the entry of the audit log that says so.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), made AS (
    INSERT INTO kagzi.api_keys AS k (key_id, namespace, role, name, digest, created_at, expires_at)
    SELECT $2::text, $3::text, $4::text, $5::text, $6::bytea, i.now, i.now + $7::bigint FROM instant AS i
    RETURNING k.*
), noted AS (
    INSERT INTO kagzi.audit_log (at, actor, action, namespace, target, request_id, peer, result)
    SELECT i.now, $9::text, $10::text, $8::text, $11::text, $12::text, $13::text, $14::text
    FROM made CROSS JOIN instant AS i
)
SELECT * FROM made;

-- name: get_key
-- One key, dead or alive.
SELECT k.* FROM kagzi.api_keys AS k WHERE k.key_id = $1::text;

-- name: list_keys
-- Keys older than a position, the newest first; of one namespace or of all.
SELECT k.*
FROM kagzi.api_keys AS k
WHERE ($1::text IS NULL OR k.namespace = $1::text)
  AND (k.created_at < $2::bigint OR (k.created_at = $2::bigint AND k.key_id COLLATE "C" < $3::text))
ORDER BY k.created_at DESC, k.key_id COLLATE "C" DESC
LIMIT $4::integer;

-- name: rotate_key
-- A key in the place of another one, which has so much time left; with the same length of life, if that has an end.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), old AS MATERIALIZED (
    SELECT k.* FROM kagzi.api_keys AS k CROSS JOIN instant AS i
    WHERE k.key_id = $2::text AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > i.now)
    FOR UPDATE OF k
), ending AS (
    UPDATE kagzi.api_keys AS k SET expires_at = least(k.expires_at, i.now + $3::bigint)
    FROM old AS o CROSS JOIN instant AS i
    WHERE k.key_id = o.key_id
), made AS (
    INSERT INTO kagzi.api_keys AS k (key_id, namespace, role, name, digest, created_at, expires_at)
    SELECT $4::text, o.namespace, o.role, o.name, $5::bytea, i.now, i.now + (o.expires_at - o.created_at)
    FROM old AS o CROSS JOIN instant AS i
    RETURNING k.*
), noted AS (
    INSERT INTO kagzi.audit_log (at, actor, action, namespace, target, request_id, peer, result)
    SELECT i.now, $6::text, $7::text, m.namespace, $8::text, $9::text, $10::text, $11::text
    FROM made AS m CROSS JOIN instant AS i
)
SELECT * FROM made;

-- name: revoke_key
-- Refuse a key from now on. Once is enough.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), revoked AS (
    UPDATE kagzi.api_keys AS k SET revoked_at = coalesce(k.revoked_at, i.now)
    FROM instant AS i
    WHERE k.key_id = $2::text
    RETURNING k.*
), noted AS (
    INSERT INTO kagzi.audit_log (at, actor, action, namespace, target, request_id, peer, result)
    SELECT i.now, $3::text, $4::text, r.namespace, $5::text, $6::text, $7::text, $8::text
    FROM revoked AS r CROSS JOIN instant AS i
)
SELECT * FROM revoked;

-- name: touch_keys
-- When keys were last used. Several servers tell of one key; the latest wins.
UPDATE kagzi.api_keys AS k SET last_used_at = u.at
FROM unnest($1::text[], $2::bigint[]) AS u (key_id, at)
WHERE k.key_id = u.key_id AND (k.last_used_at IS NULL OR k.last_used_at < u.at);

-- name: open_session
-- Somebody has logged in with a key. Sessions that are over are forgotten, and of this key all but the newest.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), pruned AS (
    DELETE FROM kagzi.sessions
    WHERE session_id IN (
        SELECT o.session_id FROM kagzi.sessions AS o CROSS JOIN instant AS i
        WHERE o.ends_at <= i.now OR o.session_id IN (
            SELECT n.session_id FROM kagzi.sessions AS n WHERE n.key_id = $3::text
            ORDER BY n.ends_at DESC OFFSET $5::integer - 1
        )
        FOR UPDATE OF o SKIP LOCKED
    )
)
INSERT INTO kagzi.sessions (session_id, key_id, ends_at)
SELECT $2::text, $3::text, i.now + $4::bigint FROM instant AS i;

-- name: live_sessions
-- The key of each of these sessions that is not over.
SELECT s.session_id, s.key_id FROM kagzi.sessions AS s
WHERE s.session_id = ANY ($2::text[]) AND s.ends_at > coalesce($1::bigint, kagzi.clock());

-- name: end_session
-- Somebody has logged out.
DELETE FROM kagzi.sessions WHERE session_id = $1::text;

-- name: append_audit
-- Add entries to the audit log.
INSERT INTO kagzi.audit_log (at, actor, action, namespace, target, request_id, peer, result)
SELECT coalesce($1::bigint, kagzi.clock()), e.actor, e.action, e.namespace, e.target, e.request_id, e.peer, e.result
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
    WITH ORDINALITY AS e (actor, action, namespace, target, request_id, peer, result, number)
ORDER BY e.number;

-- name: list_audit
-- Entries before a position, the newest first. A filter that is NULL lets everything through.
SELECT e.entry_id, e.at, e.actor, e.action, e.namespace, e.target, e.request_id, e.peer, e.result
FROM kagzi.audit_log AS e
WHERE e.entry_id < $1::bigint
  AND ($2::text IS NULL OR e.namespace = $2::text)
  AND ($3::text IS NULL OR e.actor = $3::text)
ORDER BY e.entry_id DESC
LIMIT $4::integer;

-- name: prune_audit
-- Delete what is past its retention among the oldest entries. Our role may not, so a function of the tables' owner does.
SELECT kagzi.prune_audit_log($1::integer, $2::bigint) AS deleted;

-- name: get_secret
-- A secret of this database.
SELECT s.value FROM kagzi.secrets AS s WHERE s.name = $1::text;

-- API keys and the audit log.

CREATE TABLE api_keys (
    key_id       TEXT PRIMARY KEY,
    namespace    TEXT,                    -- NULL: all of them
    role         TEXT NOT NULL CHECK (role IN ('admin', 'client', 'worker', 'viewer')),
    name         TEXT NOT NULL,
    digest       BLOB NOT NULL CHECK (length(digest) = 32),  -- of the secret, which nobody knows but its holder
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER                  -- to the minute or so
) STRICT;

-- Who changed what, or was refused. Rows are added and never changed.
CREATE TABLE audit_log (
    entry_id   INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    action     TEXT NOT NULL,
    namespace  TEXT,
    target     TEXT NOT NULL,
    request_id TEXT NOT NULL,
    peer       TEXT NOT NULL,
    result     TEXT NOT NULL
) STRICT;
CREATE INDEX audit_log_namespace ON audit_log (namespace, entry_id);

CREATE TRIGGER audit_log_is_final BEFORE UPDATE ON audit_log
BEGIN
    SELECT raise(ABORT, 'entries of the audit log cannot change');
END;

-- Who is logged in to the dashboard: the sessions that have not been ended.
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    key_id     TEXT NOT NULL,            -- whose rights it has
    ends_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_of_key ON sessions (key_id, ends_at);

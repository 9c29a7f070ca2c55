-- Pauses: what is not handed out for now. A row is there exactly while something holds runs back, so that nobody pays for it
-- otherwise.

CREATE TABLE limits (
    updated_at   INTEGER NOT NULL,
    paused_at    INTEGER,                -- since when no run of it is handed out
    namespace    TEXT NOT NULL,
    scope        TEXT NOT NULL CHECK (scope IN ('namespace', 'queue', 'workflow')),
    name         TEXT NOT NULL,          -- '' is the namespace itself
    paused_by    TEXT,
    pause_reason TEXT,
    PRIMARY KEY (namespace, scope, name)
) STRICT, WITHOUT ROWID;

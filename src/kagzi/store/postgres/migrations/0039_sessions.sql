-- Who is logged in to the dashboard: the sessions that have not been ended.
CREATE TABLE kagzi.sessions (
    session_id text   PRIMARY KEY,
    key_id     text   NOT NULL,          -- whose rights it has
    ends_at    bigint NOT NULL
);
CREATE INDEX sessions_of_key ON kagzi.sessions (key_id, ends_at);

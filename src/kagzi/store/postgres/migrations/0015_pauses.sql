-- Pauses: what is not handed out for now. A row is there exactly while something holds runs back, so that nobody pays for it
-- otherwise.

CREATE TABLE kagzi.limits (
    updated_at   bigint NOT NULL,
    paused_at    bigint,                 -- since when no run of it is handed out
    namespace    text NOT NULL,
    scope        text NOT NULL CHECK (scope IN ('namespace', 'queue', 'workflow')),
    name         text NOT NULL,          -- '' is the namespace itself
    paused_by    text,
    pause_reason text,
    PRIMARY KEY (namespace, scope, name)
);

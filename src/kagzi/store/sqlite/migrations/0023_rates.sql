-- How often runs may begin, and turns between keys.

ALTER TABLE limits ADD COLUMN rate TEXT;                -- count/period/burst, as somebody has set it
ALTER TABLE limits ADD COLUMN rate_declared TEXT;       -- the slowest that a live worker declares
ALTER TABLE limits ADD COLUMN key_rate TEXT;            -- of each key
ALTER TABLE limits ADD COLUMN key_rate_declared TEXT;
ALTER TABLE limits ADD COLUMN fair INTEGER NOT NULL DEFAULT 0;  -- its keys take turns

-- Where rates and turns stand. What is in the past says nothing any more.
CREATE TABLE limit_turns (
    namespace TEXT NOT NULL,
    scope TEXT NOT NULL,        -- queue, workflow, key or fair
    name TEXT NOT NULL,
    limit_key TEXT NOT NULL,
    turn INTEGER NOT NULL,      -- of a rate: when the next run begins if all go on; of fair keys: when the last one was taken
    PRIMARY KEY (namespace, scope, name, limit_key)
) STRICT, WITHOUT ROWID;

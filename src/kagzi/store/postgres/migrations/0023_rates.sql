-- How often runs may begin, and turns between keys.

ALTER TABLE kagzi.limits
    ADD COLUMN rate text,                -- count/period/burst, as somebody has set it
    ADD COLUMN rate_declared text,       -- the slowest that a live worker declares
    ADD COLUMN key_rate text,            -- of each key
    ADD COLUMN key_rate_declared text,
    ADD COLUMN fair boolean NOT NULL DEFAULT false;  -- its keys take turns

-- Where rates and turns stand; locked by the rows of kagzi.limits. What is in the past says nothing any more.
CREATE TABLE kagzi.limit_turns (
    namespace text NOT NULL,
    scope text NOT NULL,        -- queue, workflow, key or fair
    name text NOT NULL,
    limit_key text COLLATE "C" NOT NULL,
    turn bigint NOT NULL,       -- of a rate: when the next run begins if all go on; of fair keys: when the last one was taken
    PRIMARY KEY (namespace, scope, name, limit_key)
);

-- Limits of how many runs may run at once. A run that may not be claimed for one is held: its claim_key is
-- 253402300799000001, so that claims do not meet it, and held_key is its place for when it may.

ALTER TABLE kagzi.limits
    ADD COLUMN concurrency integer,       -- as somebody has set it; it comes before what workers declare
    ADD COLUMN declared integer,          -- the smallest that a live worker declares
    ADD COLUMN key_concurrency integer,   -- of each key
    ADD COLUMN key_declared integer;
ALTER TABLE kagzi.workflow_runs
    ADD COLUMN limit_name text COLLATE "C",  -- whose limits count beside those of its workflow
    ADD COLUMN limit_key text COLLATE "C",
    ADD COLUMN held_key bigint;

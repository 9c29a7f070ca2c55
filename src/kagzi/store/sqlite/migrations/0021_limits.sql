-- Limits of how many runs may run at once. A run that may not be claimed for one is held: its claim_key is
-- 253402300799000001, so that claims do not meet it, and held_key is its place for when it may.

ALTER TABLE limits ADD COLUMN concurrency INTEGER;       -- as somebody has set it; it comes before what workers declare
ALTER TABLE limits ADD COLUMN declared INTEGER;          -- the smallest that a live worker declares
ALTER TABLE limits ADD COLUMN key_concurrency INTEGER;   -- of each key
ALTER TABLE limits ADD COLUMN key_declared INTEGER;
ALTER TABLE workflow_runs ADD COLUMN limit_name TEXT;    -- whose limits count beside those of its workflow
ALTER TABLE workflow_runs ADD COLUMN limit_key TEXT;
ALTER TABLE workflow_runs ADD COLUMN held_key INTEGER;

-- The runs that are held, or were until they could be claimed, in lines that are served in turn.
CREATE INDEX workflow_runs_lines ON workflow_runs
    (namespace, limit_name, limit_key, task_queue, workflow_type, version, claim_key, held_key)
    WHERE held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING');

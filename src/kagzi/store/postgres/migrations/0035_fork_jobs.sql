-- Jobs can also fork runs and move them to another version: what those need to know (options, as JSON), and why a job has
-- left runs as they are (reasons, as JSON: how many for each).
ALTER TABLE kagzi.jobs DROP CONSTRAINT jobs_action;
ALTER TABLE kagzi.jobs ADD CONSTRAINT jobs_action
    CHECK (action IN ('cancel', 'terminate', 'wake', 'move', 'retry', 'rerun', 'fork', 'delete'));
ALTER TABLE kagzi.jobs ADD COLUMN options bytea, ADD COLUMN reasons bytea;

-- Jobs can also wake runs.
ALTER TABLE kagzi.jobs DROP CONSTRAINT jobs_action;
ALTER TABLE kagzi.jobs ADD CONSTRAINT jobs_action
    CHECK (action IN ('cancel', 'terminate', 'wake', 'retry', 'rerun', 'delete'));

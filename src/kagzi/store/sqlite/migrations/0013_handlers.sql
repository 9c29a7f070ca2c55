-- Failure handlers: workflows that are started when a run fails.

ALTER TABLE workflow_runs ADD COLUMN on_failure TEXT;
ALTER TABLE workflow_runs ADD COLUMN on_failure_queue TEXT;
ALTER TABLE namespaces ADD COLUMN on_failure TEXT;
ALTER TABLE namespaces ADD COLUMN on_failure_queue TEXT;
CREATE INDEX workflow_runs_handlers ON workflow_runs (namespace, handles_run_id) WHERE handles_run_id IS NOT NULL;

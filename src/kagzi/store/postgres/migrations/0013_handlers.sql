-- Failure handlers: workflows that are started when a run fails.

ALTER TABLE kagzi.workflow_runs ADD COLUMN on_failure text, ADD COLUMN on_failure_queue text;
ALTER TABLE kagzi.namespaces ADD COLUMN on_failure text, ADD COLUMN on_failure_queue text;

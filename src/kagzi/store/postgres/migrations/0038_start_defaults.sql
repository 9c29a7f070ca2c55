-- What the decorator of a workflow gives to runs whose start says nothing about it, as the worker said that registered last
-- with it: the workflow that handles failures and its queue, and how long a run may take. NULL: nothing.
ALTER TABLE kagzi.workflow_types ADD COLUMN on_failure text;
ALTER TABLE kagzi.workflow_types ADD COLUMN on_failure_queue text;
ALTER TABLE kagzi.workflow_types ADD COLUMN run_timeout bigint;

-- What the code of a workflow gives to runs whose start says nothing about it, as the worker said that registered last
-- with it: queue, limits, what handles failures and so on, as JSON of StartDefaults. NULL: nothing was told.
ALTER TABLE kagzi.workflow_types ADD COLUMN start_defaults text;

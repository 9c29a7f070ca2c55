-- What a workflow is for and what it takes, as the worker said that registered last with it. NULL: none has said it.
ALTER TABLE workflow_types ADD COLUMN summary TEXT;
-- JSON Schema of its parameters.
ALTER TABLE workflow_types ADD COLUMN input_schema TEXT;

-- Runs that begin anew in place (continue_as_new): both NULL for nearly all.

ALTER TABLE workflow_runs ADD COLUMN incarnation INTEGER;        -- how often; NULL is 0
ALTER TABLE workflow_runs ADD COLUMN executions_before INTEGER;  -- of its executions, those before it did so last; NULL is 0

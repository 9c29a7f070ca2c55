-- Runs that begin anew in place (continue_as_new): both NULL for nearly all.

ALTER TABLE kagzi.workflow_runs
    ADD COLUMN incarnation integer,        -- how often; NULL is 0
    ADD COLUMN executions_before integer;  -- of its executions, those before it did so last; NULL is 0

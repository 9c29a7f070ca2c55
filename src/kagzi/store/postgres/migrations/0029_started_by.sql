-- Which attempt of a step has started a run, beside parent_run_id and parent_step_id.
ALTER TABLE kagzi.workflow_runs ADD COLUMN parent_attempt integer;

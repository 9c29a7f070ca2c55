-- What became of starts that were debounced: how many have joined the run after the one that has made it, when the last
-- did, and the run id that one would have had. NULL: none has.
ALTER TABLE kagzi.workflow_runs ADD COLUMN joins integer, ADD COLUMN joined_at bigint, ADD COLUMN joined_by uuid;

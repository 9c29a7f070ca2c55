-- No statement looks for a run by the failed one that it handles: who shows it has read it.
DROP INDEX workflow_runs_handlers;

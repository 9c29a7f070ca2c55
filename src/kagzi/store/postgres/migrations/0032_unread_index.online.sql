-- No statement reads it, and each that writes a run has to open it.
DROP INDEX CONCURRENTLY IF EXISTS kagzi.workflow_runs_handlers;

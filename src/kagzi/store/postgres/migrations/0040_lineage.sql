-- For whom what a run holds may be encrypted, if not for the run itself: it repeats another, was fired by a schedule, was
-- joined by debounced starts, or handles a failure. A JSON array, first the one for which it encrypts itself.
ALTER TABLE kagzi.workflow_runs ADD COLUMN lineage text;

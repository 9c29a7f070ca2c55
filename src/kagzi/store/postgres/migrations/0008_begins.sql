-- Runs that an earlier version parked in their first sleep have no row of when it began (`@begin`). It counted first sleeps
-- from the start of the run, and what it parked must wake by that, too: without the row the sleep would begin anew.

-- Processes of that version may be at work. First lock, then look: what one of them has claimed, driven and parked again
-- meanwhile has events, which the second statement sees.
SELECT count(*) FROM (
    SELECT FROM kagzi.workflow_runs AS r
    WHERE r.status = 'SLEEPING' AND r.started_at IS NOT NULL AND r.waiting_for IS NULL
    ORDER BY r.namespace, r.run_id
    FOR UPDATE
) AS locked;

INSERT INTO kagzi.step_runs (run_id, started_at, finished_at, attempt, completed_seq, namespace, step_id, kind, status)
SELECT r.run_id, r.started_at, r.started_at, 1, 1, r.namespace, '@begin', 'SIGNAL', 'COMPLETED'
FROM kagzi.workflow_runs AS r
WHERE r.status = 'SLEEPING' AND r.started_at IS NOT NULL AND r.waiting_for IS NULL
  AND NOT EXISTS (
      SELECT FROM kagzi.step_runs AS s
      WHERE s.namespace = r.namespace AND s.run_id = r.run_id AND s.completed_seq IS NOT NULL AND s.generation = 0);

-- Debounced starts: many of one key become one run.

-- name: find_joined
-- The run that nobody has begun, unless this very start has made a run before: it arrives twice, and what later starts
-- have said since must stay.
SELECT run_id, status, min(?6 + ?7, created_at + coalesce(?8, 9223372036854775807 - created_at)), held_key IS NOT NULL
FROM workflow_runs AS r
WHERE namespace = ?1 AND workflow_type = ?2 AND debounce_key = ?3 AND started_at IS NULL AND finished_at IS NULL
  AND task_queue = ?4
  AND NOT EXISTS (SELECT 1 FROM workflow_runs AS o WHERE o.namespace = ?1 AND o.run_id = ?5);

-- name: join_run
-- Give the run the input of a later start, and put it off. It leaves the line of a limit in which it was held: its key or
-- its version may be another one now. A start that comes twice, because its answer was lost, has joined once.
UPDATE workflow_runs SET
    joins = CASE WHEN joined_by IS ?11 THEN joins ELSE coalesce(joins, 0) + 1 END, joined_at = ?10, joined_by = ?11,
    lineage = '["' || run_id || '","' || ?11 || '"]',
    input = ?3, version = ?4, trace_context = ?5, limit_name = ?6, limit_key = ?7, deadline_at = ?8, available_at = ?9,
    claim_key = {{claim_key(?9, priority, ?10)}}, held_key = NULL
WHERE namespace = ?1 AND run_id = ?2;

-- name: drop_input
-- The input it had, if that was kept apart.
DELETE FROM workflow_payloads WHERE namespace = ?1 AND run_id = ?2 AND kind = 'input';

-- name: start_debounced_run
-- Insert the run that later starts may join. Nothing if its id is taken, or if another has the key.
INSERT INTO workflow_runs ({{run_columns}}, limit_name, debounce_key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {{carried_values(?)}}, ?, ?)
ON CONFLICT DO NOTHING;

-- name: find_debounced
-- Why neither was possible: this start has come before, or the run with its key waits in another queue.
SELECT run_id, task_queue, workflow_type, status, available_at FROM workflow_runs
WHERE namespace = ?1 AND run_id = ?2
UNION ALL
SELECT run_id, task_queue, workflow_type, status, available_at FROM workflow_runs
WHERE namespace = ?1 AND workflow_type = ?3 AND debounce_key = ?4 AND started_at IS NULL AND finished_at IS NULL
  AND run_id <> ?2;

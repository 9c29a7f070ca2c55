-- name: find_run_to_cancel
-- Where a run stands before a request.
SELECT status, started_at IS NULL, cancel_requested, task_queue, priority, available_at, claim_key
FROM workflow_runs AS r
WHERE namespace = ?1 AND run_id = ?2 AND {{is_run(r)}};

-- name: request_cancel
-- Tell a run to end. The inbox grows, so that a holder cannot park past it; what sleeps is made claimable.
UPDATE workflow_runs
SET cancel_requested = 1, inbox_seq = inbox_seq + 1, cancel_deadline = ?3, available_at = ?4, claim_key = ?5,
    -- What waits for a slot of its queue has time to clean up when it is claimed (claim_runs). Should a line hold it, it is the
    -- first there.
    held_key = CASE WHEN status <> 'RUNNING' AND EXISTS (
            SELECT 1 FROM limits AS l
            WHERE l.namespace = ?1 AND l.scope = 'queue' AND l.name = task_queue
              AND coalesce(l.concurrency, l.declared) IS NOT NULL)
        THEN coalesce(held_key, ?5 - 1125899906842624) ELSE held_key END
WHERE namespace = ?1 AND run_id = ?2 AND finished_at IS NULL;

-- name: cancel_unbegun_run
-- A run that nobody has begun ends when it is cancelled.
UPDATE workflow_runs
SET cancel_requested = 1, inbox_seq = inbox_seq + 1, status = 'CANCELLED', claim_key = NULL, error = ?3,
    finished_at = ?4
WHERE namespace = ?1 AND run_id = ?2 AND finished_at IS NULL;

-- name: wake_run
-- Hand a run out that waits for a moment. One that sleeps is given a note: where its history stands, and until when it
-- slept. Nobody writes steps of a run that is parked. One that is held for a limit waits for no moment but for a slot, and
-- keeps its place, even if a clock that was set back says otherwise. Nor does one that was parked for news alone
-- (`core.wake.NEWS_ALONE`); one that is not SLEEPING has in `waiting_for` what it waited for before.
UPDATE workflow_runs SET
    woken = CASE WHEN status = 'SLEEPING' THEN
        json_array(coalesce(incarnation, 0), attempts,
                   (SELECT coalesce(max(s.completed_seq), 0) FROM step_runs AS s
                    WHERE s.namespace = ?1 AND s.run_id = ?2 AND s.generation = 0),
                   available_at) END,
    available_at = ?3, claim_key = {{claim_key(?3, priority, ?3)}}
WHERE namespace = ?1 AND run_id = ?2 AND status IN ('PENDING', 'SLEEPING') AND available_at > ?3
  AND claim_key <> 253402300799000001
  AND NOT (status = 'SLEEPING' AND waiting_for IS NOT NULL
           AND EXISTS (SELECT 1 FROM json_each(waiting_for) AS w WHERE w.value = 'n:*'));

-- name: keep_of_run
-- How far the events of a run go before the first that must not be repeated: a final failure, a child that was
-- cancelled, or its own cancellation.
SELECT coalesce(min(CASE WHEN status IN ('FAILED', 'CANCELLED') OR kind = 'CANCEL' THEN completed_seq END) - 1,
    max(completed_seq), 0)
FROM step_runs
WHERE namespace = ?1 AND run_id = ?2 AND generation = 0 AND completed_seq IS NOT NULL;

-- name: repeat_run
-- Insert a run like another. If it keeps events it also keeps the time zero they count from, and the source of chance. It is
-- for the same instant of a schedule, and none of its firings. What it holds was sealed for its source.
INSERT INTO workflow_runs (namespace, run_id, task_queue, workflow_type, version, priority, input, lease_length,
    created_at, available_at, deadline_at, status, claim_key, started_at, origin_run_id, scheduled_for, timezone, handles_run_id,
    repeats_run_id, incarnation, limit_name, lineage, {{carried}})
SELECT namespace, ?3, task_queue, workflow_type, version, priority, input, lease_length, ?4, ?4,
    ?4 + (deadline_at - created_at), 'PENDING', {{claim_key(?4, priority, ?4)}},
    CASE WHEN ?5 > 0 THEN started_at END, CASE WHEN ?5 > 0 THEN coalesce(origin_run_id, run_id) END,
    {{fired_for(workflow_runs)}}, timezone, handles_run_id, run_id, CASE WHEN ?5 > 0 THEN incarnation END, limit_name,
    coalesce(lineage, '["' || run_id || '"]'), {{carried}}
FROM workflow_runs
WHERE namespace = ?1 AND run_id = ?2
ON CONFLICT DO NOTHING;

-- name: copy_input
-- A large input, for the run that repeats another.
INSERT INTO workflow_payloads (namespace, run_id, kind, data)
SELECT namespace, ?3, kind, data FROM workflow_payloads WHERE namespace = ?1 AND run_id = ?2 AND kind = 'input';

-- name: copy_steps
-- The events that a repeated run keeps, numbered as they are, and all switches of the code that were on.
INSERT INTO step_runs (namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at,
    input_hash, input, output, error, child_run_id)
SELECT namespace, ?3, step_id, attempt, kind, status, completed_seq, started_at, finished_at, input_hash, input, output,
    error, child_run_id
FROM step_runs
WHERE namespace = ?1 AND run_id = ?2 AND generation = 0
  AND (completed_seq <= ?4 OR kind = 'SIGNAL' AND completed_seq IS NULL);

-- name: find_repeat
-- The run that has this id, and whether it is what is asked for; if it was there before, this request came twice.
SELECT r.status, r.available_at, r.workflow_type,
       r.run_id <> s.run_id AND r.task_queue = s.task_queue
           AND coalesce(r.external_id, r.former_id) IS CASE WHEN s.superseded_by = r.run_id THEN s.former_id END
           AND r.workflow_type = s.workflow_type
           -- It may have begun anew since, and been moved to another version.
           AND (r.incarnation IS NOT CASE WHEN ?4 > 0 THEN s.incarnation END
                OR coalesce(r.input, rp.data) IS coalesce(s.input, sp.data))
           AND r.origin_run_id IS CASE WHEN ?4 > 0 THEN coalesce(s.origin_run_id, s.run_id) END
FROM workflow_runs AS r
JOIN workflow_runs AS s ON s.namespace = r.namespace AND s.run_id = ?3
LEFT JOIN workflow_payloads AS rp ON rp.namespace = r.namespace AND rp.run_id = r.run_id AND rp.kind = 'input'
LEFT JOIN workflow_payloads AS sp ON sp.namespace = s.namespace AND sp.run_id = s.run_id AND sp.kind = 'input'
WHERE r.namespace = ?1 AND r.run_id = ?2;

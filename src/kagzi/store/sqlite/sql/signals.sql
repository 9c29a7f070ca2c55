-- Signals: what runs are told from outside.

-- name: find_run_to_signal
-- Where a run stands, and who has this key in its inbox.
SELECT r.status, r.task_queue, r.available_at, r.inbox_seq, s.seq, s.name
FROM workflow_runs AS r
LEFT JOIN signals AS s ON s.namespace = r.namespace AND s.run_id = r.run_id AND s.key = ?3
WHERE r.namespace = ?1 AND r.run_id = ?2 AND {{is_run(r)}};

-- name: inbox_is_full
-- Whether so many signals wait in the inbox of a run already.
SELECT EXISTS (SELECT 1 FROM signals WHERE namespace = ?1 AND run_id = ?2 AND taken_seq IS NULL LIMIT 1 OFFSET ?3);

-- name: insert_signal
-- Store a signal.
INSERT INTO signals (namespace, run_id, key, seq, name, value, sent_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: find_inbox_of_run
-- Where a live run stands, and what it waits for.
SELECT status, task_queue, priority, available_at, claim_key, inbox_seq, waiting_for
FROM workflow_runs
WHERE namespace = ?1 AND run_id = ?2 AND finished_at IS NULL;

-- name: raise_inbox
-- The inbox of a run has grown; one that waits for that is made claimable.
UPDATE workflow_runs SET inbox_seq = ?3, available_at = ?4, claim_key = ?5
WHERE namespace = ?1 AND run_id = ?2 AND finished_at IS NULL;

-- name: take_signal
-- Mark a signal as taken by an event. One that was taken by the same event before counts: then the chunk came twice.
UPDATE signals SET taken_seq = ?4
WHERE namespace = ?1 AND run_id = ?2 AND key = ?3 AND (taken_seq IS NULL OR taken_seq = ?4);

-- name: give_signals_back
-- What a retry of the run no longer sees can be taken again, in the old order.
UPDATE signals SET taken_seq = NULL WHERE namespace = ?1 AND run_id = ?2 AND taken_seq > ?3;

-- name: find_inbox
-- How far the inbox of a held run goes. Read before its signals: what comes in between is looked for once more.
SELECT inbox_seq, cancel_requested FROM workflow_runs
WHERE namespace = ?1 AND run_id = ?2 AND token = ?3 AND status = 'RUNNING';

-- name: read_inbox
-- The signals of these names that were not taken yet.
SELECT key, seq, name, value, sent_at
FROM signals
WHERE namespace = ?1 AND run_id = ?2 AND taken_seq IS NULL AND name IN (SELECT value FROM json_each(?3))
ORDER BY seq
LIMIT ?4;

-- name: read_untaken
-- The signals of a run that were not taken yet, and the size of each.
SELECT key, seq, name, value, sent_at, length(value)
FROM signals
WHERE namespace = ?1 AND run_id = ?2 AND taken_seq IS NULL
ORDER BY seq
LIMIT ?3;

-- name: list_signals
-- The signals of a run in the order of arrival, from a number on.
SELECT key, seq, name, value, sent_at, taken_seq
FROM signals
WHERE namespace = ?1 AND run_id = ?2 AND seq > ?3
ORDER BY seq
LIMIT ?4;

-- name: copy_signals
-- What a repeated run has not taken, or takes again because the event is not kept; and what events have taken that are kept:
-- should it be tried again from before them, it takes that again, too.
INSERT INTO signals (namespace, run_id, key, seq, name, value, sent_at, taken_seq)
SELECT namespace, ?3, key, seq, name, value, sent_at, CASE WHEN taken_seq <= ?4 THEN taken_seq END
FROM signals
WHERE namespace = ?1 AND run_id = ?2 AND taken_seq IS NOT 0;

-- name: count_copied_signals
-- The inbox of a repeated run ends with the last signal it was given.
UPDATE workflow_runs
SET inbox_seq = coalesce((SELECT max(seq) FROM signals AS s
                          WHERE s.namespace = workflow_runs.namespace AND s.run_id = workflow_runs.run_id), 0)
WHERE namespace = ?1 AND run_id = ?2;

-- name: delete_signals
-- Remove the signals of a run.
DELETE FROM signals WHERE namespace = ?1 AND run_id = ?2;

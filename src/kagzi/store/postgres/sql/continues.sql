-- Runs that begin anew in place. All of this is in the transaction that has moved them to PENDING, under their locks.

-- name: keep_first_inputs
-- What runs were started with, kept once: a start that comes again is compared with it.
INSERT INTO kagzi.run_values (namespace, run_id, name, value, at, seq)
SELECT r.namespace, r.run_id, '@first_input', coalesce(r.input, p.data), r.available_at, 0
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
LEFT JOIN kagzi.workflow_payloads AS p
    ON p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input' AND r.input IS NULL
ON CONFLICT DO NOTHING;

-- name: continue_runs
-- Begin anew: another input, perhaps another version, and a clock that begins now, which is when they became due. They are
-- not unbegun, so that a cancellation is told. `executions` goes on, because tokens are made of it.
WITH removed AS (
    DELETE FROM kagzi.workflow_payloads AS p
    USING unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
    WHERE p.namespace = k.namespace AND p.run_id = k.run_id AND p.kind = 'input'
)
UPDATE kagzi.workflow_runs AS r SET
    input = k.input, version = coalesce(k.version, r.version), incarnation = coalesce(r.incarnation, 0) + 1,
    executions_before = r.executions, started_at = r.available_at, attempts = 0, crashes = 0, crashed_seq = NULL,
    error = NULL
FROM unnest($1::text[], $2::uuid[], $3::bytea[], $4::text[]) AS k (namespace, run_id, input, version)
WHERE r.namespace = k.namespace AND r.run_id = k.run_id;

-- name: drop_incarnations
-- Of what was recorded, people see the last incarnation that has ended: what was set aside before it goes.
DELETE FROM kagzi.step_runs AS s
USING unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.generation <> 0;

-- name: set_incarnations_aside
-- What the incarnation has recorded that ends here. Its children live on; their outcomes are told to nobody.
UPDATE kagzi.step_runs AS s SET
    generation = least(r.incarnation, 32767), step_id = s.step_id || '~i' || r.incarnation, completed_seq = NULL,
    timeout_at = NULL
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.generation = 0;

-- name: settle_taken_signals
-- Signals that were taken stay taken: by no event that is left.
UPDATE kagzi.signals AS s SET taken_seq = 0
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.taken_seq > 0;

-- name: forget_taken_signals
-- A key is remembered as long as a sender may repeat it: one that it has made itself for a shorter time than a given one.
DELETE FROM kagzi.signals AS s
USING unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.taken_seq = 0
  AND s.sent_at < r.started_at - CASE WHEN left(s.key, 1) = '~' THEN $3::bigint ELSE $4::bigint END;

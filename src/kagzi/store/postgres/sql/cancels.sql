-- What is asked for outside of a lease. Each statement locks one run and is guarded by its status, which is looked at
-- once more when the lock is there: whoever comes second finds what the first has made of the run.

-- name: cancel_run
-- Ask a live run to end. What nobody has begun ends here; what sleeps is made claimable; the inbox grows, so that a
-- holder cannot park past it. A second request changes nothing. `$6`: only if nobody else has to hear of it, that is unless
-- it ends here and has a parent.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
UPDATE kagzi.workflow_runs AS r SET
    cancel_requested = true,
    inbox_seq = r.inbox_seq + 1,
    status = CASE WHEN r.started_at IS NULL THEN 'CANCELLED' ELSE r.status END,
    finished_at = CASE WHEN r.started_at IS NULL THEN i.now END,
    error = CASE WHEN r.started_at IS NULL THEN $5::bytea ELSE r.error END,
    cancel_deadline = CASE WHEN r.started_at IS NOT NULL THEN i.now + $4::bigint END,
    available_at = CASE WHEN r.status = 'RUNNING' OR r.started_at IS NULL THEN r.available_at
                        ELSE least(r.available_at, i.now) END,
    claim_key = CASE WHEN r.status = 'RUNNING' OR r.started_at IS NULL THEN NULL
                     WHEN r.claim_key <= i.now THEN r.claim_key
                     ELSE {{claim_key_of_now(r.priority, i.now)}} END,
    held_key = CASE WHEN r.status <> 'RUNNING' AND r.started_at IS NOT NULL AND {{has_queue_limit(r)}}
                    THEN {{place_of_cancelled(r, i.now)}} ELSE r.held_key END
FROM instant AS i
WHERE r.namespace = $2::text AND r.run_id = $3::uuid AND r.status IN ('PENDING', 'RUNNING', 'SLEEPING')
  AND NOT r.cancel_requested AND (NOT $6::boolean OR r.started_at IS NOT NULL OR {{has_no_parent(r)}})
RETURNING {{changed_run}}, r.cancel_requested;

-- fragment: has_queue_limit(r)
-- Whether only so many runs of its queue may run at once.
EXISTS (SELECT FROM kagzi.limits AS l
            WHERE l.namespace = r.namespace AND l.scope = 'queue' AND l.name = r.task_queue
              AND coalesce(l.concurrency, l.declared) IS NOT NULL)

-- fragment: has_no_parent(r)
-- Whether nobody waits for the end of this run in the way of a parent.
{r}.parent_run_id IS NULL OR {r}.parent_policy = 'none'

-- name: terminate_run
-- End a live run that has no parent, whatever it is doing; see end_runs.
UPDATE kagzi.workflow_runs AS r SET
    status = 'CANCELLED', finished_at = coalesce($1::bigint, kagzi.clock()), error = $4::bytea, token = NULL,
    claim_key = NULL, lease_expires_at = NULL
WHERE r.namespace = $2::text AND r.run_id = $3::uuid AND r.status IN ('PENDING', 'RUNNING', 'SLEEPING')
  AND ({{has_no_parent(r)}})
RETURNING {{changed_run}}, r.cancel_requested;

-- name: find_cancelled_run
-- A run that a request has not changed: it has finished, or was told before.
SELECT r.status, r.task_queue, r.available_at, r.cancel_requested
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND {{is_run(r)}};

-- fragment: kept_apart
-- Whether anything of a run `r` is in other tables than its steps. A finished run does not change, so what says no here is
-- spared a statement.
r.input IS NULL AS large, r.handles_run_id IS NOT NULL OR r.incarnation IS NOT NULL AS noted, r.inbox_seq > 0 AS told

-- name: find_repeated_run
-- The run that is to be repeated. Locked, so that retention does not take it away meanwhile.
SELECT r.status, r.external_id, r.superseded_by, {{kept_apart}}
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND {{is_run(r)}}
FOR KEY SHARE OF r;

-- name: find_superseded_run
-- The run that is to be repeated and gives its id up. Locked for that.
SELECT r.status, r.external_id, r.superseded_by, {{kept_apart}}
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND {{is_run(r)}}
FOR NO KEY UPDATE OF r;

-- name: lock_runs
-- Lock runs, in one order.
SELECT count(*)
FROM (
    SELECT r.run_id
    FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
    JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
) AS locked;

-- name: wake_run
-- Hand a run out that waits for a moment. It is locked already (lock_runs): so what is read here of its history is what
-- whoever had it before us has written. One that sleeps is given a note: where its history stands, and until when it slept.
-- One that is held for a limit waits for no moment but for a slot, and keeps its place, even if a clock that was set back
-- says otherwise. Nor does one that was parked for news alone (`core.wake.NEWS_ALONE`); one that is not SLEEPING has in
-- `waiting_for` what it waited for before.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
UPDATE kagzi.workflow_runs AS r SET
    woken = CASE WHEN r.status = 'SLEEPING' THEN
        jsonb_build_array(coalesce(r.incarnation, 0), r.attempts,
                          (SELECT coalesce(max(s.completed_seq), 0) FROM kagzi.step_runs AS s
                           WHERE s.namespace = r.namespace AND s.run_id = r.run_id AND s.generation = 0),
                          r.available_at)::text END,
    available_at = i.now, claim_key = {{claim_key_of_now(r.priority, i.now)}}
FROM instant AS i
WHERE r.namespace = $2::text AND r.run_id = $3::uuid AND r.status IN ('PENDING', 'SLEEPING')
  AND r.available_at > i.now AND r.claim_key <> 253402300799000001
  AND NOT (r.status = 'SLEEPING' AND r.waiting_for IS NOT NULL AND r.waiting_for::jsonb ? 'n:*')
RETURNING r.status, r.task_queue, r.available_at;

-- name: keep_of_run
-- How far the events of a run go before the first that must not be repeated: a final failure, a child that was
-- cancelled, or its own cancellation.
SELECT coalesce(min(s.completed_seq) FILTER (WHERE s.status IN ('FAILED', 'CANCELLED') OR s.kind IN ('SIGNAL', 'CANCEL') AND s.step_id = '@cancel') - 1,
                max(s.completed_seq), 0) AS seq
FROM kagzi.step_runs AS s
WHERE s.namespace = $1::text AND s.run_id = $2::uuid AND s.generation = 0 AND s.completed_seq IS NOT NULL;

-- name: repeat_run
-- Insert a run like another. If it keeps events it also keeps the time zero they count from, and the source of chance. It is
-- for the same instant of a schedule, and none of its firings. What it holds was sealed for its source.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
INSERT INTO kagzi.workflow_runs (
    namespace, run_id, task_queue, workflow_type, version, priority, input, lease_length, created_at, available_at,
    deadline_at, status, claim_key, started_at, origin_run_id, scheduled_for, timezone, handles_run_id, repeats_run_id,
    incarnation, limit_name, lineage, {{carried}})
SELECT r.namespace, $4::uuid, r.task_queue, r.workflow_type, r.version, r.priority, r.input, r.lease_length, i.now,
       i.now, i.now + (r.deadline_at - r.created_at), 'PENDING',
       {{claim_key_of_now(r.priority, i.now)}},
       CASE WHEN $5::integer > 0 THEN r.started_at END,
       CASE WHEN $5::integer > 0 THEN coalesce(r.origin_run_id, r.run_id) END, {{fired_for(r)}}, r.timezone,
       r.handles_run_id, r.run_id, CASE WHEN $5::integer > 0 THEN r.incarnation END, r.limit_name,
       coalesce(r.lineage, '["' || r.run_id || '"]'), {{carried(r)}}
FROM kagzi.workflow_runs AS r CROSS JOIN instant AS i
WHERE r.namespace = $2::text AND r.run_id = $3::uuid
ON CONFLICT DO NOTHING
RETURNING status, available_at;

-- name: copy_input
-- A large input, for the run that repeats another.
INSERT INTO kagzi.workflow_payloads (namespace, run_id, kind, data)
SELECT p.namespace, $3::uuid, p.kind, p.data
FROM kagzi.workflow_payloads AS p
WHERE p.namespace = $1::text AND p.run_id = $2::uuid AND p.kind = 'input';

-- name: copy_steps
-- The events that a repeated run keeps, numbered as they are, and all switches of the code that were on.
INSERT INTO kagzi.step_runs (
    namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at, input_hash, input,
    output, error, child_run_id)
SELECT s.namespace, $3::uuid, s.step_id, s.attempt, s.kind, s.status, s.completed_seq, s.started_at, s.finished_at,
       s.input_hash, s.input, s.output, s.error, s.child_run_id
FROM kagzi.step_runs AS s
WHERE s.namespace = $1::text AND s.run_id = $2::uuid AND s.generation = 0
  AND (s.completed_seq <= $4::integer OR s.kind = 'SIGNAL' AND s.completed_seq IS NULL);

-- name: find_repeat
-- The run that has this id already, and whether it is what is asked for: then this request came twice.
SELECT r.status, r.available_at, r.workflow_type,
       r.run_id <> s.run_id AND r.task_queue = s.task_queue
           AND coalesce(r.external_id, r.former_id)
               IS NOT DISTINCT FROM CASE WHEN s.superseded_by = r.run_id THEN s.former_id END
           AND r.workflow_type = s.workflow_type
           -- It may have begun anew since, and been moved to another version.
           AND (r.incarnation IS DISTINCT FROM CASE WHEN $4::integer > 0 THEN s.incarnation END
                OR coalesce(r.input, rp.data) IS NOT DISTINCT FROM coalesce(s.input, sp.data))
           AND r.origin_run_id
               IS NOT DISTINCT FROM CASE WHEN $4::integer > 0 THEN coalesce(s.origin_run_id, s.run_id) END AS same
FROM kagzi.workflow_runs AS r
JOIN kagzi.workflow_runs AS s ON s.namespace = r.namespace AND s.run_id = $3::uuid
LEFT JOIN kagzi.workflow_payloads AS rp
    ON rp.namespace = r.namespace AND rp.run_id = r.run_id AND rp.kind = 'input'
LEFT JOIN kagzi.workflow_payloads AS sp
    ON sp.namespace = s.namespace AND sp.run_id = s.run_id AND sp.kind = 'input'
WHERE r.namespace = $1::text AND r.run_id = $2::uuid;

-- name: find_claimed_runs
-- The runs that an earlier answer to this very poll has claimed.
SELECT json_group_array(run_id)
FROM (
    SELECT run_id
    FROM workflow_runs
    WHERE worker_id = ?1 AND status = 'RUNNING' AND namespace = ?2 AND substr(token, 9) = substr(?3, 9)
    ORDER BY available_at, run_id);

-- name: find_due_runs
-- The due runs of one queue that have waited longest, as one row. What a poll has claimed and its worker let go of is not
-- for a repeat of that poll, which comes late.
SELECT json_group_array(json_array(claim_key, run_id))
FROM (
    SELECT claim_key, run_id
    FROM workflow_runs
    WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING') AND claim_key <= ?3
      AND substr(token, 9) IS NOT substr(?4, 9)
      AND (workflow_type IN (SELECT value FROM json_each(?5))
           OR (workflow_type, version) IN
              (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?6)))
    ORDER BY claim_key
    LIMIT ?7);

-- name: claim_runs
-- Lease these runs. The length is kept with the run, so that heartbeats know how far to renew. The token begins with how
-- often the run was claimed: a poll that comes twice must not revive what was written under its first lease.
UPDATE workflow_runs
SET status = 'RUNNING', token = printf('%08x', executions + 1) || substr(?3, 9), worker_id = ?4, poll = ?5, claim_key = NULL, held_key = NULL, executions = executions + 1,
    started_at = coalesce(started_at, ?6), lease_length = coalesce(lease_length, ?7),
    lease_expires_at = ?6 + coalesce(lease_length, ?7),
    -- One that had to wait for a slot has some time left to clean up.
    cancel_deadline = iif(held_key IS NULL, cancel_deadline, max(cancel_deadline, ?6 + {{CANCEL_GRACE}}))
WHERE namespace = ?1 AND run_id IN (SELECT value FROM json_each(?2));

-- name: read_claims
-- What a worker has to know of the runs it claimed.
SELECT r.run_id, r.workflow_type, r.version, r.task_queue, r.external_id, coalesce(r.input, i.data), r.started_at,
    r.lease_length, r.attempts, r.executions, r.crashes, r.inbox_seq, r.token, r.cancel_requested,
    r.origin_run_id, {{fired_for(r)}}, r.timezone,
    r.has_children IS NOT NULL OR coalesce(r.parent_policy, 'none') <> 'none', coalesce(r.depth, 0), r.handles_run_id,
    CASE WHEN r.handles_run_id IS NOT NULL THEN
        (SELECT v.value FROM run_values AS v
         WHERE v.namespace = r.namespace AND v.run_id = r.run_id AND v.name = '@failed_input') END,
    coalesce(r.incarnation, 0), coalesce(r.executions_before, 0), r.woken, r.lineage,
    -- Whether others may wait for it to let go.
    EXISTS (SELECT 1 FROM limits AS l
            WHERE l.namespace = r.namespace
              AND ((l.scope = 'queue' AND l.name = r.task_queue)
                   OR (l.scope = 'workflow' AND l.name IN (r.workflow_type, r.limit_name)))),
    {{carried_to_worker(r)}}
FROM workflow_runs AS r
LEFT JOIN workflow_payloads AS i
    ON r.input IS NULL AND i.namespace = r.namespace AND i.run_id = r.run_id AND i.kind = 'input'
WHERE r.namespace = ?1 AND r.run_id IN (SELECT value FROM json_each(?2));

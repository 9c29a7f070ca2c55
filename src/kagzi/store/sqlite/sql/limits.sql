-- Pauses of queues, workflows and namespaces.

-- fragment: limit_columns
-- What a limit says.
namespace, scope, name, paused_at, paused_by, pause_reason, concurrency, declared, key_concurrency, key_declared,
    shares, rate, rate_declared, key_rate, key_rate_declared, fair

-- fragment: limits_nothing
-- Whether nothing is left of a limit. One of a workflow stays until nothing is held for it any more.
paused_at IS NULL AND concurrency IS NULL AND declared IS NULL AND key_concurrency IS NULL AND key_declared IS NULL
    AND shares IS NULL AND rate IS NULL AND rate_declared IS NULL AND key_rate IS NULL AND key_rate_declared IS NULL
    AND NOT fair

-- name: list_limits
-- What holds back runs of a namespace.
SELECT {{limit_columns}} FROM limits WHERE namespace = ?1 AND NOT ({{limits_nothing}}) ORDER BY scope, name;

-- name: read_limits
-- The same with what is left of limits.
SELECT {{limit_columns}} FROM limits WHERE namespace = ?1;

-- name: limited
-- All that has limits. Few have, so that reading them all is cheaper than asking for each run.
SELECT namespace, scope, name FROM limits;

-- name: all_paused
-- What is not handed out.
SELECT namespace, scope, name FROM limits WHERE paused_at IS NOT NULL;

-- name: pause
-- Hand out nothing of this; what is paused already stays as it is.
INSERT INTO limits (namespace, scope, name, paused_at, paused_by, pause_reason, updated_at)
VALUES (?1, ?2, ?3, ?6, ?4, ?5, ?6)
ON CONFLICT (namespace, scope, name) DO UPDATE SET
    paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_reason = excluded.pause_reason,
    updated_at = excluded.updated_at
    WHERE paused_at IS NULL;

-- name: resume
-- Hand it out again.
UPDATE limits SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, updated_at = ?4
WHERE namespace = ?1 AND scope = ?2 AND name = ?3;

-- name: set_limit
-- Let so many run at once, and begin so often. What is -1 or empty stays as it is.
INSERT INTO limits (namespace, scope, name, concurrency, key_concurrency, rate, key_rate, updated_at)
VALUES (?1, ?2, ?3, nullif(?4, -1), nullif(?5, -1), nullif(?6, ''), nullif(?7, ''), ?8)
ON CONFLICT (namespace, scope, name) DO UPDATE SET
    concurrency = CASE WHEN ?4 = -1 THEN concurrency ELSE ?4 END,
    key_concurrency = CASE WHEN ?5 = -1 THEN key_concurrency ELSE ?5 END,
    rate = CASE WHEN ?6 = '' THEN rate ELSE ?6 END, key_rate = CASE WHEN ?7 = '' THEN key_rate ELSE ?7 END,
    updated_at = excluded.updated_at;

-- name: declare_limit
-- The smallest that live workers declare.
INSERT INTO limits (namespace, scope, name, declared, key_declared, shares, rate_declared, key_rate_declared, fair,
    updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (namespace, scope, name) DO UPDATE SET
    declared = excluded.declared, key_declared = excluded.key_declared, shares = excluded.shares,
    rate_declared = excluded.rate_declared, key_rate_declared = excluded.key_rate_declared, fair = excluded.fair,
    updated_at = excluded.updated_at;

-- name: live_extras
-- What live workers say of themselves.
SELECT queues, labels FROM workers WHERE namespace = ?1 AND status <> 'OFFLINE' AND labels IS NOT NULL;

-- name: forget_limits
-- Limits of which nothing is left; those of workflows only if nothing is held.
DELETE FROM limits WHERE namespace = ?1 AND (scope <> 'workflow' OR ?2) AND {{limits_nothing}};

-- name: limited_namespaces
-- Where anything is limited.
SELECT DISTINCT namespace FROM limits;

-- name: count_limited
-- What runs in a namespace, as limits count it. By the index of what runs: the planner would read every run of the namespace.
SELECT task_queue, workflow_type, coalesce(limit_name, workflow_type), coalesce(limit_key, ''), count(*)
FROM workflow_runs INDEXED BY workflow_runs_leased
WHERE status = 'RUNNING' AND namespace = ?1
GROUP BY 1, 2, 3, 4;

-- name: find_due_limited
-- The due runs of one queue that have waited longest, with what limits ask for.
SELECT run_id, task_queue, workflow_type, coalesce(limit_name, workflow_type), coalesce(limit_key, ''), claim_key,
    executions = 0
FROM workflow_runs
WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING') AND claim_key <= ?3
  AND substr(token, 9) IS NOT substr(?4, 9)
  AND (workflow_type IN (SELECT value FROM json_each(?5))
       OR (workflow_type, version) IN
          (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?6)))
ORDER BY claim_key
LIMIT ?7;

-- name: hold_runs
-- There is no room for these runs. They keep their place in their line; where there are rates, those that have begun come
-- first (by 2^50 in held_key), since no rate holds them. Those that were told to end have more time for it while they are
-- held: free_line takes it from them again.
UPDATE workflow_runs
SET held_key = coalesce(held_key, claim_key - CASE WHEN ?3 AND executions > 0 THEN 1125899906842624 ELSE 0 END),
    claim_key = 253402300799000001, limit_name = coalesce(limit_name, workflow_type),
    limit_key = coalesce(limit_key, ''), cancel_deadline = cancel_deadline + {{HELD_GRACE}}
WHERE namespace = ?1 AND run_id IN (SELECT value FROM json_each(?2));

-- name: next_line
-- The first line behind another one.
SELECT limit_name, limit_key, task_queue, workflow_type, version
FROM workflow_runs
WHERE namespace = ?1 AND held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING')
  AND (limit_name, limit_key, task_queue, workflow_type, version) > (?2, ?3, ?4, ?5, ?6)
ORDER BY limit_name, limit_key, task_queue, workflow_type, version
LIMIT 1;

-- name: count_line
-- How many of a line are claimable, and how many are held, up to a bound, and the place of the first that is held.
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM workflow_runs
        WHERE namespace = ?1 AND limit_name = ?2 AND limit_key = ?3 AND task_queue = ?4 AND workflow_type = ?5 AND version = ?6
          AND held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING') AND claim_key <= ?7 LIMIT ?8)),
    (SELECT count(*) FROM (
        SELECT 1 FROM workflow_runs
        WHERE namespace = ?1 AND limit_name = ?2 AND limit_key = ?3 AND task_queue = ?4 AND workflow_type = ?5 AND version = ?6
          AND held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING') AND claim_key = 253402300799000001 LIMIT ?8)),
    (SELECT min(held_key) FROM workflow_runs
     WHERE namespace = ?1 AND limit_name = ?2 AND limit_key = ?3 AND task_queue = ?4 AND workflow_type = ?5 AND version = ?6
       AND held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING') AND claim_key = 253402300799000001),
    EXISTS (SELECT 1 FROM workflow_runs
     WHERE namespace = ?1 AND limit_name = ?2 AND limit_key = ?3 AND task_queue = ?4 AND workflow_type = ?5 AND version = ?6
       AND held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING') AND claim_key > ?7 AND claim_key < 253402300799000001);

-- name: free_line
-- The first of a line can be claimed again, at the place they had, or at a moment. Those that were told to end have what
-- was left of their time, and enough to be claimed and to clean up.
UPDATE workflow_runs SET claim_key = coalesce(?9, min(
    held_key + CASE WHEN held_key < 1125899906842624 THEN 1125899906842624 ELSE 0 END, ?7)),
    cancel_deadline = max(cancel_deadline - {{HELD_GRACE}}, coalesce(?9, ?7) + {{CANCEL_GRACE}})
WHERE namespace = ?1 AND run_id IN (
    SELECT run_id FROM workflow_runs
    WHERE namespace = ?1 AND limit_name = ?2 AND limit_key = ?3 AND task_queue = ?4 AND workflow_type = ?5 AND version = ?6
      AND held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING') AND claim_key = 253402300799000001
    ORDER BY held_key LIMIT ?8);

-- name: read_waiting
-- A run that waits to be claimed, as limits see it, and its place in its line.
SELECT run_id, task_queue, workflow_type, coalesce(limit_name, workflow_type), coalesce(limit_key, ''),
    CASE WHEN claim_key = 253402300799000001 THEN held_key ELSE claim_key END, executions = 0, version
FROM workflow_runs
WHERE namespace = ?1 AND run_id = ?2 AND status IN ('PENDING', 'SLEEPING');

-- name: count_before
-- How many are held before a place of a line, up to a bound. Many that were started in one batch share a place, and stand
-- in it as their ids do.
SELECT count(*) FROM (
    SELECT 1 FROM workflow_runs
    WHERE namespace = ?1 AND limit_name = ?2 AND limit_key = ?3 AND task_queue = ?4 AND workflow_type = ?5 AND version = ?6
      AND held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING') AND claim_key = 253402300799000001
      AND held_key <= ?7 AND (held_key < ?7 OR run_id < ?9)
    LIMIT ?8);

-- name: count_due_before
-- How many of a queue are due before another one, up to a bound.
SELECT count(*) FROM (
    SELECT 1 FROM workflow_runs
    WHERE namespace = ?1 AND task_queue = ?2 AND status IN ('PENDING', 'SLEEPING')
      AND claim_key <= ?3 AND (claim_key < ?3 OR run_id < ?5)
    LIMIT ?4);

-- name: read_turn
-- Where a rate, or the turns of a key, stand.
SELECT turn FROM limit_turns WHERE namespace = ?1 AND scope = ?2 AND name = ?3 AND limit_key = ?4;

-- name: write_turn
-- Where it stands now.
INSERT INTO limit_turns (namespace, scope, name, limit_key, turn) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (namespace, scope, name, limit_key) DO UPDATE SET turn = excluded.turn;

-- name: delete_turns
-- What says nothing any more, some of it.
DELETE FROM limit_turns
WHERE (namespace, scope, name, limit_key) IN (
    SELECT namespace, scope, name, limit_key FROM limit_turns WHERE namespace = ?1 AND turn < ?2 - 60 * 1000000 LIMIT 500);

-- name: forget_turns
-- Runs that were told when to come are held until they are told anew: their rate has changed.
UPDATE workflow_runs SET claim_key = 253402300799000001, cancel_deadline = cancel_deadline + {{HELD_GRACE}}
WHERE namespace = ?1 AND held_key IS NOT NULL AND status IN ('PENDING', 'SLEEPING')
  AND claim_key > ?2 AND claim_key < 253402300799000001;

-- name: schedules_are_full
-- Whether a namespace has so many schedules.
SELECT count(*) >= ?2 FROM (SELECT 1 FROM schedules WHERE namespace = ?1 LIMIT ?2);

-- name: insert_template
-- The template of a new schedule; nothing if the id is taken.
INSERT INTO workflow_runs (namespace, run_id, task_queue, workflow_type, version, status, priority, created_at,
    available_at, next_fire_at, cron_expr, timezone, max_catchup, input, retry_policy, on_failure, on_failure_queue,
    tags, limit_key)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
ON CONFLICT DO NOTHING;

-- name: insert_schedule
-- What is beside a template; nothing if the name is taken.
INSERT INTO schedules (namespace, schedule_id, name, overlap, jitter, timeout, fired_until, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)
ON CONFLICT DO NOTHING;

-- name: get_schedule
-- One schedule as the engine shows it: its counters, and the ends that nobody has added to them yet.
SELECT t.namespace, t.run_id, s.name, t.workflow_type, t.task_queue, t.version, t.cron_expr, t.timezone,
    t.status = 'SCHEDULED', coalesce(t.input, p.data), t.max_catchup, s.overlap, s.jitter, t.priority, s.timeout,
    t.retry_policy, t.created_at, s.updated_at, t.next_fire_at, s.last_fired_at, s.last_run_id, s.total_runs,
    s.successful_runs + (SELECT count(*) FROM schedule_ends AS e WHERE e.namespace = s.namespace
                         AND e.schedule_id = s.schedule_id AND e.status = 'COMPLETED'),
    s.failed_runs + (SELECT count(*) FROM schedule_ends AS e WHERE e.namespace = s.namespace
                     AND e.schedule_id = s.schedule_id AND e.status IN ('FAILED', 'TIMED_OUT')),
    s.skipped_runs, s.buffered_for, s.error, s.pause_reason, s.declared_hash IS NOT NULL, s.changed_by_hand,
    s.declared_hash IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers AS w
        WHERE w.namespace = s.namespace AND w.worker_id = s.declared_by AND w.status <> 'OFFLINE'),
    t.on_failure, t.on_failure_queue, t.tags, t.limit_key
FROM schedules AS s
JOIN workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
LEFT JOIN workflow_payloads AS p
    ON t.input IS NULL AND p.namespace = t.namespace AND p.run_id = t.run_id AND p.kind = 'input'
WHERE s.namespace = ?1 AND s.schedule_id = ?2;

-- name: count_schedules
-- Schedules of a namespace, or of all; those that fire; their counters, and the ends that nobody has added to them yet.
SELECT count(*), coalesce(sum(t.status = 'SCHEDULED'), 0), coalesce(sum(c.total_runs), 0),
    coalesce(sum(c.successful_runs), 0)
        + (SELECT count(*) FROM schedule_ends AS e JOIN schedules USING (namespace, schedule_id)
           WHERE e.status = 'COMPLETED' AND (?1 IS NULL OR e.namespace = ?1)),
    coalesce(sum(c.failed_runs), 0)
        + (SELECT count(*) FROM schedule_ends AS e JOIN schedules USING (namespace, schedule_id)
           WHERE e.status IN ('FAILED', 'TIMED_OUT') AND (?1 IS NULL OR e.namespace = ?1)),
    coalesce(sum(c.skipped_runs), 0)
FROM schedules AS c
JOIN workflow_runs AS t ON t.namespace = c.namespace AND t.run_id = c.schedule_id
WHERE ?1 IS NULL OR c.namespace = ?1;

-- name: find_schedule
-- The schedule that has this name.
SELECT schedule_id FROM schedules WHERE namespace = ?1 AND name = ?2;

-- name: list_schedule_ids
-- Schedules of a namespace, newest first, beyond an id.
SELECT s.schedule_id
FROM schedules AS s
JOIN workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
WHERE s.namespace = ?1 AND s.schedule_id < ?2 AND (?3 IS NULL OR t.task_queue = ?3)
ORDER BY s.schedule_id DESC
LIMIT ?4;

-- name: list_schedule_ids_backward
-- The same, going the other way: the nearest newer ones, nearest first.
SELECT s.schedule_id
FROM schedules AS s
JOIN workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
WHERE s.namespace = ?1 AND s.schedule_id > ?2 AND (?3 IS NULL OR t.task_queue = ?3)
ORDER BY s.schedule_id
LIMIT ?4;

-- name: read_watermark
-- How far a schedule has fired, and what of it waits.
SELECT s.fired_until, s.buffered_for, t.status, t.cron_expr, t.timezone, t.next_fire_at
FROM schedules AS s
JOIN workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
WHERE s.namespace = ?1 AND s.schedule_id = ?2;

-- name: update_template
-- Change what a schedule fires, and when. What is NULL stays, but for the times.
UPDATE workflow_runs
SET status = ?3, next_fire_at = ?4, available_at = ?4, task_queue = coalesce(?5, task_queue),
    workflow_type = coalesce(?6, workflow_type), version = coalesce(?7, version), cron_expr = coalesce(?8, cron_expr),
    timezone = coalesce(?9, timezone), max_catchup = coalesce(?10, max_catchup), priority = coalesce(?11, priority),
    retry_policy = coalesce(?12, retry_policy),
    on_failure = CASE WHEN ?13 IS NULL THEN on_failure ELSE nullif(?13, '') END,
    on_failure_queue = CASE WHEN ?13 IS NULL THEN on_failure_queue ELSE ?14 END,
    tags = CASE WHEN ?15 IS NULL THEN tags ELSE nullif(?15, '{}') END,
    limit_key = CASE WHEN ?16 IS NULL THEN limit_key ELSE nullif(?16, '') END
WHERE namespace = ?1 AND run_id = ?2;

-- name: update_template_input
-- Other arguments for the runs of a schedule; NULL: they are in workflow_payloads.
UPDATE workflow_runs SET input = ?3 WHERE namespace = ?1 AND run_id = ?2;

-- name: update_schedule
-- Change what is beside the template. Nothing that was due before is fired any more.
UPDATE schedules
SET overlap = coalesce(?3, overlap), jitter = coalesce(?4, jitter), timeout = coalesce(?5, timeout),
    fired_until = ?6, kept_until = NULL, buffered_for = NULL, error = NULL, pause_reason = ?7, updated_at = ?8,
    skipped_runs = skipped_runs + ?9, changed_by_hand = changed_by_hand OR (?10 AND declared_hash IS NOT NULL)
WHERE namespace = ?1 AND schedule_id = ?2;

-- name: read_declaration
-- The schedule that has this name, who has declared it, and what a change of its times needs.
SELECT s.schedule_id, s.declared_hash, s.declared_by, s.changed_by_hand,
    EXISTS (SELECT 1 FROM workers AS w
            WHERE w.namespace = s.namespace AND w.worker_id = s.declared_by AND w.status <> 'OFFLINE'),
    t.cron_expr, t.timezone, t.status, s.fired_until, s.buffered_for, s.overlap
FROM schedules AS s
JOIN workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
WHERE s.namespace = ?1 AND s.name = ?2;

-- name: note_declaration
-- Whose code declares a schedule.
UPDATE schedules SET declared_hash = ?3, declared_by = ?4, changed_by_hand = 0
WHERE namespace = ?1 AND schedule_id = ?2;

-- name: declare_template
-- What a schedule fires, as code declares it.
UPDATE workflow_runs
SET task_queue = ?3, workflow_type = ?4, version = '', cron_expr = ?5, timezone = ?6, max_catchup = ?7, priority = ?8,
    retry_policy = ?9, on_failure = ?10, on_failure_queue = ?11, limit_key = ?12
WHERE namespace = ?1 AND run_id = ?2;

-- name: declare_schedule
-- What is beside the template, as code declares it.
UPDATE schedules SET overlap = ?3, jitter = ?4, timeout = ?5, kept_until = NULL, error = NULL, updated_at = ?6
WHERE namespace = ?1 AND schedule_id = ?2;

-- name: move_watermark
-- Nothing that was due before is fired any more; what waited is dropped.
UPDATE schedules SET fired_until = ?3, buffered_for = NULL, skipped_runs = skipped_runs + ?4
WHERE namespace = ?1 AND schedule_id = ?2;

-- name: forget_declaration
-- Let code have its way again: no declaration is the same as this one, and no worker has made it.
UPDATE schedules SET declared_hash = '', declared_by = NULL, changed_by_hand = 0
WHERE namespace = ?1 AND schedule_id = ?2;

-- name: delete_template
-- Remove a template. It never ended, so no trigger and no handler hears of it.
DELETE FROM workflow_runs WHERE namespace = ?1 AND run_id = ?2 AND status IN ('SCHEDULED', 'PAUSED');

-- name: delete_schedule
-- Remove what was beside a template.
DELETE FROM schedules WHERE namespace = ?1 AND schedule_id = ?2;

-- name: find_due_schedules
-- Schedules to look at, those that have waited longest first.
SELECT t.namespace, t.run_id, t.next_fire_at, s.fired_until, s.kept_until, t.max_catchup, s.overlap, s.jitter,
    s.buffered_for,
    EXISTS (SELECT 1 FROM workflow_runs AS r WHERE r.namespace = t.namespace AND r.schedule_group_id = t.run_id
            AND r.schedule_group_id IS NOT NULL AND r.finished_at IS NULL),
    t.cron_expr, t.timezone, coalesce(n.enabled, 1)
FROM workflow_runs AS t
JOIN schedules AS s ON s.namespace = t.namespace AND s.schedule_id = t.run_id
LEFT JOIN namespaces AS n ON n.namespace = t.namespace
WHERE t.status = 'SCHEDULED' AND t.available_at <= ?1
ORDER BY t.available_at
LIMIT ?2;

-- name: find_live_firings
-- Runs of a schedule that have not ended.
SELECT run_id FROM workflow_runs
WHERE namespace = ?1 AND schedule_group_id = ?2 AND schedule_group_id IS NOT NULL AND finished_at IS NULL
ORDER BY run_id;

-- name: insert_firing
-- A run by a template, of the version that starts get which name none (see resolve_version) unless it names one. Nothing if
-- the instant has one, or somebody has taken the id.
INSERT INTO workflow_runs (namespace, run_id, external_id, task_queue, workflow_type, version, status, priority,
    created_at, available_at, claim_key, deadline_at, input, schedule_group_id, scheduled_for, timezone, lineage, {{carried}})
SELECT t.namespace, ?3, ?4, t.task_queue, t.workflow_type,
    coalesce(nullif(t.version, ''),
        (SELECT d.version FROM default_versions AS d
         WHERE d.namespace = t.namespace AND d.workflow_type = t.workflow_type),
        (SELECT o.version FROM workflow_types AS o
         WHERE o.namespace = t.namespace AND o.workflow_type = t.workflow_type AND o.version <> ''
         ORDER BY o.first_seen_at DESC, length(o.version) DESC, o.version DESC LIMIT 1),
        '1'),
    'PENDING', t.priority, ?5, ?6, {{claim_key(?6, t.priority, ?5)}},
    ?5 + s.timeout, t.input, t.run_id, ?7, t.timezone,
    '["' || ?3 || '",' || json_quote('schedule:' || coalesce(s.name, t.run_id)) || ']', {{carried(t)}}
FROM workflow_runs AS t
JOIN schedules AS s ON s.namespace = t.namespace AND s.schedule_id = t.run_id
WHERE t.namespace = ?1 AND t.run_id = ?2
ON CONFLICT DO NOTHING;

-- name: read_firing
-- What wakes the queue of a run that was fired.
SELECT task_queue, status, available_at, schedule_group_id, workflow_type FROM workflow_runs WHERE namespace = ?1 AND run_id = ?2;

-- name: move_template
-- When a schedule fires next, and when it is looked at.
UPDATE workflow_runs SET next_fire_at = ?3, available_at = ?4 WHERE namespace = ?1 AND run_id = ?2;

-- name: look_later
-- Look at a schedule again later, without moving anything.
UPDATE workflow_runs SET available_at = ?3 WHERE namespace = ?1 AND run_id = ?2;

-- name: note_schedule_error
-- Why a schedule could not fire.
UPDATE schedules SET error = ?3 WHERE namespace = ?1 AND schedule_id = ?2;

-- name: move_schedule
-- The watermark and the counters, after a turn.
UPDATE schedules
SET fired_until = ?3, kept_until = ?4, buffered_for = ?5, skipped_runs = skipped_runs + ?6, error = NULL
WHERE namespace = ?1 AND schedule_id = ?2;

-- name: count_firings
-- Runs that were started by a schedule.
UPDATE schedules
SET total_runs = total_runs + ?3, last_fired_at = ?4, last_run_id = ?5
WHERE namespace = ?1 AND schedule_id = ?2;

-- name: insert_skip
-- Firings that did not become runs.
INSERT INTO schedule_skips (namespace, schedule_id, first_at, last_at, count, reason, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: list_skips
-- The newest firings that did not become runs.
SELECT first_at, last_at, count, reason, at FROM schedule_skips
WHERE namespace = ?1 AND schedule_id = ?2
ORDER BY skip_id DESC
LIMIT ?3;

-- name: find_schedule_ends
-- Ends of scheduled runs that no counter has, by schedule; whether something waits for them.
SELECT e.namespace, e.schedule_id, sum(e.status = 'COMPLETED'), sum(e.status IN ('FAILED', 'TIMED_OUT')),
    (SELECT s.buffered_for FROM schedules AS s WHERE s.namespace = e.namespace AND s.schedule_id = e.schedule_id)
FROM schedule_ends AS e
GROUP BY e.namespace, e.schedule_id
LIMIT ?1;

-- name: delete_schedule_ends
-- What was added to the counters.
DELETE FROM schedule_ends WHERE namespace = ?1 AND schedule_id = ?2;

-- name: count_ends
-- Add ends of runs to the counters.
UPDATE schedules SET successful_runs = successful_runs + ?3, failed_runs = failed_runs + ?4
WHERE namespace = ?1 AND schedule_id = ?2;

-- name: hurry_template
-- Look at a schedule now: the run that a firing waits for has ended.
UPDATE workflow_runs SET available_at = min(coalesce(available_at, ?3), ?3)
WHERE namespace = ?1 AND run_id = ?2 AND status = 'SCHEDULED';

-- name: find_old_skips
-- Records of skipped firings past their namespace's retention, among the oldest.
SELECT o.skip_id FROM (SELECT * FROM schedule_skips ORDER BY skip_id LIMIT ?2) AS o
LEFT JOIN namespaces AS n ON n.namespace = o.namespace
WHERE o.at <= ?1 - coalesce(n.retention_days, 30) * 86400000000;

-- name: delete_skip
-- Remove a record of skipped firings.
DELETE FROM schedule_skips WHERE skip_id = ?1;

-- name: list_schedule_run_ids
-- What a schedule has started, newest first, beyond a run id.
SELECT run_id FROM workflow_runs
WHERE namespace = ?1 AND schedule_group_id = ?2 AND schedule_group_id IS NOT NULL AND run_id < ?3
ORDER BY run_id DESC
LIMIT ?4;

-- name: list_schedule_run_ids_backward
-- The same, going the other way: the nearest newer runs, nearest first.
SELECT run_id FROM workflow_runs
WHERE namespace = ?1 AND schedule_group_id = ?2 AND schedule_group_id IS NOT NULL AND run_id > ?3
ORDER BY run_id
LIMIT ?4;

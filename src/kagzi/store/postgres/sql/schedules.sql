-- Schedules. Locks: the template first, then runs in (namespace, run_id) order, then new runs, then the row in
-- kagzi.schedules. What is beside a template is read in a statement of its own after the template's lock was taken: the
-- snapshot of the statement that waited for it, or skipped it, may be older than what its last holder has written.

-- name: schedule_clock
-- The instant of a change.
SELECT coalesce($1::bigint, kagzi.clock()) AS now;

-- name: insert_template
-- The template of a new schedule; nothing if the id is taken.
INSERT INTO kagzi.workflow_runs (
    namespace, run_id, task_queue, workflow_type, version, status, priority, created_at, available_at, next_fire_at,
    cron_expr, timezone, max_catchup, input, retry_policy, on_failure, on_failure_queue, tags,
    limit_key)
VALUES ($1::text, $2::uuid, $3::text, $4::text, $5::text, $6::text, $7::integer, $8::bigint, $9::bigint, $9::bigint,
        $10::text, $11::text, $12::integer, $13::bytea, $14::bytea, $15::text, $16::text, $17::text, $18::text)
ON CONFLICT DO NOTHING
RETURNING run_id;

-- name: schedules_are_full
-- Whether a namespace has so many schedules. Some that are made in the same moment may be too many.
SELECT count(*) >= $2::integer
FROM (SELECT FROM kagzi.schedules AS s WHERE s.namespace = $1::text LIMIT $2::integer) AS counted;

-- name: insert_schedule
-- What is beside a template; nothing if the name is taken.
INSERT INTO kagzi.schedules (namespace, schedule_id, name, overlap, jitter, timeout, fired_until, updated_at)
VALUES ($1::text, $2::uuid, $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint, $7::bigint)
ON CONFLICT DO NOTHING
RETURNING schedule_id;

-- name: get_schedules
-- Schedules as the engine shows them: their counters, and the ends that nobody has added to them yet, in one snapshot.
SELECT t.namespace, t.run_id, s.name, t.workflow_type, t.task_queue, t.version, t.cron_expr, t.timezone, t.status,
       coalesce(t.input, p.data) AS input, t.max_catchup, s.overlap, s.jitter, t.priority, s.timeout, t.retry_policy,
       t.created_at, s.updated_at, t.next_fire_at, s.last_fired_at, s.last_run_id, s.total_runs,
       s.successful_runs + e.successful AS successful_runs, s.failed_runs + e.failed AS failed_runs, s.skipped_runs,
       s.buffered_for, s.error, s.pause_reason, s.declared_hash IS NOT NULL AS declared, s.changed_by_hand,
       s.declared_hash IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM kagzi.workers AS w
           WHERE w.namespace = s.namespace AND w.worker_id = s.declared_by::uuid AND w.status <> 'OFFLINE'
       ) AS abandoned,
       t.on_failure, t.on_failure_queue, t.tags, t.limit_key
FROM unnest($2::uuid[]) WITH ORDINALITY AS k (schedule_id, place)
JOIN kagzi.schedules AS s ON s.namespace = $1::text AND s.schedule_id = k.schedule_id
JOIN kagzi.workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
LEFT JOIN kagzi.workflow_payloads AS p
    ON p.namespace = t.namespace AND p.run_id = t.run_id AND p.kind = 'input' AND t.input IS NULL
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE e.status = 'COMPLETED') AS successful,
           count(*) FILTER (WHERE e.status IN ('FAILED', 'TIMED_OUT')) AS failed
    FROM kagzi.schedule_ends AS e
    WHERE e.namespace = s.namespace AND e.schedule_id = s.schedule_id
) AS e
ORDER BY k.place;

-- name: count_schedules
-- Schedules of a namespace, or of all; those that fire; their counters, and the ends that nobody has added to them yet.
SELECT count(*) AS total, count(*) FILTER (WHERE t.status = 'SCHEDULED') AS enabled,
       coalesce(sum(s.total_runs), 0)::bigint AS runs,
       coalesce(sum(s.successful_runs), 0)::bigint
           + (SELECT count(*) FROM kagzi.schedule_ends AS e JOIN kagzi.schedules USING (namespace, schedule_id)
              WHERE e.status = 'COMPLETED' AND ($1::text IS NULL OR e.namespace = $1::text)) AS successful,
       coalesce(sum(s.failed_runs), 0)::bigint
           + (SELECT count(*) FROM kagzi.schedule_ends AS e JOIN kagzi.schedules USING (namespace, schedule_id)
              WHERE e.status IN ('FAILED', 'TIMED_OUT') AND ($1::text IS NULL OR e.namespace = $1::text)) AS failed,
       coalesce(sum(s.skipped_runs), 0)::bigint AS skipped
FROM kagzi.schedules AS s
JOIN kagzi.workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
WHERE $1::text IS NULL OR s.namespace = $1::text;

-- name: find_schedule
-- The schedule that has this name.
SELECT s.schedule_id FROM kagzi.schedules AS s WHERE s.namespace = $1::text AND s.name = $2::text;

-- name: list_schedule_ids
-- Schedules of a namespace, newest first, beyond an id.
SELECT s.schedule_id
FROM kagzi.schedules AS s
JOIN kagzi.workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
WHERE s.namespace = $1::text AND s.schedule_id < $2::uuid AND ($3::text IS NULL OR t.task_queue = $3::text)
ORDER BY s.namespace DESC, s.schedule_id DESC
LIMIT $4::integer;

-- name: list_schedule_ids_backward
-- The same, going the other way: the nearest newer ones, nearest first.
SELECT s.schedule_id
FROM kagzi.schedules AS s
JOIN kagzi.workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
WHERE s.namespace = $1::text AND s.schedule_id > $2::uuid AND ($3::text IS NULL OR t.task_queue = $3::text)
ORDER BY s.namespace, s.schedule_id
LIMIT $4::integer;

-- name: lock_template
-- The template of one schedule, held until the change is done. Whoever fires skips it meanwhile.
SELECT t.status, t.cron_expr, t.timezone, t.next_fire_at, coalesce($3::bigint, kagzi.clock()) AS now
FROM kagzi.workflow_runs AS t
WHERE t.namespace = $1::text AND t.run_id = $2::uuid AND t.status IN ('SCHEDULED', 'PAUSED')
FOR UPDATE OF t;

-- name: read_watermark
-- How far a schedule has fired, and what of it waits.
SELECT s.fired_until, s.buffered_for
FROM kagzi.schedules AS s
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: update_template
-- Change what a schedule fires, and when. What is NULL stays, but for the times.
UPDATE kagzi.workflow_runs AS t SET
    status = $3::text, next_fire_at = $4::bigint, available_at = $4::bigint,
    task_queue = coalesce($5::text, t.task_queue), workflow_type = coalesce($6::text, t.workflow_type),
    version = coalesce($7::text, t.version), cron_expr = coalesce($8::text, t.cron_expr),
    timezone = coalesce($9::text, t.timezone), max_catchup = coalesce($10::integer, t.max_catchup),
    priority = coalesce($11::integer, t.priority), retry_policy = coalesce($12::bytea, t.retry_policy),
    on_failure = CASE WHEN $13::text IS NULL THEN t.on_failure ELSE nullif($13::text, '') END,
    on_failure_queue = CASE WHEN $13::text IS NULL THEN t.on_failure_queue ELSE $14::text END,
    tags = CASE WHEN $15::text IS NULL THEN t.tags ELSE nullif($15::text, '{}') END,
    limit_key = CASE WHEN $16::text IS NULL THEN t.limit_key ELSE nullif($16::text, '') END
WHERE t.namespace = $1::text AND t.run_id = $2::uuid;

-- name: update_template_input
-- Other arguments for the runs of a schedule; NULL: they are in workflow_payloads.
UPDATE kagzi.workflow_runs AS t SET input = $3::bytea WHERE t.namespace = $1::text AND t.run_id = $2::uuid;

-- name: delete_template_input
-- The large arguments of a schedule.
DELETE FROM kagzi.workflow_payloads AS p WHERE p.namespace = $1::text AND p.run_id = $2::uuid;

-- name: update_schedule
-- Change what is beside the template. Nothing that was due before is fired any more.
UPDATE kagzi.schedules AS s SET
    overlap = coalesce($3::text, s.overlap), jitter = coalesce($4::bigint, s.jitter),
    timeout = coalesce($5::bigint, s.timeout), fired_until = $6::bigint, kept_until = NULL, buffered_for = NULL,
    error = NULL, pause_reason = $7::text, updated_at = $8::bigint, skipped_runs = s.skipped_runs + $9::bigint,
    changed_by_hand = s.changed_by_hand OR ($10::boolean AND s.declared_hash IS NOT NULL)
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: read_declaration
-- Who has declared a schedule, read after its template's lock was taken.
SELECT s.name, s.declared_hash, s.declared_by, s.changed_by_hand, s.fired_until, s.buffered_for, s.overlap,
       EXISTS (SELECT 1 FROM kagzi.workers AS w
               WHERE w.namespace = s.namespace AND w.worker_id = s.declared_by::uuid AND w.status <> 'OFFLINE'
       ) AS declarer_live
FROM kagzi.schedules AS s
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: note_declaration
-- Whose code declares a schedule.
UPDATE kagzi.schedules AS s SET declared_hash = $3::text, declared_by = $4::text, changed_by_hand = false
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: declare_template
-- What a schedule fires, as code declares it.
UPDATE kagzi.workflow_runs AS t SET
    task_queue = $3::text, workflow_type = $4::text, version = '', cron_expr = $5::text, timezone = $6::text,
    max_catchup = $7::integer, priority = $8::integer, retry_policy = $9::bytea, on_failure = $10::text,
    on_failure_queue = $11::text, limit_key = $12::text
WHERE t.namespace = $1::text AND t.run_id = $2::uuid;

-- name: declare_schedule
-- What is beside the template, as code declares it.
UPDATE kagzi.schedules AS s SET
    overlap = $3::text, jitter = $4::bigint, timeout = $5::bigint, kept_until = NULL, error = NULL, updated_at = $6::bigint
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: move_template
-- When a schedule fires next, by other times.
UPDATE kagzi.workflow_runs AS t SET next_fire_at = $3::bigint, available_at = $3::bigint
WHERE t.namespace = $1::text AND t.run_id = $2::uuid;

-- name: move_watermark
-- Nothing that was due before is fired any more; what waited is dropped.
UPDATE kagzi.schedules AS s SET
    fired_until = $3::bigint, buffered_for = NULL, skipped_runs = s.skipped_runs + $4::bigint
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: forget_declaration
-- Let code have its way again: no declaration is the same as this one, and no worker has made it.
UPDATE kagzi.schedules AS s SET declared_hash = '', declared_by = NULL, changed_by_hand = false
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: delete_template
-- Remove a template. It never ended, so no trigger and no handler hears of it.
DELETE FROM kagzi.workflow_runs AS t
WHERE t.namespace = $1::text AND t.run_id = $2::uuid AND t.status IN ('SCHEDULED', 'PAUSED')
RETURNING t.run_id;

-- name: delete_schedule
-- Remove what was beside a template.
DELETE FROM kagzi.schedules AS s WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: lock_due_schedules
-- Schedules to look at, those that have waited longest first. One that somebody fires or changes is left to them.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
SELECT t.namespace, t.run_id, t.next_fire_at, t.max_catchup, t.cron_expr, t.timezone, i.now
FROM instant AS i
CROSS JOIN LATERAL (
    SELECT * FROM kagzi.workflow_runs AS w
    WHERE w.status = 'SCHEDULED' AND w.available_at <= i.now
    ORDER BY w.available_at
    LIMIT $2::integer
    FOR NO KEY UPDATE SKIP LOCKED
) AS t;

-- name: read_due_schedules
-- What is beside templates that are locked, and whether a run of theirs is live.
SELECT s.fired_until, s.kept_until, s.overlap, s.jitter, s.buffered_for, coalesce(n.enabled, true) AS enabled,
       EXISTS (SELECT FROM kagzi.workflow_runs AS r
               WHERE r.namespace = k.namespace AND r.schedule_group_id = k.schedule_id
                 AND r.schedule_group_id IS NOT NULL AND r.finished_at IS NULL) AS live
FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS k (namespace, schedule_id, place)
JOIN kagzi.schedules AS s ON s.namespace = k.namespace AND s.schedule_id = k.schedule_id
LEFT JOIN kagzi.namespaces AS n ON n.namespace = k.namespace
ORDER BY k.place;

-- name: find_live_firings
-- Runs of schedules that have not ended, in the order in which they are locked.
SELECT r.namespace, r.run_id
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, schedule_id)
JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.schedule_group_id = k.schedule_id
    AND r.schedule_group_id IS NOT NULL AND r.finished_at IS NULL
ORDER BY r.namespace, r.run_id;

-- name: insert_firings
-- Runs by templates. None where the instant has one, or somebody has taken the id. In the order of ids, byte by byte, as all starts.
INSERT INTO kagzi.workflow_runs (
    namespace, run_id, external_id, task_queue, workflow_type, version, priority, input, created_at, available_at,
    deadline_at, status, claim_key, schedule_group_id, scheduled_for, timezone, lineage, {{carried}})
SELECT t.namespace, k.run_id, k.external_id, t.task_queue, t.workflow_type,
       CASE t.version WHEN '' THEN kagzi.resolve_version(t.namespace, t.workflow_type) ELSE t.version END,
       t.priority, t.input, $1::bigint, k.available_at, $1::bigint + s.timeout, 'PENDING',
       {{claim_key(k.available_at, t.priority, $1::bigint)}},
       t.run_id, k.scheduled_for, t.timezone,
       '["' || k.run_id || '",' || to_json('schedule:' || coalesce(s.name, t.run_id::text))::text || ']', {{carried(t)}}
FROM unnest($2::text[], $3::uuid[], $4::uuid[], $5::text[], $6::bigint[], $7::bigint[])
    AS k (namespace, schedule_id, run_id, external_id, available_at, scheduled_for)
JOIN kagzi.workflow_runs AS t ON t.namespace = k.namespace AND t.run_id = k.schedule_id
JOIN kagzi.schedules AS s ON s.namespace = k.namespace AND s.schedule_id = k.schedule_id
ORDER BY k.namespace COLLATE "C", k.external_id COLLATE "C", k.run_id
ON CONFLICT DO NOTHING
RETURNING namespace, run_id, task_queue, status, available_at, workflow_type;

-- name: copy_template_inputs
-- Large inputs of templates, for the runs that were fired by them.
INSERT INTO kagzi.workflow_payloads (namespace, run_id, kind, data)
SELECT p.namespace, k.run_id, p.kind, p.data
FROM unnest($1::text[], $2::uuid[], $3::uuid[]) AS k (namespace, schedule_id, run_id)
JOIN kagzi.workflow_payloads AS p ON p.namespace = k.namespace AND p.run_id = k.schedule_id AND p.kind = 'input';

-- name: read_firing
-- What wakes the queue of a run that was fired.
SELECT r.namespace, r.run_id, r.task_queue, r.status, r.available_at, r.schedule_group_id
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.run_id = $2::uuid;

-- name: move_templates
-- When schedules fire next, and when they are looked at. One that is only looked at later keeps its next firing.
UPDATE kagzi.workflow_runs AS t SET
    next_fire_at = CASE WHEN k.moved THEN k.next_fire_at ELSE t.next_fire_at END, available_at = k.look_at
FROM unnest($1::text[], $2::uuid[], $3::boolean[], $4::bigint[], $5::bigint[])
    AS k (namespace, schedule_id, moved, next_fire_at, look_at)
WHERE t.namespace = k.namespace AND t.run_id = k.schedule_id;

-- name: move_schedules
-- Watermarks and counters, after a turn; or only why a schedule could not fire.
UPDATE kagzi.schedules AS s SET
    fired_until = CASE WHEN k.moved THEN k.fired_until ELSE s.fired_until END,
    kept_until = CASE WHEN k.moved THEN k.kept_until ELSE s.kept_until END,
    buffered_for = CASE WHEN k.moved THEN k.buffered_for ELSE s.buffered_for END,
    skipped_runs = s.skipped_runs + k.skipped, error = k.error,
    total_runs = s.total_runs + k.fired,
    last_fired_at = CASE WHEN k.fired > 0 THEN $1::bigint ELSE s.last_fired_at END,
    last_run_id = coalesce(k.last_run_id, s.last_run_id)
FROM unnest($2::text[], $3::uuid[], $4::boolean[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[],
            $10::bigint[], $11::uuid[])
    AS k (namespace, schedule_id, moved, fired_until, kept_until, buffered_for, skipped, error, fired, last_run_id)
WHERE s.namespace = k.namespace AND s.schedule_id = k.schedule_id;

-- name: count_firings
-- Runs that were started by a schedule beside its plan.
UPDATE kagzi.schedules AS s SET
    total_runs = s.total_runs + $3::bigint, last_fired_at = $4::bigint, last_run_id = $5::uuid
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid;

-- name: insert_skips
-- Firings that did not become runs.
INSERT INTO kagzi.schedule_skips (namespace, schedule_id, first_at, last_at, count, reason, at)
SELECT k.namespace, k.schedule_id, k.first_at, k.last_at, k.count, k.reason, $1::bigint
FROM unnest($2::text[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
    AS k (namespace, schedule_id, first_at, last_at, count, reason);

-- name: list_skips
-- The newest firings that did not become runs.
SELECT s.first_at, s.last_at, s.count, s.reason, s.at
FROM kagzi.schedule_skips AS s
WHERE s.namespace = $1::text AND s.schedule_id = $2::uuid
ORDER BY s.namespace DESC, s.schedule_id DESC, s.skip_id DESC
LIMIT $3::integer;

-- name: lock_ended_schedules
-- Schedules whose runs have ended since the last time, and which nobody fires or changes at the moment. `gone` ones were
-- deleted.
WITH ended AS MATERIALIZED (
    SELECT e.namespace, e.schedule_id
    FROM kagzi.schedule_ends AS e
    GROUP BY e.namespace, e.schedule_id
    LIMIT $1::integer
), locked AS MATERIALIZED (
    SELECT t.namespace, t.run_id
    FROM ended AS e
    JOIN kagzi.workflow_runs AS t ON t.namespace = e.namespace AND t.run_id = e.schedule_id
    FOR NO KEY UPDATE OF t SKIP LOCKED
)
SELECT l.namespace, l.run_id AS schedule_id, false AS gone FROM locked AS l
UNION ALL
SELECT e.namespace, e.schedule_id, true FROM ended AS e
WHERE NOT EXISTS (SELECT FROM kagzi.workflow_runs AS t WHERE t.namespace = e.namespace AND t.run_id = e.schedule_id);

-- name: fold_schedule_ends
-- Add ends to the counters of locked schedules: exactly those that are deleted here. Where a firing waits for one, its
-- schedule is looked at now.
WITH folded AS (
    DELETE FROM kagzi.schedule_ends AS e
    USING unnest($2::text[], $3::uuid[]) AS k (namespace, schedule_id)
    WHERE e.namespace = k.namespace AND e.schedule_id = k.schedule_id
    RETURNING e.namespace, e.schedule_id, e.status
), counted AS (
    UPDATE kagzi.schedules AS s SET
        successful_runs = s.successful_runs + f.successful, failed_runs = s.failed_runs + f.failed
    FROM (
        SELECT f.namespace, f.schedule_id, count(*) FILTER (WHERE f.status = 'COMPLETED') AS successful,
               count(*) FILTER (WHERE f.status IN ('FAILED', 'TIMED_OUT')) AS failed
        FROM folded AS f
        GROUP BY f.namespace, f.schedule_id
    ) AS f
    WHERE s.namespace = f.namespace AND s.schedule_id = f.schedule_id
    RETURNING s.namespace, s.schedule_id, s.buffered_for
)
UPDATE kagzi.workflow_runs AS t SET available_at = least(t.available_at, coalesce($1::bigint, kagzi.clock()))
FROM counted AS c
WHERE c.buffered_for IS NOT NULL AND t.namespace = c.namespace AND t.run_id = c.schedule_id AND t.status = 'SCHEDULED';

-- name: prune_skips
-- Records of skipped firings past their namespace's retention, among the oldest.
WITH doomed AS MATERIALIZED (
    SELECT s.skip_id
    FROM (SELECT * FROM kagzi.schedule_skips AS o ORDER BY o.skip_id LIMIT $2::integer) AS s
    LEFT JOIN kagzi.namespaces AS n ON n.namespace = s.namespace
    WHERE s.at <= coalesce($1::bigint, kagzi.clock()) - coalesce(n.retention_days, 30) * 86400000000::bigint
), pruned AS (
    DELETE FROM kagzi.schedule_skips AS s USING doomed AS d WHERE s.skip_id = d.skip_id
)
SELECT count(*)::integer AS deleted FROM doomed;

-- name: list_schedule_run_ids
-- What a schedule has started, newest first, beyond a run id.
SELECT r.run_id
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.schedule_group_id = $2::uuid AND r.schedule_group_id IS NOT NULL
  AND r.run_id < $3::uuid
ORDER BY r.namespace DESC, r.schedule_group_id DESC, r.run_id DESC
LIMIT $4::integer;

-- name: list_schedule_run_ids_backward
-- The same, going the other way: the nearest newer runs, nearest first.
SELECT r.run_id
FROM kagzi.workflow_runs AS r
WHERE r.namespace = $1::text AND r.schedule_group_id = $2::uuid AND r.schedule_group_id IS NOT NULL
  AND r.run_id > $3::uuid
ORDER BY r.namespace, r.schedule_group_id, r.run_id
LIMIT $4::integer;

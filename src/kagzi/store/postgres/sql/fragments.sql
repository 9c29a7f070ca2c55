-- What several statements say alike; see `kagzi.store.sql`.

-- fragment: claim_key(at, priority, now)
-- The order of claiming: due time less priority. In the past exactly if the run is due, so that one index serves both
-- questions.
CASE WHEN {at} > {now} THEN {at} ELSE least({at} - {priority} * {{AGEING}}::bigint, {now}) END

-- fragment: claim_key_of_now(priority, now)
-- The same for a run that is due from now on.
least({now} - {priority} * {{AGEING}}::bigint, {now})

-- fragment: grace_when_claimed(r, now)
-- Until when a run that is claimed may clean up. One that had to wait for a slot has some time left for it.
CASE WHEN {r}.held_key IS NOT NULL AND {r}.cancel_deadline IS NOT NULL
         THEN greatest({r}.cancel_deadline, {now} + {{CANCEL_GRACE}}::bigint) ELSE {r}.cancel_deadline END

-- fragment: place_of_cancelled(r, now)
-- Marks a run that was told to end and waits for a slot of its queue: it stays claimable, and has time to clean up when it
-- is claimed (grace_when_claimed). Should a line hold it, it is the first there.
coalesce({r}.held_key, least({r}.claim_key, {now}) - 1125899906842624)

-- fragment: step_columns
-- What is written of a step, in the order of its values.
namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at, retry_at,
        timeout_at, input_hash, input, output, error

-- fragment: step_replaces
-- What a step leaves of the row that is there. A completed event is never overwritten; a RUNNING row gives way to
-- anything, and to another RUNNING one of a later lease, because that one has another timeout. What an attempt was given
-- does not change once it has ended.
ON CONFLICT (namespace, run_id, step_id, attempt) DO UPDATE SET
        kind = EXCLUDED.kind, status = EXCLUDED.status, completed_seq = EXCLUDED.completed_seq,
        started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at, retry_at = EXCLUDED.retry_at,
        timeout_at = EXCLUDED.timeout_at, input_hash = EXCLUDED.input_hash,
        input = CASE WHEN s.status = 'RUNNING' THEN coalesce(EXCLUDED.input, s.input) ELSE s.input END,
        output = EXCLUDED.output, error = EXCLUDED.error
    WHERE s.completed_seq IS NULL AND (EXCLUDED.status <> 'RUNNING' OR s.status = 'RUNNING')

-- fragment: record_steps_of_locked
-- Writes the steps of a batch whose runs are held: $1 to $3 are the runs, $4 to $19 the steps; see chunks.sql.
INSERT INTO kagzi.step_runs AS s ({{step_columns}})
    SELECT n.namespace, n.run_id, n.step_id, coalesce(n.attempt, 1), coalesce(n.kind, 'FUNCTION'),
           coalesce(n.status, 'COMPLETED'), n.completed_seq, n.started_at, n.finished_at, n.retry_at,
           n.timeout_at, coalesce(n.input_hash, 0), n.input, n.output, n.error
    FROM unnest($4::integer[], coalesce($5::text[], $1::text[]), coalesce($6::uuid[], $2::uuid[]), $7::text[],
                $8::integer[], $9::text[], $10::text[], $11::integer[], $12::bigint[], $13::bigint[], $14::bigint[],
                $15::bigint[], $16::bigint[], $17::bytea[], $18::bytea[], $19::bytea[]) WITH ORDINALITY
        AS n (place, namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, finished_at,
              retry_at, timeout_at, input_hash, input, output, error, ordinal)
    WHERE (coalesce(n.place, n.ordinal) IN (SELECT l.place FROM locked AS l WHERE l.status = 'RUNNING')) IS TRUE
    {{step_replaces}}

-- fragment: record_step_of_locked(condition)
-- Writes the step of a chunk that is alone, $4 to $16, if this is so of its run ($1 to $3).
INSERT INTO kagzi.step_runs AS s ({{step_columns}})
    SELECT $1::text, $2::uuid, $4::text, $5::integer, $6::text, $7::text, $8::integer, $9::bigint, $10::bigint,
           $11::bigint, $12::bigint, $13::bigint, $14::bytea, $15::bytea, $16::bytea
    FROM locked AS l
    WHERE {condition}
    {{step_replaces}}

-- fragment: delete_details_of_doomed
-- Deletes what is kept of the runs that are `doomed`, but for their own rows.
steps AS (
    DELETE FROM kagzi.step_runs AS s USING doomed AS d WHERE s.namespace = d.namespace AND s.run_id = d.run_id
), payloads AS (
    DELETE FROM kagzi.workflow_payloads AS p USING doomed AS d WHERE p.namespace = d.namespace AND p.run_id = d.run_id
), signals AS (
    DELETE FROM kagzi.signals AS s USING doomed AS d WHERE s.namespace = d.namespace AND s.run_id = d.run_id
), run_values AS (
    DELETE FROM kagzi.run_values AS v USING doomed AS d WHERE v.namespace = d.namespace AND v.run_id = d.run_id
)

-- fragment: is_run(r)
-- Schedules keep their templates in the table of runs. Nobody may take one for a run: what reads, ends or repeats a run that
-- it is given by its id, or lists runs, says so by this. Whoever looks for runs that are claimable, held, live under a
-- lease, finished or have an id cannot meet one: a template is and has none of that.
{r}.status NOT IN ('SCHEDULED', 'PAUSED')

-- fragment: run_columns
-- What every new run has. Every insert of a run names these columns and has these values; more may follow.
namespace, run_id, external_id, task_queue, workflow_type, version, priority, input, created_at, available_at,
    deadline_at, status, claim_key, lease_length, {{carried}}

-- fragment: run_values
-- The values of a new run that waits to be claimed, from a source that has the names of the columns, `now` and `timeout`.
namespace, run_id, external_id, task_queue, workflow_type, version, coalesce(priority, 0), input, now, available_at,
       least(now + timeout, deadline_at), 'PENDING', {{claim_key(available_at, coalesce(priority, 0), now)}},
       lease_length, {{carried}}

-- fragment: born_run_columns
-- What a run has that is born under a lease.
{{run_columns}}, lease_expires_at, started_at, executions, token, worker_id, poll, limit_name,
    parent_run_id, parent_step_id, parent_attempt, parent_policy

-- fragment: born_run_values
-- The values of a new run that is claimed in the moment it is inserted if it is `born`, else waits.
namespace, run_id, external_id, task_queue, workflow_type, version, coalesce(priority, 0), input, now, available_at,
       least(now + timeout, deadline_at),
       CASE WHEN born THEN 'RUNNING' ELSE 'PENDING' END,
       CASE WHEN NOT born THEN {{claim_key(available_at, coalesce(priority, 0), now)}} END,
       CASE WHEN born THEN coalesce(lease_length, birth_length) ELSE lease_length END, {{carried}},
       CASE WHEN born THEN now + birth_length END,
       CASE WHEN born THEN now END,
       CASE WHEN born THEN 1 ELSE 0 END,
       CASE WHEN born THEN token END,
       CASE WHEN born THEN worker_id END,
       CASE WHEN born THEN poll END,
       limit_name, parent_run_id, parent_step_id, parent_attempt, CASE WHEN parent_run_id IS NOT NULL THEN 'none' END

-- fragment: claim_columns(r)
-- What a worker has to know of a run it has claimed, beside its history.
{r}.run_id, {r}.workflow_type, {r}.version, {r}.task_queue, {r}.external_id, {r}.input, {r}.started_at,
           {r}.lease_length, {r}.attempts, {r}.executions, {r}.crashes, {r}.inbox_seq, {r}.token,
           {r}.cancel_requested, {r}.origin_run_id, {{fired_for({r})}} AS scheduled_for, {r}.timezone,
           {r}.has_children IS TRUE OR coalesce({r}.parent_policy, 'none') <> 'none' AS family,
           coalesce({r}.depth, 0) AS depth, {r}.handles_run_id, coalesce({r}.incarnation, 0) AS incarnation,
           coalesce({r}.executions_before, 0) AS executions_before, {r}.woken, {r}.lineage, {{carried_to_worker({r})}}

-- fragment: fired_for(r)
-- The moment for which a schedule has fired a run, which alone have a zone: its firing, else when somebody has triggered it.
coalesce({r}.scheduled_for, CASE WHEN {r}.timezone IS NOT NULL THEN {r}.created_at END)

-- fragment: claimed_before
-- What this very poll has claimed before: its first answer was lost, so for the worker the lease begins now. Whether it is
-- `limited` follows.
UPDATE kagzi.workflow_runs AS r SET lease_expires_at = i.now + r.lease_length
    FROM instant AS i
    WHERE r.worker_id = $4::uuid AND r.status = 'RUNNING' AND r.namespace = $3::text
      AND substr(r.token::text, 9) = substr($5::uuid::text, 9)
    RETURNING coalesce(r.available_at, 0) AS place, {{claim_columns(r)}}, false AS fresh

-- fragment: is_for_poll(r, task_queue)
-- Which runs of a queue a poll can claim, those that have waited longest first.
WHERE {r}.namespace = $3::text AND {r}.task_queue = {task_queue} AND {r}.status IN ('PENDING', 'SLEEPING')
          AND {r}.claim_key <= (SELECT i.now FROM instant AS i)
          AND substr({r}.token::text, 9) IS DISTINCT FROM substr($5::uuid::text, 9)
          AND ({r}.workflow_type = ANY ($9::text[])
               OR length({r}.workflow_type) || ':' || {r}.workflow_type || {r}.version = ANY ($10::text[]))
        ORDER BY {r}.namespace, {r}.task_queue, {r}.claim_key

-- fragment: lease_of_poll(r, now)
-- What a claim makes of a run.
status = 'RUNNING', token = (lpad(to_hex({r}.executions + 1), 8, '0') || substr($5::uuid::text, 9))::uuid,
        worker_id = $4::uuid, poll = $6::integer, claim_key = NULL, held_key = NULL,
        lease_length = coalesce({r}.lease_length, $2::bigint),
        lease_expires_at = {now} + coalesce({r}.lease_length, $2::bigint),
        started_at = coalesce({r}.started_at, {now}), executions = {r}.executions + 1,
        cancel_deadline = {{grace_when_claimed({r}, {now})}}

-- fragment: claimed_now
-- What a claim returns of runs `r` that it has taken by their places `d`.
d.claim_key AS place, {{claim_columns(r)}},
              r.executions = 1 AND r.origin_run_id IS NULL AND r.inbox_seq = 0 AS fresh, false AS limited

-- fragment: shown_run
-- A run `r` as it is shown, with its payloads `i` and `o`.
r.namespace, r.run_id, r.external_id, r.task_queue, r.workflow_type, r.version, r.status, r.priority, r.attempts,
       r.executions, r.crashes, r.created_at, r.available_at, r.started_at, r.finished_at, r.deadline_at, r.worker_id,
       coalesce(r.input, i.data) AS input, coalesce(r.output, o.data) AS output, r.error,
       r.waiting_for, r.lease_expires_at, r.cancel_deadline, r.parent_run_id, r.parent_step_id, r.parent_policy,
       coalesce(r.depth, 0) AS depth, r.handles_run_id, r.superseded_by, r.former_id,
       coalesce(r.repeats_run_id, r.origin_run_id) AS origin, coalesce(r.incarnation, 0) AS incarnation,
       r.schedule_group_id, r.scheduled_for, r.origin_run_id AS seed_run_id, r.parent_attempt,
       r.debounce_key, coalesce(r.joins, 0) AS joins, r.joined_at, r.joined_by, r.timezone, r.lineage,
       {{carried_to_people(r)}}

-- fragment: payloads_of_run
-- The payloads of a run `r` that are kept apart.
LEFT JOIN kagzi.workflow_payloads AS i
    ON i.namespace = r.namespace AND i.run_id = r.run_id AND i.kind = 'input' AND r.input IS NULL
LEFT JOIN kagzi.workflow_payloads AS o
    ON o.namespace = r.namespace AND o.run_id = r.run_id AND o.kind = 'output' AND r.output IS NULL
       AND r.status = 'COMPLETED'

-- fragment: shown_step
-- A step `s` as replay needs it; people see its input, too.
s.run_id, s.step_id, s.attempt, s.kind, s.status, s.completed_seq, s.started_at, s.finished_at, s.retry_at,
       s.input_hash, s.output, s.error, s.child_run_id

-- fragment: changed_run
-- What those who hear of a change of a run `r` have to know.
r.namespace, r.run_id, r.task_queue, r.status, r.available_at

-- fragment: is_limited(namespace, task_queue, workflow_type, limit_name)
-- Whether something may hold back such a run. One like it is never born: it has to be claimed, where pauses and limits are
-- looked at.
EXISTS (
        SELECT FROM kagzi.limits AS l
        WHERE l.namespace = {namespace}
          AND (l.scope = 'namespace' OR (l.scope = 'queue' AND l.name = {task_queue})
               OR (l.scope = 'workflow' AND l.name IN ({workflow_type}, {limit_name}))))

-- fragment: counts_for_limits(r)
-- Whether others may wait for a run to let go, as claim_runs decides it.
EXISTS (
        SELECT FROM kagzi.limits AS l
        WHERE l.namespace = {r}.namespace
          AND ((l.scope = 'queue' AND l.name = {r}.task_queue)
               OR (l.scope = 'workflow' AND l.name IN ({r}.workflow_type, {r}.limit_name))))

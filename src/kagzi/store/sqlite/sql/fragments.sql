-- What several statements say alike; see `kagzi.store.sql`.

-- fragment: claim_key(at, priority, now)
-- The order of claiming: due time less priority. `runs.claim_key` is the same in Python.
CASE WHEN {at} > {now} THEN {at} ELSE min({at} - {priority} * {{AGEING}}, {now}) END

-- fragment: is_run(r)
-- Schedules keep their templates in the table of runs. Nobody may take one for a run: what reads, ends or repeats a run that
-- it is given by its id, or lists runs, says so by this. Whoever looks for runs that are claimable, held, live under a
-- lease, finished or have an id cannot meet one: a template is and has none of that.
{r}.status NOT IN ('SCHEDULED', 'PAUSED')

-- fragment: run_columns
-- What every new run has. Every insert of a run names these columns; more may follow.
namespace, run_id, external_id, task_queue, workflow_type, version, status, priority, created_at, available_at,
    claim_key, deadline_at, input, lease_length, {{carried}}

-- fragment: fired_for(r)
-- The moment for which a schedule has fired a run, which alone have a zone: its firing, else when somebody has triggered it.
coalesce({r}.scheduled_for, CASE WHEN {r}.timezone IS NOT NULL THEN {r}.created_at END)

-- fragment: shown_run
-- A run `r` as it is shown, with its payloads `i` and `o`.
r.namespace, r.run_id, r.external_id, r.task_queue, r.workflow_type, r.version, r.status, r.priority, r.attempts,
    r.executions, r.crashes, r.created_at, r.available_at, r.started_at, r.finished_at, r.deadline_at, r.worker_id,
    coalesce(r.input, i.data), coalesce(r.output, o.data), r.error,
    r.waiting_for, r.lease_expires_at, r.cancel_deadline, r.parent_run_id, r.parent_step_id, r.parent_policy,
    coalesce(r.depth, 0), r.handles_run_id, r.superseded_by, r.former_id,
    coalesce(r.repeats_run_id, r.origin_run_id), coalesce(r.incarnation, 0), r.schedule_group_id, r.scheduled_for,
    r.origin_run_id, r.parent_attempt, r.debounce_key, coalesce(r.joins, 0), r.joined_at, r.joined_by, r.timezone,
    r.lineage, {{carried_to_people(r)}}

-- fragment: payloads_of_run
-- The payloads of a run `r` that are kept apart.
LEFT JOIN workflow_payloads AS i
    ON r.input IS NULL AND i.namespace = r.namespace AND i.run_id = r.run_id AND i.kind = 'input'
LEFT JOIN workflow_payloads AS o
    ON r.output IS NULL AND o.namespace = r.namespace AND o.run_id = r.run_id AND o.kind = 'output'

-- fragment: shown_step
-- A step as replay needs it; people see its input, too.
step_id, attempt, kind, status, completed_seq, started_at, finished_at, retry_at, input_hash, output, error

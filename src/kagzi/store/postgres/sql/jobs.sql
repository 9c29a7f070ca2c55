-- Jobs over many runs. Locks: the job's row first, skipped if somebody works on it; then runs in (namespace, run_id) order.

-- fragment: shown_job
-- A job as it is shown.
j.namespace, j.job_id, j.action, j.filter, j.rate, j.children, j.options, j.status, j.matched, j.done, j.skipped, j.failed,
       j.reasons, j.created_by, j.created_at, j.finished_at, j.error

-- name: insert_job
-- A new job over the runs that are there; nothing if the id is taken, or too many jobs of the namespace are under way. Two
-- that are started in the same moment may be one too many.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
)
INSERT INTO kagzi.jobs AS j (namespace, job_id, action, filter, rate, children, created_by, options, status, created_at, next_at,
    cursor, last_run_id)
SELECT $2::text, $3::uuid, $4::text, $5::bytea, $6::integer, $7::boolean, $8::text, $10::bytea, 'RUNNING', i.now, i.now,
       '00000000-0000-0000-0000-000000000000',
       coalesce((SELECT r.run_id FROM kagzi.workflow_runs AS r WHERE r.namespace = $2::text
                 ORDER BY r.namespace DESC, r.run_id DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')
FROM instant AS i
WHERE (SELECT count(*) FROM kagzi.jobs AS o WHERE o.namespace = $2::text AND o.next_at IS NOT NULL) < $9::integer
ON CONFLICT DO NOTHING
RETURNING {{shown_job}};

-- name: get_job
-- One job.
SELECT {{shown_job}} FROM kagzi.jobs AS j WHERE j.namespace = $1::text AND j.job_id = $2::uuid;

-- name: list_jobs
-- Jobs older than a job id, newest first.
SELECT {{shown_job}} FROM kagzi.jobs AS j WHERE j.namespace = $1::text AND j.job_id < $2::uuid
ORDER BY j.namespace DESC, j.job_id DESC LIMIT $3::integer;

-- name: cancel_job
-- End a job. Waits for the batch that is under way.
UPDATE kagzi.jobs AS j SET status = 'CANCELLED', next_at = NULL, finished_at = coalesce($3::bigint, kagzi.clock())
WHERE j.namespace = $1::text AND j.job_id = $2::uuid AND j.next_at IS NOT NULL;

-- name: lock_job
-- The job that has waited longest and that nobody works on.
SELECT {{shown_job}}, j.cursor, j.last_run_id, i.now
FROM (SELECT coalesce($1::bigint, kagzi.clock()) AS now OFFSET 0) AS i
CROSS JOIN LATERAL (
    SELECT * FROM kagzi.jobs AS o WHERE o.next_at <= i.now ORDER BY o.next_at LIMIT 1 FOR UPDATE SKIP LOCKED
) AS j;

-- name: move_job
-- Where a job stands after a batch, in the transaction of the batch.
UPDATE kagzi.jobs AS j SET
    cursor = $3::uuid, matched = j.matched + $4::bigint, done = j.done + $5::bigint, skipped = j.skipped + $6::bigint,
    failed = j.failed + $7::bigint, status = $8::text, next_at = $9::bigint, finished_at = $10::bigint,
    error = coalesce($11::text, j.error), reasons = coalesce($12::bytea, j.reasons)
WHERE j.namespace = $1::text AND j.job_id = $2::uuid
RETURNING {{shown_job}};

-- name: delete_runs
-- Delete finished runs and what is kept of them. Cascades stay: children are told by them.
WITH doomed AS MATERIALIZED (
    SELECT r.namespace, r.run_id
    FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
    JOIN kagzi.workflow_runs AS r ON r.namespace = k.namespace AND r.run_id = k.run_id
    WHERE r.finished_at IS NOT NULL
    ORDER BY r.namespace, r.run_id
    FOR UPDATE OF r
), {{delete_details_of_doomed}}
DELETE FROM kagzi.workflow_runs AS r USING doomed AS d
WHERE r.namespace = d.namespace AND r.run_id = d.run_id
RETURNING r.run_id;

-- name: repeated_runs
-- Those of these runs that others repeat, or were forked from.
SELECT k.run_id FROM unnest($2::uuid[]) AS k (run_id)
WHERE EXISTS (SELECT FROM kagzi.workflow_runs AS r WHERE r.namespace = $1::text AND r.repeats_run_id = k.run_id);

-- name: is_enabled
-- Whether runs may be started in a namespace.
SELECT coalesce((SELECT n.enabled FROM kagzi.namespaces AS n WHERE n.namespace = $1::text), true);

-- name: prune_jobs
-- Jobs that have ended long ago.
DELETE FROM kagzi.jobs AS j
WHERE (j.namespace, j.job_id) IN (
    SELECT o.namespace, o.job_id FROM kagzi.jobs AS o
    WHERE o.finished_at <= coalesce($1::bigint, kagzi.clock()) - $2::bigint LIMIT $3::integer);

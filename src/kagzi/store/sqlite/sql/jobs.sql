-- Jobs over many runs.

-- fragment: shown_job
-- A job as it is shown.
namespace, job_id, action, filter, rate, children, options, status, matched, done, skipped, failed, reasons, created_by, created_at,
    finished_at, error

-- name: insert_job
-- A new job over the runs that are there; nothing if the id is taken, or too many jobs of the namespace are under way.
INSERT INTO jobs (namespace, job_id, action, filter, rate, children, created_by, options, status, created_at, next_at, cursor,
    last_run_id)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?10, 'RUNNING', ?8, ?8, '00000000-0000-0000-0000-000000000000',
    coalesce((SELECT max(run_id) FROM workflow_runs WHERE namespace = ?1), '00000000-0000-0000-0000-000000000000')
WHERE (SELECT count(*) FROM jobs WHERE namespace = ?1 AND next_at IS NOT NULL) < ?9
ON CONFLICT DO NOTHING;

-- name: get_job
-- One job.
SELECT {{shown_job}} FROM jobs WHERE namespace = ?1 AND job_id = ?2;

-- name: list_jobs
-- Jobs older than a job id, newest first.
SELECT {{shown_job}} FROM jobs WHERE namespace = ?1 AND job_id < ?2 ORDER BY job_id DESC LIMIT ?3;

-- name: cancel_job
-- End a job.
UPDATE jobs SET status = 'CANCELLED', next_at = NULL, finished_at = ?3
WHERE namespace = ?1 AND job_id = ?2 AND next_at IS NOT NULL;

-- name: next_job
-- The job that has waited longest.
SELECT {{shown_job}}, cursor, last_run_id FROM jobs WHERE next_at <= ?1 ORDER BY next_at LIMIT 1;

-- name: move_job
-- Where a job stands after a batch, in the transaction of the batch.
UPDATE jobs SET cursor = ?3, matched = matched + ?4, done = done + ?5, skipped = skipped + ?6, failed = failed + ?7,
    status = ?8, next_at = ?9, finished_at = ?10, error = coalesce(?11, error), reasons = coalesce(?12, reasons)
WHERE namespace = ?1 AND job_id = ?2;

-- name: repeated_runs
-- Those of these runs that others repeat, or were forked from.
SELECT k.value FROM json_each(?2) AS k
WHERE EXISTS (SELECT 1 FROM workflow_runs AS r WHERE r.namespace = ?1 AND r.repeats_run_id = k.value);

-- name: is_enabled
-- Whether runs may be started in a namespace.
SELECT coalesce((SELECT enabled FROM namespaces WHERE namespace = ?1), 1);

-- name: prune_jobs
-- Jobs that have ended long ago.
DELETE FROM jobs WHERE finished_at <= ?1;

-- name: survey
-- How much there is of everything, for people. What waits is counted up to a bound.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), waiting AS MATERIALIZED (
    SELECT r.status, r.available_at FROM kagzi.workflow_runs AS r WHERE r.status IN ('PENDING', 'SLEEPING')
    LIMIT $2::integer
), counted AS (
    SELECT count(*) FILTER (WHERE w.status = 'PENDING') AS pending,
           count(*) FILTER (WHERE w.status = 'SLEEPING') AS sleeping,
           min(w.available_at) FILTER (WHERE w.available_at <= (SELECT now FROM instant)) AS oldest_due_at
    FROM waiting AS w
), crew AS (
    SELECT count(*) FILTER (WHERE w.status = 'ONLINE') AS workers_online,
           count(*) FILTER (WHERE w.status = 'DRAINING') AS workers_draining
    FROM kagzi.workers AS w WHERE w.status <> 'OFFLINE'
)
SELECT i.now, c.pending, c.sleeping, c.oldest_due_at, k.workers_online, k.workers_draining,
       (SELECT count(*) FROM kagzi.workflow_runs AS r WHERE r.status = 'RUNNING') AS running,
       (SELECT max(m.number) FROM kagzi.migrations AS m) AS schema
FROM instant AS i CROSS JOIN counted AS c CROSS JOIN crew AS k;

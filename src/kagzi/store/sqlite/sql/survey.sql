-- name: survey
-- How much there is of everything, for people. What waits is counted up to a bound.
SELECT sum(CASE WHEN w.status = 'PENDING' THEN 1 ELSE 0 END), sum(CASE WHEN w.status = 'SLEEPING' THEN 1 ELSE 0 END),
    min(CASE WHEN w.available_at <= ?1 THEN w.available_at END),
    (SELECT count(*) FROM workflow_runs WHERE status = 'RUNNING'),
    (SELECT count(*) FROM workers WHERE status = 'ONLINE'),
    (SELECT count(*) FROM workers WHERE status = 'DRAINING'),
    (SELECT max(number) FROM schema_migrations)
FROM (SELECT status, available_at FROM workflow_runs WHERE status IN ('PENDING', 'SLEEPING') LIMIT ?2) AS w;

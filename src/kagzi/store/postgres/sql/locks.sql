-- Who holds what we wait for. Asked only of those who wait; see `kagzi.store.postgres.locks`.

-- fragment: session(a)
-- What is told of a session.
{a}.application_name AS application, {a}.state,
       extract(epoch FROM clock_timestamp() - {a}.xact_start)::float8 AS seconds,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now

-- name: find_holder
-- Who holds up a session, or with NULL any of ours: the end of the chain of those who wait for each other, which is the one
-- that waits for nobody. A session of another role shows neither its age nor its state to roles without pg_monitor.
WITH RECURSIVE chain AS (
    SELECT b.pid, 1 AS depth
    FROM pg_stat_activity AS w
    CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
    WHERE CASE WHEN $1::integer IS NOT NULL THEN w.pid = $1::integer
               ELSE w.datname = current_database() AND w.application_name = 'kagzi' AND w.wait_event_type = 'Lock' END
    UNION
    SELECT b.pid, c.depth + 1
    FROM chain AS c
    CROSS JOIN LATERAL unnest(pg_blocking_pids(c.pid)) AS b (pid)
    WHERE c.depth < 6
)
SELECT c.pid, {{session(a)}},
       (SELECT min(l.relation::regclass::text) FROM pg_locks AS l
        WHERE l.pid = c.pid AND l.locktype = 'relation' AND l.granted AND {{stops_writes(l)}}) AS relation
FROM (SELECT pid, max(depth) AS depth FROM chain GROUP BY pid) AS c
LEFT JOIN pg_stat_activity AS a ON a.pid = c.pid
ORDER BY coalesce(a.wait_event_type = 'Lock', false), c.depth DESC
LIMIT 1;

-- fragment: stops_writes(l)
-- Whether a lock, held or asked for, is of a whole table of ours and lets nobody write to it.
{l}.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
        AND {l}.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        AND {l}.relation IN (SELECT c.oid FROM pg_class AS c
                             WHERE c.relkind = 'r' AND c.relnamespace = to_regnamespace('kagzi'))

-- name: find_table_lock
-- Who holds a whole table of ours, or waits for it with all others behind.
SELECT l.pid, {{session(a)}}, l.relation::regclass::text AS relation
FROM pg_locks AS l
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.pid <> pg_backend_pid() AND {{stops_writes(l)}}
ORDER BY l.granted DESC, a.xact_start
LIMIT 1;

-- Runs and workers are changed in separate transactions, so that no transaction waits for one while it holds the other.

-- name: register_worker
-- A worker introduces itself, or comes back after we had given it up.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), registered AS (
    INSERT INTO kagzi.workers AS w (
        worker_id, namespace, queues, types, versions, hostname, pid, version, concurrency, labels, status,
        registered_at, last_heartbeat_at)
    SELECT $2::uuid, $3::text, $4::text[], $5::text[], $6::text[], $7::text, $8::integer, $9::text, $10::integer, $11::bytea,
           'ONLINE', i.now, i.now
    FROM instant AS i
    ON CONFLICT (worker_id) DO UPDATE SET
        queues = EXCLUDED.queues, types = EXCLUDED.types, versions = EXCLUDED.versions, hostname = EXCLUDED.hostname,
        pid = EXCLUDED.pid, version = EXCLUDED.version, concurrency = EXCLUDED.concurrency, labels = EXCLUDED.labels, status = 'ONLINE',
        last_heartbeat_at = EXCLUDED.last_heartbeat_at, deregistered_at = NULL
    WHERE w.namespace = EXCLUDED.namespace
    RETURNING w.namespace, w.worker_id
)
INSERT INTO kagzi.worker_events (namespace, worker_id, event, at)
SELECT r.namespace, r.worker_id, 'STARTED', i.now FROM registered AS r CROSS JOIN instant AS i;

-- name: beat
-- Workers are alive. Tells of each that it found whether it holds runs that its heartbeat may concern although it lists
-- none. Rows are locked in the order of their ids, so that two servers never wait for each other.
WITH told AS MATERIALIZED (
    SELECT w.worker_id, b.namespace, b.heard, b.confirmed, b.completed, b.failed
    FROM unnest($2::uuid[], $3::text[], $4::integer[], $5::boolean[], $6::bigint[], $7::bigint[])
        AS b (worker_id, namespace, heard, confirmed, completed, failed)
    JOIN kagzi.workers AS w ON w.worker_id = b.worker_id
    WHERE w.status <> 'OFFLINE' AND (b.namespace IS NULL OR w.namespace = b.namespace)
    ORDER BY w.worker_id
    FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE kagzi.workers AS w
SET last_heartbeat_at = coalesce($1::bigint, kagzi.clock()), completed = t.completed, failed = t.failed
FROM told AS t
WHERE w.worker_id = t.worker_id
RETURNING w.worker_id, w.status, w.last_heartbeat_at, {{holds(w, t)}} AS holds;

-- fragment: holds(w, t)
-- Whether a worker holds runs that its heartbeat may concern although it lists none.
EXISTS (SELECT FROM kagzi.workflow_runs AS r
                  WHERE r.worker_id = {w}.worker_id AND r.status = 'RUNNING'
                    AND ({t}.namespace IS NULL OR r.namespace = {t}.namespace)
                    AND (r.poll <= {t}.heard OR ({t}.confirmed AND r.poll IS NULL)))

-- name: find_beating
-- The same of workers whose rows somebody has locked, which say a moment longer when they were last heard of.
SELECT w.worker_id, w.status, coalesce($1::bigint, kagzi.clock()) AS last_heartbeat_at, {{holds(w, b)}} AS holds
FROM unnest($2::uuid[], $3::text[], $4::integer[], $5::boolean[]) AS b (worker_id, namespace, heard, confirmed)
JOIN kagzi.workers AS w ON w.worker_id = b.worker_id
WHERE w.status <> 'OFFLINE' AND (b.namespace IS NULL OR w.namespace = b.namespace);

-- fragment: is_listed(r)
-- Whether a worker lists this run, with its lease.
(({r}.worker_id, {r}.run_id, {r}.token)
               IN (SELECT h.worker_id, h.run_id, h.token
                   FROM unnest($6::uuid[], $7::uuid[], $8::uuid[]) AS h (worker_id, run_id, token)))

-- fragment: concerns(b, r)
-- Whether a run is one of those that the heartbeat of its worker is about.
({r}.poll <= {b}.heard OR ({b}.confirmed AND {r}.poll IS NULL) OR {{is_listed({r})}} IS TRUE)

-- name: renew_leases
-- Renew the leases that workers list, or that were confirmed if they keep no list, and give back what they have claimed
-- but never heard of. What somebody has locked is left for later (find_let_go tells that it is still held). Everything a worker holds is found by its id, so a pair that is not among them is lost to it.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), held AS MATERIALIZED (
    SELECT b.worker_id, b.heard, b.confirmed, r.namespace, r.run_id
    FROM unnest($2::uuid[], $3::text[], $4::integer[], $5::boolean[]) AS b (worker_id, namespace, heard, confirmed)
    -- Not a join. A table that was analyzed while hardly a run was held, or of which a sample shows none, the planner takes
    -- for one in which none is: then it would rather read all that are than look for those of each worker.
    CROSS JOIN LATERAL (
        SELECT l.namespace, l.run_id, l.worker_id, l.token, l.poll
        FROM kagzi.workflow_runs AS l
        WHERE l.worker_id = b.worker_id AND l.status = 'RUNNING'
        OFFSET 0
    ) AS r
    WHERE (b.namespace IS NULL OR r.namespace = b.namespace) AND {{concerns(b, r)}}
), locked AS MATERIALIZED (
    SELECT r.namespace, r.run_id, r.status, r.worker_id, r.token, r.poll, h.worker_id AS holder, h.heard, h.confirmed
    FROM held AS h
    JOIN kagzi.workflow_runs AS r ON r.namespace = h.namespace AND r.run_id = h.run_id
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r SKIP LOCKED
), mine AS MATERIALIZED (
    SELECT l.namespace, l.run_id, l.worker_id, (l.confirmed AND l.poll IS NULL) OR {{is_listed(l)}} AS listed
    FROM locked AS l
    WHERE l.status = 'RUNNING' AND l.worker_id = l.holder AND {{concerns(l, l)}}
), changed AS (
    UPDATE kagzi.workflow_runs AS r SET
        lease_expires_at = CASE WHEN m.listed THEN i.now + r.lease_length END,
        status = CASE WHEN m.listed THEN 'RUNNING' ELSE 'PENDING' END,
        token = CASE WHEN m.listed THEN r.token END,
        worker_id = CASE WHEN m.listed THEN r.worker_id END,
        poll = CASE WHEN m.listed THEN r.poll END,
        available_at = CASE WHEN m.listed THEN r.available_at ELSE i.now END,
        claim_key = CASE WHEN m.listed THEN NULL ELSE {{claim_key_of_now(r.priority, i.now)}} END
    FROM mine AS m CROSS JOIN instant AS i
    WHERE r.namespace = m.namespace AND r.run_id = m.run_id
    RETURNING m.worker_id AS holder, r.namespace, r.run_id, r.task_queue, r.status, r.available_at, r.lease_length,
              r.inbox_seq, r.cancel_requested
)
SELECT * FROM changed;

-- name: find_let_go
-- Which of these pairs are a worker's own although their leases were not renewed: it has just parked or finished the run,
-- or holds it and somebody has locked the row (`locked`). Never one that another worker is driving.
SELECT h.worker_id, h.run_id,
       (SELECT r.status = 'RUNNING' FROM kagzi.workflow_runs AS r
        WHERE r.namespace = w.namespace AND r.run_id = h.run_id) AS locked
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[]) AS h (worker_id, namespace, run_id, token)
-- A worker that is not known, as its row was pruned, still holds what it holds.
CROSS JOIN LATERAL (
    SELECT coalesce(
        (SELECT k.namespace FROM kagzi.workers AS k
         WHERE k.worker_id = h.worker_id AND (h.namespace IS NULL OR k.namespace = h.namespace)),
        (SELECT l.namespace FROM kagzi.workflow_runs AS l
         WHERE l.worker_id = h.worker_id AND l.status = 'RUNNING' AND (h.namespace IS NULL OR l.namespace = h.namespace)
           AND l.run_id = h.run_id AND l.token = h.token)
    ) AS namespace
    OFFSET 0
) AS w
-- Not a join: its key comes from two tables, and the planner might look up one half of it for each of them.
WHERE h.token = (SELECT r.token FROM kagzi.workflow_runs AS r
                 WHERE r.namespace = w.namespace AND r.run_id = h.run_id
                   AND (r.status <> 'RUNNING' OR r.worker_id = h.worker_id));

-- name: release_runs
-- Give back everything a worker holds, burning nothing.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), mine AS MATERIALIZED (
    SELECT r.namespace, r.run_id
    FROM kagzi.workflow_runs AS r
    WHERE r.worker_id = $2::uuid AND r.status = 'RUNNING' AND ($3::text IS NULL OR r.namespace = $3::text)
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
)
UPDATE kagzi.workflow_runs AS r SET
    status = 'PENDING', token = NULL, worker_id = NULL, poll = NULL, lease_expires_at = NULL, available_at = i.now,
    claim_key = {{claim_key_of_now(r.priority, i.now)}}
FROM mine AS m CROSS JOIN instant AS i
WHERE r.namespace = m.namespace AND r.run_id = m.run_id
RETURNING {{changed_run}};

-- name: deregister_worker
-- A worker leaves.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), left_us AS (
    UPDATE kagzi.workers AS w SET status = 'OFFLINE', deregistered_at = i.now
    FROM instant AS i
    WHERE w.worker_id = $2::uuid AND w.status <> 'OFFLINE' AND ($3::text IS NULL OR w.namespace = $3::text)
    RETURNING w.namespace, w.worker_id
)
INSERT INTO kagzi.worker_events (namespace, worker_id, event, at)
SELECT l.namespace, l.worker_id, 'STOPPED', i.now FROM left_us AS l CROSS JOIN instant AS i;

-- name: list_workers
-- The workers of a namespace, also those that have gone.
SELECT w.worker_id, w.namespace, w.queues, w.types, w.versions, w.hostname, w.pid, w.version, w.concurrency, w.status,
       w.registered_at, w.last_heartbeat_at, w.completed, w.failed, w.labels
FROM kagzi.workers AS w
WHERE w.namespace = $1::text
ORDER BY w.registered_at, w.worker_id
LIMIT $2::integer;

-- name: expire_workers
-- Workers that have not been heard of.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), silent AS MATERIALIZED (
    SELECT w.worker_id
    FROM kagzi.workers AS w
    WHERE w.status <> 'OFFLINE' AND w.last_heartbeat_at <= (SELECT i.now FROM instant AS i) - $2::bigint
    ORDER BY w.last_heartbeat_at
    LIMIT $3::integer
    FOR NO KEY UPDATE SKIP LOCKED
), lost AS (
    UPDATE kagzi.workers AS w SET status = 'OFFLINE', deregistered_at = i.now
    FROM silent AS s CROSS JOIN instant AS i
    WHERE w.worker_id = s.worker_id
    RETURNING w.namespace, w.worker_id
), noted AS (
    INSERT INTO kagzi.worker_events (namespace, worker_id, event, at)
    SELECT l.namespace, l.worker_id, 'LOST', i.now FROM lost AS l CROSS JOIN instant AS i
)
SELECT worker_id FROM lost;

-- name: prune_workers
-- Workers that have been gone for longer than their namespace keeps what is over, and what happened that long ago: no more
-- than the limit together. There are as many rows as processes were started meanwhile, so an index would cost more than
-- it saves.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), gone AS MATERIALIZED (
    SELECT w.worker_id
    FROM kagzi.workers AS w
    LEFT JOIN kagzi.namespaces AS n ON n.namespace = w.namespace
    CROSS JOIN instant AS i
    WHERE w.status = 'OFFLINE'
      AND coalesce(w.deregistered_at, w.last_heartbeat_at)
          <= i.now - coalesce(n.retention_days, 30) * 86400000000::bigint
    LIMIT $2::integer
    FOR UPDATE OF w SKIP LOCKED
), old AS MATERIALIZED (
    SELECT e.event_id
    FROM kagzi.worker_events AS e
    LEFT JOIN kagzi.namespaces AS n ON n.namespace = e.namespace
    CROSS JOIN instant AS i
    WHERE e.at <= i.now - coalesce(n.retention_days, 30) * 86400000000::bigint
    ORDER BY e.event_id
    LIMIT $2::integer - (SELECT count(*) FROM gone)
    FOR UPDATE OF e SKIP LOCKED
), workers AS (
    DELETE FROM kagzi.workers AS w USING gone AS g WHERE w.worker_id = g.worker_id
), events AS (
    DELETE FROM kagzi.worker_events AS e USING old AS o WHERE e.event_id = o.event_id
)
SELECT ((SELECT count(*) FROM gone) + (SELECT count(*) FROM old))::integer AS deleted;

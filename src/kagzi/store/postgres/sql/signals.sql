-- Signals: what runs are told from outside. A send locks its runs like a batch of chunks does, in (namespace, run_id)
-- order; a take happens in the transaction of the chunk that records it.

-- name: send_signals
-- Store signals for live runs and wake those that wait for them. What is missing from the answer was not stored: its key
-- is known, its run has finished or does not exist, or its inbox is full; find_signals tells which.
-- A key that was stored while we waited for the lock is not seen by `fresh`, but inserts nothing: its number stays unused.
WITH instant AS MATERIALIZED (
    SELECT coalesce($1::bigint, kagzi.clock()) AS now
), asked AS MATERIALIZED (
    SELECT a.*
    FROM unnest($2::text[], $3::uuid[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY
        AS a (namespace, run_id, key, name, value, place)
), locked AS MATERIALIZED (
    SELECT r.namespace, r.run_id, r.inbox_seq, r.waiting_for
    FROM (SELECT DISTINCT a.namespace, a.run_id FROM asked AS a) AS a
    JOIN kagzi.workflow_runs AS r ON r.namespace = a.namespace AND r.run_id = a.run_id
    WHERE r.status IN ('PENDING', 'RUNNING', 'SLEEPING')
    ORDER BY r.namespace, r.run_id
    FOR NO KEY UPDATE OF r
), fresh AS MATERIALIZED (
    SELECT a.place, a.namespace, a.run_id, a.key, a.name, a.value,
           l.inbox_seq + row_number() OVER (PARTITION BY a.namespace, a.run_id ORDER BY a.place) AS seq,
           l.waiting_for IS NOT NULL AND l.waiting_for::jsonb ?| ARRAY['s:*', 's:' || a.name] AS awaited
    FROM asked AS a
    JOIN locked AS l ON l.namespace = a.namespace AND l.run_id = a.run_id
    WHERE NOT EXISTS (SELECT FROM kagzi.signals AS s
                      WHERE s.namespace = a.namespace AND s.run_id = a.run_id AND s.key = a.key)
      AND NOT EXISTS (SELECT FROM kagzi.signals AS s
                      WHERE s.namespace = a.namespace AND s.run_id = a.run_id AND s.taken_seq IS NULL
                      OFFSET $7::integer - 1)
), stored AS (
    INSERT INTO kagzi.signals (namespace, run_id, key, seq, name, value, sent_at)
    SELECT f.namespace, f.run_id, f.key, f.seq, f.name, f.value, i.now FROM fresh AS f CROSS JOIN instant AS i
    ON CONFLICT DO NOTHING
    RETURNING namespace, run_id, seq
), told AS (
    UPDATE kagzi.workflow_runs AS r SET
        inbox_seq = r.inbox_seq + n.signals,
        available_at = CASE WHEN n.awaited AND r.status = 'SLEEPING' AND r.available_at > i.now THEN i.now
                            ELSE r.available_at END,
        claim_key = CASE WHEN n.awaited AND r.status = 'SLEEPING' AND r.available_at > i.now
                             THEN {{claim_key_of_now(r.priority, i.now)}}
                         ELSE r.claim_key END
    FROM (SELECT f.namespace, f.run_id, count(*)::integer AS signals, bool_or(f.awaited) AS awaited
          FROM fresh AS f GROUP BY f.namespace, f.run_id) AS n
    CROSS JOIN instant AS i
    WHERE r.namespace = n.namespace AND r.run_id = n.run_id
    RETURNING r.namespace, r.run_id, r.status, r.task_queue, r.available_at
)
SELECT f.place::integer AS place, f.seq::integer AS seq, t.status, t.task_queue, t.available_at
FROM fresh AS f
JOIN stored AS s ON s.namespace = f.namespace AND s.run_id = f.run_id AND s.seq = f.seq
JOIN told AS t ON t.namespace = f.namespace AND t.run_id = f.run_id;

-- name: find_signals
-- Why signals were not stored: which runs there are, and who has their keys.
SELECT a.place::integer AS place, r.status, r.task_queue, r.available_at, s.seq, s.name
FROM unnest($1::text[], $2::uuid[], $3::text[]) WITH ORDINALITY AS a (namespace, run_id, key, place)
LEFT JOIN kagzi.workflow_runs AS r
    ON r.namespace = a.namespace AND r.run_id = a.run_id AND {{is_run(r)}}
LEFT JOIN kagzi.signals AS s ON s.namespace = a.namespace AND s.run_id = a.run_id AND s.key = a.key;

-- name: take_signals
-- Mark signals as taken by events; in the transaction that records these. One that was taken by the same event before
-- counts: then the chunk came twice.
UPDATE kagzi.signals AS s SET taken_seq = t.completed_seq
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::integer[]) AS t (namespace, run_id, key, completed_seq)
WHERE s.namespace = t.namespace AND s.run_id = t.run_id AND s.key = t.key
  AND (s.taken_seq IS NULL OR s.taken_seq = t.completed_seq);

-- name: give_signals_back
-- What a retry of the run no longer sees can be taken again, in the old order; in the transaction that retries the runs.
UPDATE kagzi.signals AS s SET taken_seq = NULL
FROM unnest($1::text[], $2::uuid[], $3::integer[]) AS k (namespace, run_id, keep_seq)
WHERE s.namespace = k.namespace AND s.run_id = k.run_id AND s.taken_seq > k.keep_seq;

-- name: read_inbox
-- What the holder of a lease has not taken yet, of these names; a row without a signal if there is none.
SELECT r.inbox_seq, r.cancel_requested, s.key, s.seq, s.name, s.value, s.sent_at
FROM kagzi.workflow_runs AS r
LEFT JOIN LATERAL (
    SELECT u.key, u.seq, u.name, u.value, u.sent_at
    FROM kagzi.signals AS u
    WHERE u.namespace = r.namespace AND u.run_id = r.run_id AND u.taken_seq IS NULL AND u.name = ANY ($4::text[])
    ORDER BY u.seq
    LIMIT $5::integer
) AS s ON true
WHERE r.namespace = $1::text AND r.run_id = $2::uuid AND r.token = $3::uuid AND r.status = 'RUNNING'
ORDER BY s.seq;

-- name: read_inboxes
-- What runs that were just claimed have not taken yet; a row without a signal for a run that has taken all, and none for a
-- run with more than $3 signals or $4 bytes of values.
SELECT a.run_id, s.key, s.seq, s.name, s.value, s.sent_at
FROM unnest($2::uuid[]) AS a (run_id)
LEFT JOIN LATERAL (
    SELECT f.*, count(*) OVER () AS signals, sum(octet_length(f.value)) OVER () AS bytes
    FROM (SELECT u.key, u.seq, u.name, u.value, u.sent_at
          FROM kagzi.signals AS u
          WHERE u.namespace = $1::text AND u.run_id = a.run_id AND u.taken_seq IS NULL
          LIMIT $3::integer + 1) AS f
) AS s ON true
WHERE s.key IS NULL OR (s.signals <= $3::integer AND s.bytes <= $4::integer)
ORDER BY a.run_id, s.seq;

-- name: list_signals
-- The signals of a run in the order of arrival, from a number on.
SELECT s.key, s.seq, s.name, s.value, s.sent_at, s.taken_seq
FROM kagzi.signals AS s
WHERE s.namespace = $1::text AND s.run_id = $2::uuid AND s.seq > $3::integer
ORDER BY s.seq
LIMIT $4::integer;

-- name: copy_signals
-- What a repeated run has not taken, or takes again because the event is not kept; and what events have taken that are kept:
-- should it be tried again from before them, it takes that again, too.
WITH copied AS (
    INSERT INTO kagzi.signals (namespace, run_id, key, seq, name, value, sent_at, taken_seq)
    SELECT s.namespace, $3::uuid, s.key, s.seq, s.name, s.value, s.sent_at,
        CASE WHEN s.taken_seq <= $4::integer THEN s.taken_seq END
    FROM kagzi.signals AS s
    WHERE s.namespace = $1::text AND s.run_id = $2::uuid AND s.taken_seq IS DISTINCT FROM 0
    RETURNING seq
)
UPDATE kagzi.workflow_runs AS r SET inbox_seq = c.seq
FROM (SELECT max(seq) AS seq FROM copied) AS c
WHERE r.namespace = $1::text AND r.run_id = $3::uuid AND c.seq IS NOT NULL;

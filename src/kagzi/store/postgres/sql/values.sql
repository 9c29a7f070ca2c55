-- Values: what runs say about themselves. Written in the transaction of the chunk that sets them, under the run's lock.

-- name: set_values
-- Set values of held runs. One that was set later, in this lease or in one after it, stays. The answer tells which are new.
INSERT INTO kagzi.run_values AS v (namespace, run_id, name, value, at, seq)
SELECT r.namespace, r.run_id, n.name, n.value, coalesce($1::bigint, kagzi.clock()),
       (r.executions::bigint << 32) + n.number
FROM unnest($2::text[], $3::uuid[], $4::text[], $5::bytea[], $6::integer[])
    AS n (namespace, run_id, name, value, number)
JOIN kagzi.workflow_runs AS r ON r.namespace = n.namespace AND r.run_id = n.run_id
ON CONFLICT (namespace, run_id, name) DO UPDATE SET value = EXCLUDED.value, at = EXCLUDED.at, seq = EXCLUDED.seq
WHERE EXCLUDED.seq >= v.seq
RETURNING v.namespace, v.run_id, v.xmax = 0 AS new;

-- name: find_full_runs
-- Which of these runs have more values than they may, the engine's own not counted.
SELECT k.run_id
FROM unnest($1::text[], $2::uuid[]) AS k (namespace, run_id)
WHERE (SELECT count(*) FROM kagzi.run_values AS v
       WHERE v.namespace = k.namespace AND v.run_id = k.run_id AND left(v.name, 1) <> '@') > $3::integer;

-- name: list_values
-- The values of a run by name, byte for byte, from a name on: all of them, or those of some names.
SELECT v.name, v.value, v.at
FROM kagzi.run_values AS v
WHERE v.namespace = $1::text AND v.run_id = $2::uuid AND v.name COLLATE "C" > $3::text
  AND ($4::text[] IS NULL OR v.name = ANY ($4::text[]))
ORDER BY v.name COLLATE "C";

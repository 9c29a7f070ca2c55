-- Values: what runs say about themselves.

-- name: set_value
-- Set a value of a held run. One that was set later, in this lease or in one after it, stays.
INSERT INTO run_values (namespace, run_id, name, value, at, seq)
SELECT r.namespace, r.run_id, ?4, ?5, ?6, (r.executions << 32) + ?7
FROM workflow_runs AS r
WHERE r.namespace = ?1 AND r.run_id = ?2 AND r.token = ?3 AND r.status = 'RUNNING'
ON CONFLICT (namespace, run_id, name) DO UPDATE SET value = excluded.value, at = excluded.at, seq = excluded.seq
WHERE excluded.seq >= run_values.seq;

-- name: count_values
-- How many values a run has set, the engine's own not counted.
SELECT count(*) FROM run_values WHERE namespace = ?1 AND run_id = ?2 AND substr(name, 1, 1) <> '@';

-- name: list_values
-- The values of a run by name, from a name on.
SELECT name, value, at FROM run_values
WHERE namespace = ?1 AND run_id = ?2 AND name > ?3
ORDER BY name;

-- name: get_values
-- Some of the values of a run.
SELECT name, value, at FROM run_values
WHERE namespace = ?1 AND run_id = ?2 AND name > ?3 AND name IN (SELECT value FROM json_each(?4))
ORDER BY name;

-- name: delete_values
-- Remove the values of a run.
DELETE FROM run_values WHERE namespace = ?1 AND run_id = ?2;

-- Lists of runs. Every one is bounded in what it reads: see `store/searching.py`, which also says what leads a search. All
-- list statements take the same values, the search by a tag one more: the tag.

-- fragment: listed
-- What a list lets through; a filter that is NULL lets everything.
{{is_run(w)}} AND ($3::text IS NULL OR w.status IN ($3::text, $9::text))
      AND ($4::text IS NULL OR w.workflow_type = $4::text)
      AND ($5::text IS NULL OR w.task_queue = $5::text)
      AND ($6::bigint IS NULL OR w.created_at > $6::bigint)
      AND ($7::bigint IS NULL OR w.created_at < $7::bigint)
      AND ($11::jsonb IS NULL OR w.tags::jsonb @> $11::jsonb)
      AND ($12::text IS NULL OR (w.external_id ~>=~ $12::text AND ($13::text IS NULL OR w.external_id ~<~ $13::text)))
      AND ($14::text IS NULL OR (w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED')
                                 AND kagzi.error_class(w.error) = kagzi.escaped($14::text)
                                 AND ($15::text IS NULL OR kagzi.error_type(w.error) = kagzi.escaped($15::text))))
      AND ($16::uuid IS NULL OR w.schedule_group_id = $16::uuid)
      AND ($17::uuid IS NULL OR w.parent_run_id = $17::uuid)

-- fragment: older(lead)
-- Runs older than a run id, newest first, down to another one.
SELECT {{shown_run}}
FROM (
    SELECT w.* FROM kagzi.workflow_runs AS w
    WHERE w.namespace = $1::text AND w.run_id < $2::uuid AND w.run_id >= $10::uuid AND {lead}
      AND {{listed}}
    ORDER BY w.namespace DESC, w.run_id DESC
    LIMIT $8::integer
) AS r
{{payloads_of_run}}
ORDER BY r.run_id DESC

-- fragment: newer(lead)
-- The nearest runs newer than a run id, up to another one, nearest first.
SELECT {{shown_run}}
FROM (
    SELECT w.* FROM kagzi.workflow_runs AS w
    WHERE w.namespace = $1::text AND w.run_id > $2::uuid AND w.run_id <= $10::uuid AND {lead}
      AND {{listed}}
    ORDER BY w.namespace, w.run_id
    LIMIT $8::integer
) AS r
{{payloads_of_run}}
ORDER BY r.run_id

-- fragment: edge_older(lead)
-- The last of so many runs that are older than a run id, if there are as many. Reads an index alone.
SELECT w.run_id FROM kagzi.workflow_runs AS w WHERE w.namespace = $1::text AND w.run_id < $2::uuid AND {lead}
ORDER BY w.namespace DESC, w.run_id DESC OFFSET $3::integer - 1 LIMIT 1

-- fragment: edge_newer(lead)
-- The last of so many runs that are newer than a run id, if there are as many.
SELECT w.run_id FROM kagzi.workflow_runs AS w WHERE w.namespace = $1::text AND w.run_id > $2::uuid AND {lead}
ORDER BY w.namespace, w.run_id OFFSET $3::integer - 1 LIMIT 1

-- name: list_walk
-- Every run of a namespace.
{{older(true)}};

-- name: list_walk_backward
-- The same, going the other way.
{{newer(true)}};

-- name: edge_walk
-- How far a search looks at every run.
{{edge_older(true)}};

-- name: edge_walk_backward
-- The same, going the other way.
{{edge_newer(true)}};

-- name: list_children
-- The children of one run.
{{older(w.parent_run_id = $17::uuid AND w.parent_run_id IS NOT NULL)}};

-- name: list_children_backward
-- The same, going the other way.
{{newer(w.parent_run_id = $17::uuid AND w.parent_run_id IS NOT NULL)}};

-- name: edge_children
-- How far a search looks at them.
{{edge_older(w.parent_run_id = $4::uuid AND w.parent_run_id IS NOT NULL)}};

-- name: edge_children_backward
-- The same, going the other way.
{{edge_newer(w.parent_run_id = $4::uuid AND w.parent_run_id IS NOT NULL)}};

-- name: list_schedule
-- What one schedule has started.
{{older(w.schedule_group_id = $16::uuid AND w.schedule_group_id IS NOT NULL)}};

-- name: list_schedule_backward
-- The same, going the other way.
{{newer(w.schedule_group_id = $16::uuid AND w.schedule_group_id IS NOT NULL)}};

-- name: edge_schedule
-- How far a search looks at that.
{{edge_older(w.schedule_group_id = $4::uuid AND w.schedule_group_id IS NOT NULL)}};

-- name: edge_schedule_backward
-- The same, going the other way.
{{edge_newer(w.schedule_group_id = $4::uuid AND w.schedule_group_id IS NOT NULL)}};

-- name: list_failed
-- Runs that have failed, timed out or were cancelled.
{{older(w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED'))}};

-- name: list_failed_backward
-- The same, going the other way.
{{newer(w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED'))}};

-- name: edge_failed
-- How far a search looks at them.
{{edge_older(w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED'))}};

-- name: edge_failed_backward
-- The same, going the other way.
{{edge_newer(w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED'))}};

-- name: list_error
-- Runs that have ended with an error of one class.
{{older(w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED') AND kagzi.error_class(w.error) = kagzi.escaped($14::text))}};

-- name: list_error_backward
-- The same, going the other way.
{{newer(w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED') AND kagzi.error_class(w.error) = kagzi.escaped($14::text))}};

-- name: edge_error
-- How far a search looks at them.
{{edge_older(w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED') AND kagzi.error_class(w.error) = kagzi.escaped($4::text))}};

-- name: edge_error_backward
-- The same, going the other way.
{{edge_newer(w.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED') AND kagzi.error_class(w.error) = kagzi.escaped($4::text))}};

-- name: list_tag
-- Runs with a tag. What they are called is found first, in the order of the tag's own index.
SELECT {{shown_run}}
FROM (
    SELECT w.* FROM kagzi.run_tags AS t
    JOIN kagzi.workflow_runs AS w ON w.namespace = t.namespace AND w.run_id = t.run_id
    WHERE t.namespace = $1::text AND t.tag = $18::text AND t.run_id < $2::uuid AND t.run_id >= $10::uuid
      AND {{listed}}
    ORDER BY t.namespace DESC, t.tag DESC, t.run_id DESC
    LIMIT $8::integer
) AS r
{{payloads_of_run}}
ORDER BY r.run_id DESC;

-- name: list_tag_backward
-- The same, going the other way.
SELECT {{shown_run}}
FROM (
    SELECT w.* FROM kagzi.run_tags AS t
    JOIN kagzi.workflow_runs AS w ON w.namespace = t.namespace AND w.run_id = t.run_id
    WHERE t.namespace = $1::text AND t.tag = $18::text AND t.run_id > $2::uuid AND t.run_id <= $10::uuid
      AND {{listed}}
    ORDER BY t.namespace, t.tag, t.run_id
    LIMIT $8::integer
) AS r
{{payloads_of_run}}
ORDER BY r.run_id;

-- name: edge_tag
-- How far a search looks at them.
SELECT t.run_id FROM kagzi.run_tags AS t
WHERE t.namespace = $1::text AND t.tag = $4::text AND t.run_id < $2::uuid
ORDER BY t.namespace DESC, t.tag DESC, t.run_id DESC OFFSET $3::integer - 1 LIMIT 1;

-- name: edge_tag_backward
-- The same, going the other way.
SELECT t.run_id FROM kagzi.run_tags AS t
WHERE t.namespace = $1::text AND t.tag = $4::text AND t.run_id > $2::uuid
ORDER BY t.namespace, t.tag, t.run_id OFFSET $3::integer - 1 LIMIT 1;

-- fragment: gathered_older(few)
-- The same of runs that are few enough to be gathered and sorted.
SELECT {{shown_run}}
FROM (
    SELECT w.* FROM ({few}) AS w
    WHERE w.run_id < $2::uuid AND w.run_id >= $10::uuid
      AND {{listed}}
    ORDER BY w.run_id DESC
    LIMIT $8::integer
) AS r
{{payloads_of_run}}
ORDER BY r.run_id DESC

-- fragment: gathered_newer(few)
-- The same, going the other way.
SELECT {{shown_run}}
FROM (
    SELECT w.* FROM ({few}) AS w
    WHERE w.run_id > $2::uuid AND w.run_id <= $10::uuid
      AND {{listed}}
    ORDER BY w.run_id
    LIMIT $8::integer
) AS r
{{payloads_of_run}}
ORDER BY r.run_id

-- fragment: running
-- Runs that are under way, by the index of leases.
SELECT * FROM kagzi.workflow_runs AS l WHERE l.namespace = $1::text AND l.status = 'RUNNING' ORDER BY l.worker_id LIMIT $18::integer

-- fragment: waiting
-- Runs that wait, by the index of claims.
SELECT * FROM kagzi.workflow_runs AS l WHERE l.namespace = $1::text AND l.status IN ('PENDING', 'SLEEPING') ORDER BY l.namespace, l.task_queue, l.claim_key LIMIT $18::integer

-- fragment: prefixed
-- Runs whose id begins so, by the index of ids.
SELECT * FROM kagzi.workflow_runs AS l WHERE l.namespace = $1::text AND l.external_id IS NOT NULL AND l.external_id ~>=~ $12::text AND l.external_id ~<~ coalesce($13::text, repeat(chr(1114111), 64)) ORDER BY l.external_id USING ~<~ LIMIT $18::integer

-- name: list_running
-- Runs that are under way.
{{gathered_older({{running}})}};

-- name: list_running_backward
-- The same, going the other way.
{{gathered_newer({{running}})}};

-- name: count_running
-- How many there are, as far as it matters.
SELECT count(*) FROM (
    SELECT FROM kagzi.workflow_runs AS l WHERE l.namespace = $1::text AND l.status = 'RUNNING' LIMIT $2::integer
) AS few;

-- name: list_waiting
-- Runs that wait.
{{gathered_older({{waiting}})}};

-- name: list_waiting_backward
-- The same, going the other way.
{{gathered_newer({{waiting}})}};

-- name: count_waiting
-- How many there are, as far as it matters.
SELECT count(*) FROM (
    SELECT FROM kagzi.workflow_runs AS l
    WHERE l.namespace = $1::text AND l.status IN ('PENDING', 'SLEEPING')
    ORDER BY l.namespace, l.task_queue, l.claim_key LIMIT $2::integer
) AS few;

-- name: list_prefix
-- Runs whose id begins so.
{{gathered_older({{prefixed}})}};

-- name: list_prefix_backward
-- The same, going the other way.
{{gathered_newer({{prefixed}})}};

-- name: count_prefix
-- How many there are, as far as it matters.
SELECT count(*) FROM (
    SELECT FROM kagzi.workflow_runs AS l
    WHERE l.namespace = $1::text AND l.external_id IS NOT NULL AND l.external_id ~>=~ $3::text
      AND l.external_id ~<~ coalesce($4::text, repeat(chr(1114111), 64))
    ORDER BY l.external_id USING ~<~ LIMIT $2::integer
) AS few;

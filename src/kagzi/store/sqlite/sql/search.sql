-- Lists of runs. Every one is bounded in what it reads: see `store/searching.py`, which also says what leads a search. All
-- list statements take the same values, some one more: a tag, or how many runs are few.

-- fragment: error_type(e)
-- The dotted name of the class of a stored error, which is what its JSON begins with. As the index says it.
substr(CAST({e} AS TEXT), 10, instr(substr(CAST({e} AS TEXT), 10), '"') - 1)

-- fragment: error_class(e)
-- The same without its module.
substr({{error_type({e})}}, length(rtrim({{error_type({e})}}, replace({{error_type({e})}}, '.', ''))) + 1)

-- fragment: listed
-- What a list lets through; a filter that is NULL lets everything.
{{is_run(r)}} AND (?3 IS NULL OR r.status IN (?3, ?9))
  AND (?4 IS NULL OR r.workflow_type = ?4) AND (?5 IS NULL OR r.task_queue = ?5)
  AND (?6 IS NULL OR r.created_at > ?6) AND (?7 IS NULL OR r.created_at < ?7)
  AND (?11 IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(?11) AS t WHERE NOT EXISTS (
           SELECT 1 FROM run_tags AS o WHERE o.namespace = r.namespace AND o.tag = t.value AND o.run_id = r.run_id)))
  AND (?12 IS NULL OR (r.external_id >= ?12 AND (?13 IS NULL OR r.external_id < ?13)))
  AND (?14 IS NULL OR (r.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED') AND {{error_class(r.error)}} = ?14
                       AND (?15 IS NULL OR {{error_type(r.error)}} = ?15)))
  AND (?16 IS NULL OR r.schedule_group_id = ?16) AND (?17 IS NULL OR r.parent_run_id = ?17)

-- fragment: older(index, lead)
-- Runs older than a run id, newest first, down to another one, by an index.
SELECT {{shown_run}}
FROM workflow_runs AS r {index}
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.run_id < ?2 AND r.run_id >= ?10 AND {lead}
  AND {{listed}}
ORDER BY r.run_id DESC
LIMIT ?8

-- fragment: newer(index, lead)
-- The nearest runs newer than a run id, up to another one, nearest first.
SELECT {{shown_run}}
FROM workflow_runs AS r {index}
{{payloads_of_run}}
WHERE r.namespace = ?1 AND r.run_id > ?2 AND r.run_id <= ?10 AND {lead}
  AND {{listed}}
ORDER BY r.run_id
LIMIT ?8

-- fragment: edge_older(index, lead)
-- The last of so many runs that are older than a run id, if there are as many.
SELECT r.run_id FROM workflow_runs AS r {index} WHERE r.namespace = ?1 AND r.run_id < ?2 AND {lead}
ORDER BY r.run_id DESC LIMIT 1 OFFSET ?3 - 1

-- fragment: edge_newer(index, lead)
-- The last of so many runs that are newer than a run id, if there are as many.
SELECT r.run_id FROM workflow_runs AS r {index} WHERE r.namespace = ?1 AND r.run_id > ?2 AND {lead}
ORDER BY r.run_id LIMIT 1 OFFSET ?3 - 1

-- name: list_walk
-- Every run of a namespace.
{{older(, true)}};

-- name: list_walk_backward
-- The same, going the other way.
{{newer(, true)}};

-- name: edge_walk
-- How far a search looks at every run.
{{edge_older(, true)}};

-- name: edge_walk_backward
-- The same, going the other way.
{{edge_newer(, true)}};

-- name: list_children
-- The children of one run.
{{older(INDEXED BY workflow_runs_children, r.parent_run_id = ?17 AND r.parent_run_id IS NOT NULL)}};

-- name: list_children_backward
-- The same, going the other way.
{{newer(INDEXED BY workflow_runs_children, r.parent_run_id = ?17 AND r.parent_run_id IS NOT NULL)}};

-- name: edge_children
-- How far a search looks at them.
{{edge_older(INDEXED BY workflow_runs_children, r.parent_run_id = ?4 AND r.parent_run_id IS NOT NULL)}};

-- name: edge_children_backward
-- The same, going the other way.
{{edge_newer(INDEXED BY workflow_runs_children, r.parent_run_id = ?4 AND r.parent_run_id IS NOT NULL)}};

-- name: list_schedule
-- What one schedule has started.
{{older(INDEXED BY workflow_runs_scheduled, r.schedule_group_id = ?16 AND r.schedule_group_id IS NOT NULL)}};

-- name: list_schedule_backward
-- The same, going the other way.
{{newer(INDEXED BY workflow_runs_scheduled, r.schedule_group_id = ?16 AND r.schedule_group_id IS NOT NULL)}};

-- name: edge_schedule
-- How far a search looks at that.
{{edge_older(INDEXED BY workflow_runs_scheduled, r.schedule_group_id = ?4 AND r.schedule_group_id IS NOT NULL)}};

-- name: edge_schedule_backward
-- The same, going the other way.
{{edge_newer(INDEXED BY workflow_runs_scheduled, r.schedule_group_id = ?4 AND r.schedule_group_id IS NOT NULL)}};

-- name: list_failed
-- Runs that have failed, timed out or were cancelled.
{{older(INDEXED BY workflow_runs_failed, r.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED'))}};

-- name: list_failed_backward
-- The same, going the other way.
{{newer(INDEXED BY workflow_runs_failed, r.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED'))}};

-- name: edge_failed
-- How far a search looks at them.
{{edge_older(INDEXED BY workflow_runs_failed, r.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED'))}};

-- name: edge_failed_backward
-- The same, going the other way.
{{edge_newer(INDEXED BY workflow_runs_failed, r.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED'))}};

-- fragment: erred
-- What the index of errors holds, of one class.
r.status IN ('FAILED', 'TIMED_OUT', 'CANCELLED') AND {{error_class(r.error)}}

-- name: list_error
-- Runs that have ended with an error of one class.
{{older(INDEXED BY workflow_runs_errors, {{erred}} = ?14)}};

-- name: list_error_backward
-- The same, going the other way.
{{newer(INDEXED BY workflow_runs_errors, {{erred}} = ?14)}};

-- name: edge_error
-- How far a search looks at them.
{{edge_older(INDEXED BY workflow_runs_errors, {{erred}} = ?4)}};

-- name: edge_error_backward
-- The same, going the other way.
{{edge_newer(INDEXED BY workflow_runs_errors, {{erred}} = ?4)}};

-- name: list_tag
-- Runs with a tag, in the order of the tag's own index.
SELECT {{shown_run}}
FROM run_tags AS t
CROSS JOIN workflow_runs AS r ON r.namespace = t.namespace AND r.run_id = t.run_id
{{payloads_of_run}}
WHERE t.namespace = ?1 AND t.tag = ?18 AND t.run_id < ?2 AND t.run_id >= ?10
  AND {{listed}}
ORDER BY t.run_id DESC
LIMIT ?8;

-- name: list_tag_backward
-- The same, going the other way.
SELECT {{shown_run}}
FROM run_tags AS t
CROSS JOIN workflow_runs AS r ON r.namespace = t.namespace AND r.run_id = t.run_id
{{payloads_of_run}}
WHERE t.namespace = ?1 AND t.tag = ?18 AND t.run_id > ?2 AND t.run_id <= ?10
  AND {{listed}}
ORDER BY t.run_id
LIMIT ?8;

-- name: edge_tag
-- How far a search looks at them.
SELECT run_id FROM run_tags WHERE namespace = ?1 AND tag = ?4 AND run_id < ?2 ORDER BY run_id DESC LIMIT 1 OFFSET ?3 - 1;

-- name: edge_tag_backward
-- The same, going the other way.
SELECT run_id FROM run_tags WHERE namespace = ?1 AND tag = ?4 AND run_id > ?2 ORDER BY run_id LIMIT 1 OFFSET ?3 - 1;

-- name: list_running
-- Runs that are under way. They are few enough to be sorted.
{{older(INDEXED BY workflow_runs_leased, r.status = 'RUNNING')}};

-- name: list_running_backward
-- The same, going the other way.
{{newer(INDEXED BY workflow_runs_leased, r.status = 'RUNNING')}};

-- name: count_running
-- How many there are, as far as it matters.
SELECT count(*) FROM (SELECT 1 FROM workflow_runs INDEXED BY workflow_runs_leased WHERE namespace = ?1 AND status = 'RUNNING' LIMIT ?2);

-- name: list_waiting
-- Runs that wait. They are few enough to be sorted.
{{older(INDEXED BY workflow_runs_claim, r.status IN ('PENDING', 'SLEEPING'))}};

-- name: list_waiting_backward
-- The same, going the other way.
{{newer(INDEXED BY workflow_runs_claim, r.status IN ('PENDING', 'SLEEPING'))}};

-- name: count_waiting
-- How many there are, as far as it matters.
SELECT count(*) FROM (SELECT 1 FROM workflow_runs INDEXED BY workflow_runs_claim WHERE namespace = ?1 AND status IN ('PENDING', 'SLEEPING') LIMIT ?2);

-- name: list_prefix
-- Runs whose id begins so. They are few enough to be sorted. A BLOB comes behind all text.
{{older(INDEXED BY workflow_runs_external_id, r.external_id IS NOT NULL AND r.external_id >= ?12 AND r.external_id < coalesce(?13, x''))}};

-- name: list_prefix_backward
-- The same, going the other way.
{{newer(INDEXED BY workflow_runs_external_id, r.external_id IS NOT NULL AND r.external_id >= ?12 AND r.external_id < coalesce(?13, x''))}};

-- name: count_prefix
-- How many there are, as far as it matters.
SELECT count(*) FROM (SELECT 1 FROM workflow_runs INDEXED BY workflow_runs_external_id WHERE namespace = ?1 AND external_id IS NOT NULL AND external_id >= ?3 AND external_id < coalesce(?4, x'') LIMIT ?2);

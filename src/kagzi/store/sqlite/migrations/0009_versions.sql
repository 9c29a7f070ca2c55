-- Versions of workflows: what workers have offered, remembered while they are away, and what starts by name get.

CREATE TABLE workflow_types (
    first_seen_at INTEGER NOT NULL,
    last_seen_at  INTEGER NOT NULL,      -- to the hour
    namespace     TEXT NOT NULL,
    workflow_type TEXT NOT NULL,
    version       TEXT NOT NULL,         -- '' is every version
    queues        TEXT NOT NULL,         -- where it was offered, a JSON list
    PRIMARY KEY (namespace, workflow_type, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE default_versions (
    set_at        INTEGER NOT NULL,
    namespace     TEXT NOT NULL,
    workflow_type TEXT NOT NULL,
    version       TEXT NOT NULL,
    PRIMARY KEY (namespace, workflow_type)
) STRICT, WITHOUT ROWID;

-- Workers that are there now do not register again.
INSERT INTO workflow_types (namespace, workflow_type, version, queues, first_seen_at, last_seen_at)
SELECT w.namespace, o.value, v.value, json_group_array(DISTINCT q.value), min(w.registered_at), max(w.last_heartbeat_at)
FROM workers AS w, json_each(w.types) AS o, json_each(w.versions) AS v, json_each(w.queues) AS q
WHERE v.key = o.key
GROUP BY w.namespace, o.value, v.value;

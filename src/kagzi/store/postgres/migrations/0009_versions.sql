-- Versions of workflows: what workers have offered, remembered while they are away, and what starts by name get.

CREATE TABLE kagzi.workflow_types (
    first_seen_at bigint NOT NULL,
    last_seen_at  bigint NOT NULL,       -- to the hour
    namespace     text NOT NULL,
    workflow_type text NOT NULL,
    version       text NOT NULL,         -- '' is every version
    queues        text[] NOT NULL,       -- where it was offered
    PRIMARY KEY (namespace, workflow_type, version)
);

CREATE TABLE kagzi.default_versions (
    set_at        bigint NOT NULL,
    namespace     text NOT NULL,
    workflow_type text NOT NULL,
    version       text NOT NULL,
    PRIMARY KEY (namespace, workflow_type)
);

-- Which version a run gets whose start names none. Of versions first seen together the longer number is the newer one.
CREATE FUNCTION kagzi.resolve_version(of_namespace text, of_type text) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
        SELECT coalesce(
            (SELECT d.version FROM kagzi.default_versions AS d
             WHERE d.namespace = of_namespace AND d.workflow_type = of_type),
            (SELECT t.version FROM kagzi.workflow_types AS t
             WHERE t.namespace = of_namespace AND t.workflow_type = of_type AND t.version <> ''
             ORDER BY t.first_seen_at DESC, length(t.version) DESC, t.version COLLATE "C" DESC LIMIT 1),
            '1')
    $$;

-- Workers that are there now do not register again.
INSERT INTO kagzi.workflow_types (namespace, workflow_type, version, queues, first_seen_at, last_seen_at)
SELECT w.namespace, o.workflow_type, o.version, array_agg(DISTINCT q.queue), min(w.registered_at), max(w.last_heartbeat_at)
FROM kagzi.workers AS w
CROSS JOIN unnest(w.types, w.versions) AS o (workflow_type, version)
CROSS JOIN unnest(w.queues) AS q (queue)
GROUP BY w.namespace, o.workflow_type, o.version;

-- Runs that are started, and signals that are sent, from SQL, in anyone's transaction. Workers are told by its commit.

-- A run id: a UUID of version 7, which sorts by when it was made.
CREATE FUNCTION kagzi.new_run_id(at bigint) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
                                          PLACING substring(int8send(at / 1000) FROM 3) FROM 1 FOR 6),
                                  52, 1), 53, 1), 'hex')::uuid
$$;

CREATE FUNCTION kagzi.check_sql_name(value text, field text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF value IS NULL OR value = '' OR length(value) > 255 THEN
        RAISE EXCEPTION '% must have 1 to 255 characters', field USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- Returns the run id. A second call with the same `id` returns that of the first.
CREATE FUNCTION kagzi.start_workflow(
    workflow text, input json DEFAULT '[]', id text DEFAULT NULL, queue text DEFAULT 'default',
    namespace text DEFAULT 'default', version text DEFAULT NULL, priority integer DEFAULT 0,
    delay interval DEFAULT NULL, start_at timestamptz DEFAULT NULL, timeout interval DEFAULT NULL,
    tags json DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment bigint := kagzi.clock();
    due    bigint;
    data   bytea := convert_to(start_workflow.input::text, 'UTF8');
    made   uuid := kagzi.new_run_id(kagzi.clock());
    taken  record;
BEGIN
    PERFORM kagzi.check_sql_name(start_workflow.workflow, 'workflow');
    PERFORM kagzi.check_sql_name(start_workflow.queue, 'queue');
    PERFORM kagzi.check_sql_name(start_workflow.namespace, 'namespace');
    PERFORM kagzi.check_sql_name(coalesce(start_workflow.id, 'none'), 'id');
    PERFORM kagzi.check_sql_name(coalesce(start_workflow.version, 'none'), 'version');
    IF start_workflow.input IS NULL OR json_typeof(start_workflow.input) NOT IN ('array', 'object') THEN
        RAISE EXCEPTION 'input must be an array of arguments, or an object of arguments by name'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF length(data) > 2097152 THEN
        RAISE EXCEPTION 'input has % bytes, and at most 2097152 are allowed', length(data)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF start_workflow.priority IS NULL OR start_workflow.priority NOT BETWEEN 0 AND 1000 THEN
        RAISE EXCEPTION 'priority must be a whole number from 0 to 1000' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF start_workflow.delay < interval '0' OR start_workflow.timeout <= interval '0' THEN
        RAISE EXCEPTION 'delay must not be negative, and timeout be longer than 0'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF start_workflow.tags IS NOT NULL AND json_typeof(start_workflow.tags) <> 'object' THEN
        RAISE EXCEPTION 'tags must be an object of texts' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO kagzi.namespaces (namespace) VALUES (start_workflow.namespace) ON CONFLICT DO NOTHING;
    IF NOT (SELECT n.enabled FROM kagzi.namespaces AS n WHERE n.namespace = start_workflow.namespace) THEN
        RAISE EXCEPTION 'namespace % is disabled: no runs are started in it', start_workflow.namespace
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    due := greatest(moment + coalesce((extract(epoch FROM start_workflow.delay) * 1000000)::bigint, 0),
                    (extract(epoch FROM start_workflow.start_at) * 1000000)::bigint);
    INSERT INTO kagzi.workflow_runs (namespace, run_id, external_id, task_queue, workflow_type, version, priority, input,
                                     created_at, available_at, deadline_at, status, claim_key, tags)
    VALUES (start_workflow.namespace, made, start_workflow.id, start_workflow.queue, start_workflow.workflow,
            coalesce(start_workflow.version, kagzi.resolve_version(start_workflow.namespace, start_workflow.workflow)),
            start_workflow.priority, CASE WHEN length(data) <= 1024 THEN data END, moment, due,
            moment + (extract(epoch FROM start_workflow.timeout) * 1000000)::bigint, 'PENDING',
            -- The order of claiming: due time less a minute for each step of priority.
            CASE WHEN due > moment THEN due ELSE least(due - start_workflow.priority * 60000000::bigint, moment) END,
            start_workflow.tags::text)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT r.run_id, r.workflow_type, coalesce(r.input, p.data) AS input INTO taken
        FROM kagzi.workflow_runs AS r
        LEFT JOIN kagzi.workflow_payloads AS p
            ON p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input' AND r.input IS NULL
        WHERE r.namespace = start_workflow.namespace AND r.external_id = start_workflow.id;
        IF taken.run_id IS NULL THEN
            RAISE EXCEPTION 'the id % was being given up; try again', start_workflow.id
                USING ERRCODE = 'serialization_failure';
        END IF;
        IF taken.workflow_type <> start_workflow.workflow OR NOT kagzi.same_input(taken.input, data) THEN
            RAISE EXCEPTION 'id % belongs to run % of %, which was started with another type or input',
                start_workflow.id, taken.run_id, taken.workflow_type USING ERRCODE = 'unique_violation';
        END IF;
        RETURN taken.run_id;
    END IF;
    IF length(data) > 1024 THEN
        INSERT INTO kagzi.workflow_payloads (namespace, run_id, kind, data)
        VALUES (start_workflow.namespace, made, 'input', data);
    END IF;
    PERFORM pg_notify('kagzi_work', json_build_array(json_build_array(start_workflow.namespace,
                                                                      start_workflow.queue))::text);
    RETURN made;
END $$;

-- Whether two inputs are the same, or the same JSON; what a codec has made is compared by its bytes.
CREATE FUNCTION kagzi.same_input(one bytea, other bytea) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN one = other OR convert_from(one, 'UTF8')::jsonb = convert_from(other, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception THEN
    RETURN false;
END $$;

-- Tells the live run that has this id of yours, or this run id, something. With a `key` a repeat is harmless.
CREATE FUNCTION kagzi.signal(
    id text, name text, value json DEFAULT 'null', key text DEFAULT NULL, namespace text DEFAULT 'default'
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment bigint := kagzi.clock();
    run    record;
    wakes  boolean;
BEGIN
    PERFORM kagzi.check_sql_name(signal.id, 'id');
    PERFORM kagzi.check_sql_name(signal.name, 'signal name');
    PERFORM kagzi.check_sql_name(coalesce(signal.key, 'none'), 'key');
    IF signal.value IS NULL OR octet_length(signal.value::text) > 2097152 THEN
        RAISE EXCEPTION 'value must be JSON of at most 2097152 bytes; say ''null'' for none'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The lock that orders this with a run that parks: it sees the signal, or is woken by it.
    SELECT r.run_id, r.status, r.inbox_seq, r.waiting_for, r.claim_key, r.priority, r.task_queue INTO run
    FROM kagzi.workflow_runs AS r
    WHERE r.namespace = signal.namespace AND r.status NOT IN ('SCHEDULED', 'PAUSED')
      AND (r.external_id = signal.id
           OR r.run_id = CASE WHEN signal.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN signal.id::uuid END)
    ORDER BY r.external_id = signal.id DESC NULLS LAST LIMIT 1
    FOR NO KEY UPDATE OF r;
    IF run.run_id IS NULL THEN
        RAISE EXCEPTION 'there is no run with the id % in namespace %', signal.id, signal.namespace
            USING ERRCODE = 'no_data_found';
    END IF;
    IF EXISTS (SELECT FROM kagzi.signals AS s
               WHERE s.namespace = signal.namespace AND s.run_id = run.run_id AND s.key = signal.key) THEN
        RETURN;
    END IF;
    IF run.status NOT IN ('PENDING', 'RUNNING', 'SLEEPING') THEN
        RAISE EXCEPTION 'run % has finished', run.run_id USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF (SELECT count(*) FROM kagzi.signals AS s
        WHERE s.namespace = signal.namespace AND s.run_id = run.run_id AND s.taken_seq IS NULL) >= 10000 THEN
        RAISE EXCEPTION 'the inbox of run % is full', run.run_id USING ERRCODE = 'configuration_limit_exceeded';
    END IF;
    INSERT INTO kagzi.signals (namespace, run_id, key, seq, name, value, sent_at)
    VALUES (signal.namespace, run.run_id, coalesce(signal.key, gen_random_uuid()::text), run.inbox_seq + 1, signal.name,
            convert_to(signal.value::text, 'UTF8'), moment);
    wakes := run.status = 'SLEEPING' AND run.claim_key > moment
             AND run.waiting_for IS NOT NULL AND run.waiting_for::jsonb ?| ARRAY['s:*', 's:' || signal.name];
    UPDATE kagzi.workflow_runs AS r SET
        inbox_seq = r.inbox_seq + 1,
        available_at = CASE WHEN wakes THEN moment ELSE r.available_at END,
        claim_key = CASE WHEN wakes THEN least(moment - r.priority * 60000000::bigint, moment) ELSE r.claim_key END
    WHERE r.namespace = signal.namespace AND r.run_id = run.run_id;
    IF wakes THEN
        PERFORM pg_notify('kagzi_work', json_build_array(json_build_array(signal.namespace, run.task_queue))::text);
    ELSIF run.status = 'RUNNING' THEN
        PERFORM pg_notify('kagzi_news', json_build_array(json_build_array(signal.namespace, run.run_id))::text);
    END IF;
END $$;

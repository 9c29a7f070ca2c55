-- Tags: words of the caller's own on a run, to find it by.

ALTER TABLE kagzi.workflow_runs ADD COLUMN tags text;  -- a JSON object of text; NULL: none

-- The same, to look runs up by. Triggers keep it, because runs are inserted and deleted in many statements, and none may forget.
-- They do nothing for a run without tags.
CREATE TABLE kagzi.run_tags (
    run_id    uuid NOT NULL,
    namespace text NOT NULL,
    tag       text COLLATE "C" NOT NULL,  -- name=value
    PRIMARY KEY (namespace, tag, run_id)
);

CREATE FUNCTION kagzi.note_tags() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kagzi.run_tags (namespace, tag, run_id)
    SELECT NEW.namespace, e.key || '=' || e.value, NEW.run_id FROM json_each_text(NEW.tags::json) AS e
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note_tags AFTER INSERT ON kagzi.workflow_runs FOR EACH ROW
    WHEN (NEW.tags IS NOT NULL AND NEW.status NOT IN ('SCHEDULED', 'PAUSED'))
    EXECUTE FUNCTION kagzi.note_tags();

CREATE FUNCTION kagzi.forget_tags() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM kagzi.run_tags AS t
    USING json_each_text(OLD.tags::json) AS e
    WHERE t.namespace = OLD.namespace AND t.tag = e.key || '=' || e.value AND t.run_id = OLD.run_id;
    RETURN NULL;
END $$;
CREATE TRIGGER forget_tags AFTER DELETE ON kagzi.workflow_runs FOR EACH ROW
    WHEN (OLD.tags IS NOT NULL)
    EXECUTE FUNCTION kagzi.forget_tags();

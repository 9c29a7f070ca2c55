-- Tags: words of the caller's own on a run, to find it by.

-- A JSON object of text; NULL: none.
ALTER TABLE workflow_runs ADD COLUMN tags TEXT;

-- The same, to look runs up by. Triggers keep it, because runs are inserted and deleted in many statements, and none may forget.
-- They do nothing for a run without tags.
CREATE TABLE run_tags (
    run_id    TEXT NOT NULL,
    namespace TEXT NOT NULL,
    tag       TEXT NOT NULL,             -- name=value
    PRIMARY KEY (namespace, tag, run_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER note_tags AFTER INSERT ON workflow_runs FOR EACH ROW
    WHEN NEW.tags IS NOT NULL AND NEW.status NOT IN ('SCHEDULED', 'PAUSED')
BEGIN
    INSERT INTO run_tags (namespace, tag, run_id)
    SELECT NEW.namespace, e.key || '=' || e.value, NEW.run_id FROM json_each(NEW.tags) AS e
    WHERE true
    ON CONFLICT DO NOTHING;
END;

CREATE TRIGGER forget_tags AFTER DELETE ON workflow_runs FOR EACH ROW
    WHEN OLD.tags IS NOT NULL
BEGIN
    DELETE FROM run_tags
    WHERE namespace = OLD.namespace AND run_id = OLD.run_id
      AND tag IN (SELECT e.key || '=' || e.value FROM json_each(OLD.tags) AS e);
END;

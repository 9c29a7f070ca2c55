-- Children: runs that other runs have started, whose outcome they are told of and which follow their end.

ALTER TABLE kagzi.workflow_runs
    ADD COLUMN parent_policy text,       -- what becomes of the run when its parent ends; 'none': only lineage
    ADD COLUMN has_children boolean,     -- a flag, not a counter: a spawn that is repeated changes nothing
    ADD COLUMN depth smallint;           -- generations above it; NULL is 0
ALTER TABLE kagzi.workflow_runs ADD CONSTRAINT workflow_runs_parent_policy
    CHECK (parent_policy IN ('cancel', 'abandon', 'terminate', 'none')) NOT VALID;

-- Ended runs whose children were not all told yet. They outlive their run: retention may be shorter than a cascade.
CREATE TABLE kagzi.cascades (
    run_id    uuid NOT NULL,
    at        bigint NOT NULL,
    namespace text NOT NULL,
    PRIMARY KEY (namespace, run_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX cascades_at ON kagzi.cascades (at);

-- By a trigger, because a run can end in many statements, and none may forget. It only appends and waits for nobody.
CREATE FUNCTION kagzi.note_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kagzi.cascades (namespace, run_id, at) VALUES (NEW.namespace, NEW.run_id, NEW.finished_at)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note_end AFTER UPDATE OF finished_at ON kagzi.workflow_runs FOR EACH ROW
    WHEN (NEW.has_children AND OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL)
    EXECUTE FUNCTION kagzi.note_end();

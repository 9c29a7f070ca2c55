-- Children: runs that other runs have started, whose outcome they are told of and which follow their end.

-- What becomes of the run when its parent ends; 'none': only lineage.
ALTER TABLE workflow_runs ADD COLUMN parent_policy TEXT
    CHECK (parent_policy IN ('cancel', 'abandon', 'terminate', 'none'));
-- A flag, not a counter: a spawn that is repeated changes nothing.
ALTER TABLE workflow_runs ADD COLUMN has_children INTEGER;
-- Generations above it; NULL is 0.
ALTER TABLE workflow_runs ADD COLUMN depth INTEGER;

-- Ended runs whose children were not all told yet. They outlive their run: retention may be shorter than a cascade.
CREATE TABLE cascades (
    run_id    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    PRIMARY KEY (namespace, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX cascades_at ON cascades (at);

-- By a trigger, because a run can end in many statements, and none may forget.
CREATE TRIGGER note_end AFTER UPDATE OF finished_at ON workflow_runs FOR EACH ROW
    WHEN NEW.has_children AND OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL
BEGIN
    INSERT INTO cascades (namespace, run_id, at) VALUES (NEW.namespace, NEW.run_id, NEW.finished_at)
    ON CONFLICT DO NOTHING;
END;

CREATE INDEX workflow_runs_children ON workflow_runs (namespace, parent_run_id, run_id)
    WHERE parent_run_id IS NOT NULL;
CREATE INDEX step_runs_unseen ON step_runs (namespace, run_id)
    WHERE child_run_id IS NOT NULL AND completed_seq IS NULL AND status <> 'RUNNING';

-- The checks of step_runs in other words. For a list of more than two values after IN, SQLite builds a table and fills it
-- whenever it checks a row: two such lists cost as much as the rest of writing a step. Comparisons cost next to nothing.

CREATE TABLE step_runs_cheap (
    run_id        TEXT NOT NULL,
    started_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    retry_at      INTEGER,
    timeout_at    INTEGER,
    attempt       INTEGER NOT NULL,
    completed_seq INTEGER,               -- set if and only if the workflow has seen this as an event
    input_hash    INTEGER NOT NULL DEFAULT 0,
    generation    INTEGER NOT NULL DEFAULT 0,  -- above 0: set aside by a retry of the run, unseen by replay
    namespace     TEXT NOT NULL,
    step_id       TEXT NOT NULL,
    kind          TEXT NOT NULL,
    status        TEXT NOT NULL,
    input         BLOB,
    output        BLOB,
    error         BLOB,
    child_run_id  TEXT,
    PRIMARY KEY (namespace, run_id, step_id, attempt),
    CONSTRAINT step_runs_kind CHECK
        (kind = 'FUNCTION' OR kind = 'SLEEP' OR kind = 'CHILD_WORKFLOW' OR kind = 'SIGNAL'),
    CONSTRAINT step_runs_status CHECK
        (status = 'COMPLETED' OR status = 'RUNNING' OR status = 'FAILED' OR status = 'CANCELLED')
) STRICT, WITHOUT ROWID;

INSERT INTO step_runs_cheap (run_id, started_at, finished_at, retry_at, timeout_at, attempt, completed_seq, input_hash,
    generation, namespace, step_id, kind, status, input, output, error, child_run_id)
SELECT run_id, started_at, finished_at, retry_at, timeout_at, attempt, completed_seq, input_hash,
    generation, namespace, step_id, kind, status, input, output, error, child_run_id
FROM step_runs
ORDER BY namespace, run_id, step_id, attempt;
DROP TABLE step_runs;
ALTER TABLE step_runs_cheap RENAME TO step_runs;

CREATE INDEX step_runs_timeout ON step_runs (timeout_at) WHERE status = 'RUNNING';

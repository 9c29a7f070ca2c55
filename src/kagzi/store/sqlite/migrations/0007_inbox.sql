-- News for runs: signals, and what a parked run waits for. A cancellation gets a kind of step of its own.

-- A JSON list, NULL for nearly all runs: `s:approved` is a signal. Written when a run parks, meaningless otherwise.
ALTER TABLE workflow_runs ADD COLUMN waiting_for TEXT;

CREATE TABLE step_runs_with_cancel (
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
        (kind = 'FUNCTION' OR kind = 'SLEEP' OR kind = 'CHILD_WORKFLOW' OR kind = 'SIGNAL' OR kind = 'CANCEL'),
    CONSTRAINT step_runs_status CHECK
        (status = 'COMPLETED' OR status = 'RUNNING' OR status = 'FAILED' OR status = 'CANCELLED')
) STRICT, WITHOUT ROWID;

INSERT INTO step_runs_with_cancel (run_id, started_at, finished_at, retry_at, timeout_at, attempt, completed_seq, input_hash,
    generation, namespace, step_id, kind, status, input, output, error, child_run_id)
SELECT run_id, started_at, finished_at, retry_at, timeout_at, attempt, completed_seq, input_hash,
    generation, namespace, step_id, CASE WHEN kind = 'SIGNAL' AND step_id = '@cancel' THEN 'CANCEL' ELSE kind END,
    status, input, output, error, child_run_id
FROM step_runs
ORDER BY namespace, run_id, step_id, attempt;
DROP TABLE step_runs;
ALTER TABLE step_runs_with_cancel RENAME TO step_runs;

CREATE INDEX step_runs_timeout ON step_runs (timeout_at) WHERE status = 'RUNNING';

CREATE TABLE signals (
    run_id    TEXT NOT NULL,
    sent_at   INTEGER NOT NULL,
    seq       INTEGER NOT NULL,          -- the run's inbox_seq with it: the order of arrival
    taken_seq INTEGER,                   -- completed_seq of the event that took it
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,             -- makes a repeat harmless
    name      TEXT NOT NULL,
    value     BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX signals_untaken ON signals (namespace, run_id, name, seq) WHERE taken_seq IS NULL;

-- Jobs can also fork runs and move them to another version: what those need to know, and why a job has left runs as they
-- are. A CHECK cannot be changed, so the table is made anew; it holds a few rows.
CREATE TABLE jobs_anew (
    job_id      TEXT NOT NULL,
    cursor      TEXT NOT NULL,           -- the last run that was looked at
    last_run_id TEXT NOT NULL,           -- the newest run when the job began: it never meets what it has started
    next_at     INTEGER,                 -- when it goes on; NULL once it has ended
    created_at  INTEGER NOT NULL,
    finished_at INTEGER,
    matched     INTEGER NOT NULL DEFAULT 0,
    done        INTEGER NOT NULL DEFAULT 0,
    skipped     INTEGER NOT NULL DEFAULT 0,
    failed      INTEGER NOT NULL DEFAULT 0,
    rate        INTEGER,                 -- runs a second; NULL: the pace of its action
    children    INTEGER NOT NULL,
    namespace   TEXT NOT NULL,
    action      TEXT NOT NULL CHECK (action IN ('cancel', 'terminate', 'wake', 'move', 'retry', 'rerun', 'fork', 'delete')),
    status      TEXT NOT NULL CHECK (status IN ('RUNNING', 'COMPLETED', 'CANCELLED', 'FAILED')),
    filter      BLOB NOT NULL,
    created_by  TEXT NOT NULL,
    error       TEXT,
    options     BLOB,                    -- of its action, as JSON
    reasons     BLOB,                    -- for which it has left runs as they are, as JSON: how many for each
    PRIMARY KEY (namespace, job_id),
    CONSTRAINT jobs_moves CHECK ((status = 'RUNNING') = (next_at IS NOT NULL))
) STRICT;
INSERT INTO jobs_anew SELECT *, NULL, NULL FROM jobs;
DROP TABLE jobs;
ALTER TABLE jobs_anew RENAME TO jobs;
CREATE INDEX jobs_next ON jobs (next_at) WHERE next_at IS NOT NULL;

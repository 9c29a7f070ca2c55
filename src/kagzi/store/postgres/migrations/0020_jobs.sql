-- Jobs: one thing done to many runs, in the background.

CREATE TABLE kagzi.jobs (
    job_id      uuid NOT NULL,
    cursor      uuid NOT NULL,           -- the last run that was looked at
    last_run_id uuid NOT NULL,           -- the newest run when the job began: it never meets what it has started
    next_at     bigint,                  -- when it goes on; NULL once it has ended
    created_at  bigint NOT NULL,
    finished_at bigint,
    matched     bigint NOT NULL DEFAULT 0,
    done        bigint NOT NULL DEFAULT 0,
    skipped     bigint NOT NULL DEFAULT 0,
    failed      bigint NOT NULL DEFAULT 0,
    rate        integer,                 -- runs a second; NULL: the pace of its action
    children    boolean NOT NULL,
    namespace   text NOT NULL,
    action      text NOT NULL,
    status      text NOT NULL,
    filter      bytea NOT NULL,
    created_by  text NOT NULL,
    error       text,
    PRIMARY KEY (namespace, job_id),
    CONSTRAINT jobs_action CHECK (action IN ('cancel', 'terminate', 'retry', 'rerun', 'delete')),
    CONSTRAINT jobs_status CHECK (status IN ('RUNNING', 'COMPLETED', 'CANCELLED', 'FAILED')),
    CONSTRAINT jobs_moves CHECK ((status = 'RUNNING') = (next_at IS NOT NULL))
);
CREATE INDEX jobs_next ON kagzi.jobs (next_at) WHERE next_at IS NOT NULL;

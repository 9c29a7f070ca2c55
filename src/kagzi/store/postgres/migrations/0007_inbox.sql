-- News for runs: signals, and what a parked run waits for. A cancellation gets a kind of step of its own.

-- A JSON list, NULL for nearly all runs: `s:approved` is a signal. Written when a run parks, meaningless otherwise.
ALTER TABLE kagzi.workflow_runs ADD COLUMN waiting_for text;

-- Not validated: rows that are there have passed a narrower check.
ALTER TABLE kagzi.step_runs DROP CONSTRAINT step_runs_kind;
ALTER TABLE kagzi.step_runs ADD CONSTRAINT step_runs_kind
    CHECK (kind IN ('FUNCTION', 'SLEEP', 'CHILD_WORKFLOW', 'SIGNAL', 'CANCEL')) NOT VALID;

CREATE TABLE kagzi.signals (
    run_id    uuid NOT NULL,
    sent_at   bigint NOT NULL,
    seq       integer NOT NULL,          -- the run's inbox_seq with it: the order of arrival
    taken_seq integer,                   -- completed_seq of the event that took it
    namespace text NOT NULL,
    key       text NOT NULL,             -- makes a repeat harmless
    name      text NOT NULL,
    value     bytea NOT NULL,
    PRIMARY KEY (namespace, run_id, key)
);
CREATE INDEX signals_untaken ON kagzi.signals (namespace, run_id, name, seq) WHERE taken_seq IS NULL;

-- What runs say about themselves while they live: one row for each name, as it was last set.

CREATE TABLE kagzi.run_values (
    run_id    uuid NOT NULL,
    at        bigint NOT NULL,           -- when it was stored
    seq       bigint NOT NULL,           -- the run's executions, then the number within that lease: what is older is not set again
    namespace text NOT NULL,
    name      text NOT NULL,             -- those that begin with @ are the engine's
    value     bytea NOT NULL,
    PRIMARY KEY (namespace, run_id, name)
);

-- What runs say about themselves while they live: one row for each name, as it was last set.

CREATE TABLE run_values (
    run_id    TEXT NOT NULL,
    at        INTEGER NOT NULL,          -- when it was stored
    seq       INTEGER NOT NULL,          -- the run's executions, then the number within that lease: what is older is not set again
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,             -- those that begin with @ are the engine's
    value     BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, name)
) STRICT, WITHOUT ROWID;

-- Searching runs by their errors. The index of ids serves their beginnings already.

CREATE INDEX workflow_runs_failed ON workflow_runs (namespace, run_id)
    WHERE status IN ('FAILED', 'TIMED_OUT', 'CANCELLED');
-- By the class of the error without its module: its dotted name is what the JSON begins with.
CREATE INDEX workflow_runs_errors ON workflow_runs (
    namespace,
    substr(substr(CAST(error AS TEXT), 10, instr(substr(CAST(error AS TEXT), 10), '"') - 1),
        length(rtrim(substr(CAST(error AS TEXT), 10, instr(substr(CAST(error AS TEXT), 10), '"') - 1),
            replace(substr(CAST(error AS TEXT), 10, instr(substr(CAST(error AS TEXT), 10), '"') - 1), '.', ''))) + 1),
    run_id
) WHERE status IN ('FAILED', 'TIMED_OUT', 'CANCELLED');

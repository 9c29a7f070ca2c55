-- On a connection of the caller's own, in its transaction.

-- name: is_our_database
-- Whether this is the database whose secret we know.
SELECT s.value = $2::bytea AS ours FROM kagzi.secrets AS s WHERE s.name = $1::text;

-- name: begin_step
-- Mark the transaction of a step, and let the server end it if its client falls silent: a process that was stopped, or
-- whose host has gone, would hold its locks for hours. What a role or a database says about that itself stays.
SELECT set_config('kagzi.step', $1::text, true),
       CASE WHEN current_setting('idle_in_transaction_session_timeout') = '0'
            THEN set_config('idle_in_transaction_session_timeout', $2::text, true) END AS silence;

-- name: end_step
-- Whether this is still the transaction that was marked. From here on it is ours: statements as the store's own
-- connections have them, and no waiting for long, since the run is locked soon.
SELECT current_setting('kagzi.step', true) IS NOT DISTINCT FROM $1::text AS same,
       set_config('lock_timeout', '10s', true), set_config('statement_timeout', '10s', true),
       set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true);

-- name: check_constraints
-- What is checked at the commit is checked now, while it is still the body's failure.
SET CONSTRAINTS ALL IMMEDIATE;

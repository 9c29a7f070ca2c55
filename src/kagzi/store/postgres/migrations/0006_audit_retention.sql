-- The audit log is kept for 400 days. Whoever serves may add to it and not delete from it; this may, and only what is
-- older than that: `until` asks for less to be deleted, never for more. It looks at the oldest few entries alone.

CREATE FUNCTION kagzi.prune_audit_log(most integer, until bigint) RETURNS integer
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
        WITH oldest AS MATERIALIZED (
            SELECT e.entry_id, e.at FROM kagzi.audit_log AS e ORDER BY e.entry_id LIMIT most
        ), doomed AS MATERIALIZED (
            SELECT e.entry_id
            FROM oldest AS o
            JOIN kagzi.audit_log AS e ON e.entry_id = o.entry_id
            WHERE o.at <= least(until, kagzi.clock() - 400 * 86400000000::bigint)
            FOR UPDATE OF e SKIP LOCKED
        ), pruned AS (
            DELETE FROM kagzi.audit_log AS e USING doomed AS d WHERE e.entry_id = d.entry_id
        )
        SELECT count(*)::integer FROM doomed
    $$;

-- name: migrations_exist
-- Whether the schema has been touched by us before.
SELECT to_regclass('kagzi.migrations') IS NOT NULL;

-- name: lock_migrations
-- Others that start at the same time wait here until the schema is complete. A transaction's lock, not a session's:
-- those get lost behind a connection pooler.
SELECT pg_advisory_xact_lock(7307218143051514);

-- name: schema_exists
-- Whether somebody has made the schema for us, as is done where our role may not.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'kagzi');

-- name: create_schema
-- Home of everything we have.
CREATE SCHEMA kagzi;

-- name: create_migrations
-- What was applied, and when.
CREATE TABLE kagzi.migrations (
    number         integer PRIMARY KEY,
    name           text NOT NULL,
    checksum       text NOT NULL,
    applied_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    building_until timestamptz,          -- the lease of the process that builds its indexes
    built_at       timestamptz           -- when these were all there; NULL for a migration without
);

-- name: extend_migrations
-- Tables of versions that could not build indexes beside the work lack two columns.
ALTER TABLE kagzi.migrations
    ADD COLUMN IF NOT EXISTS building_until timestamptz, ADD COLUMN IF NOT EXISTS built_at timestamptz;

-- name: list_migrations
-- The migrations this database has.
SELECT number, name, checksum FROM kagzi.migrations ORDER BY number;

-- name: record_migration
-- In the transaction that applied it.
INSERT INTO kagzi.migrations (number, name, checksum) VALUES ($1::integer, $2::text, $3::text);

-- name: keep_default_namespace
-- The namespace that comes with the tables keeps what is over as long as those that come later do.
UPDATE kagzi.namespaces SET retention_days = $1::integer WHERE namespace = 'default';

-- name: count_rows
-- About how many rows the largest of these tables has, as the planner estimates it: so many on a page when last counted,
-- times the pages there are now. One that was never counted is taken to have 20 on each.
SELECT max(CASE WHEN c.reltuples >= 0 AND c.relpages > 0 THEN c.reltuples / c.relpages ELSE 20 END
           * (pg_relation_size(c.oid) / current_setting('block_size')::integer))::bigint
FROM pg_class AS c WHERE c.relnamespace = 'kagzi'::regnamespace AND c.relname = ANY ($1::text[]);

-- name: list_unbuilt
-- Which of these migrations still lack indexes.
SELECT number FROM kagzi.migrations WHERE number = ANY ($1::integer[]) AND built_at IS NULL ORDER BY number;

-- name: lease_building
-- Nobody else builds the indexes of this migration while the lease lasts. A row and not a session's lock: those get lost
-- behind a connection pooler.
UPDATE kagzi.migrations SET building_until = clock_timestamp() + $2::integer * interval '1 second'
WHERE number = $1::integer AND built_at IS NULL AND (building_until IS NULL OR building_until < clock_timestamp())
RETURNING number;

-- name: renew_building
-- By the one who has the lease.
UPDATE kagzi.migrations SET building_until = clock_timestamp() + $2::integer * interval '1 second'
WHERE number = $1::integer AND built_at IS NULL;

-- name: release_building
-- Whoever comes next may build at once.
UPDATE kagzi.migrations SET building_until = NULL WHERE number = $1::integer;

-- name: record_built
-- All indexes of the migration are there.
UPDATE kagzi.migrations SET built_at = clock_timestamp(), building_until = NULL WHERE number = $1::integer;

-- name: find_index
-- Whether an index is usable, and whether somebody else is building one of its table right now.
SELECT i.indisvalid AS valid, EXISTS (
           SELECT FROM pg_stat_progress_create_index AS p
           WHERE p.relid = i.indrelid AND p.datname = current_database() AND p.pid <> pg_backend_pid()
       ) AS busy
FROM pg_index AS i WHERE i.indexrelid = to_regclass('kagzi.' || $1::text);

-- name: longest_statement
-- After how many milliseconds a session that asks for nothing else is interrupted; 0 for never.
SELECT reset_val::bigint FROM pg_settings WHERE name = 'statement_timeout';

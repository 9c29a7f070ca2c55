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
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: list_migrations
-- The migrations this database has.
SELECT number, name, checksum FROM kagzi.migrations ORDER BY number;

-- name: record_migration
-- In the transaction that applied it.
INSERT INTO kagzi.migrations (number, name, checksum) VALUES ($1::integer, $2::text, $3::text);

-- name: keep_default_namespace
-- The namespace that comes with the tables keeps what is over as long as those that come later do.
UPDATE kagzi.namespaces SET retention_days = $1::integer WHERE namespace = 'default';

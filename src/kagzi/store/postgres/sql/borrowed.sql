-- On a connection of the caller's own, in its transaction.

-- name: is_our_database
-- Whether this is the database whose secret we know.
SELECT s.value = $2::bytea AS ours FROM kagzi.secrets AS s WHERE s.name = $1::text;

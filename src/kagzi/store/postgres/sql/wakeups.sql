-- name: notify
-- Several notifications in one round trip, outside any transaction that writes data: committing a notification takes a
-- lock of the whole server.
SELECT pg_notify(n.channel, n.payload) FROM unnest($1::text[], $2::text[]) AS n (channel, payload);

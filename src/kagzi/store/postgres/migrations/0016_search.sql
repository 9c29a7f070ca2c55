-- Searching runs by their errors and by the beginning of their ids.

-- Text byte by byte, in letters that every encoding has: what an index holds must not depend on what a client sends.
CREATE FUNCTION kagzi.escaped(value text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT pg_catalog.encode(pg_catalog.convert_to(value, 'UTF8'), 'escape') $$;

-- The dotted name of the class of a stored error, which is what its JSON begins with, and the same without its module. Neither
-- can fail, whatever is stored: a run must be able to end.
CREATE FUNCTION kagzi.error_type(error bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT pg_catalog.substring(pg_catalog.encode(pg_catalog.substr(error, 1, 600), 'escape'), '^\{"type":"([^"]*)"') $$;
CREATE FUNCTION kagzi.error_class(error bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT pg_catalog.substring(pg_catalog.encode(pg_catalog.substr(error, 1, 600), 'escape'), '^\{"type":"(?:[^"]*\.)?([^".]*)"') $$;

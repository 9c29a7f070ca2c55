-- What page tokens are signed with. Made once, and shared by all who may read these tables.

CREATE TABLE kagzi.secrets (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);
INSERT INTO kagzi.secrets (name, value)
VALUES ('page tokens', decode(replace(concat(gen_random_uuid(), gen_random_uuid()), '-', ''), 'hex'));

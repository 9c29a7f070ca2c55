-- What page tokens are signed with. Made once, and shared by all who may read these tables.

CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;
INSERT INTO secrets (name, value) VALUES ('page tokens', randomblob(32));

-- API keys and the audit log.

CREATE TABLE kagzi.api_keys (
    key_id       text PRIMARY KEY,
    namespace    text,                    -- NULL: all of them
    role         text NOT NULL,
    name         text NOT NULL,
    digest       bytea NOT NULL,          -- of the secret, which nobody knows but its holder
    created_at   bigint NOT NULL,
    expires_at   bigint,
    revoked_at   bigint,
    last_used_at bigint,                  -- to the minute or so
    CONSTRAINT api_keys_role CHECK (role IN ('admin', 'client', 'worker', 'viewer')),
    CONSTRAINT api_keys_digest CHECK (octet_length(digest) = 32)
);

-- Who changed what, or was refused. Rows are added and never changed; whoever serves needs no more than INSERT.
CREATE TABLE kagzi.audit_log (
    entry_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         bigint NOT NULL,
    actor      text NOT NULL,
    action     text NOT NULL,
    namespace  text,
    target     text NOT NULL,
    request_id text NOT NULL,
    peer       text NOT NULL,
    result     text NOT NULL
);
CREATE INDEX audit_log_namespace ON kagzi.audit_log (namespace, entry_id);

CREATE FUNCTION kagzi.refuse_change_of_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'entries of the audit log cannot change' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER audit_log_is_final BEFORE UPDATE ON kagzi.audit_log FOR EACH ROW
    EXECUTE FUNCTION kagzi.refuse_change_of_audit_log();

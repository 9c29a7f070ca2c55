-- Workflows that share the limits of another name: what is started without one, as a child, by a schedule or as a failure
-- handler, counts for it, too.

ALTER TABLE limits ADD COLUMN shares TEXT;  -- whose limits count for the runs of this workflow, as workers declare it

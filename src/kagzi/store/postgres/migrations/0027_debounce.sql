-- Debouncing: starts with one key become one run while it has not begun.

ALTER TABLE kagzi.workflow_runs ADD COLUMN debounce_key text;  -- NULL: its starts are not debounced

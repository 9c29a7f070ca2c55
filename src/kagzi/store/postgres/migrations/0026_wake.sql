-- Somebody has asked for a sleeping run to go on: what it stood at then, and until when it slept (core/wake.py).
ALTER TABLE kagzi.workflow_runs ADD COLUMN woken text;

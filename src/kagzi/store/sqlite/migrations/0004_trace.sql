-- One trace from client to step.

-- The span that started the run: traceparent, a space, tracestate (W3C).
ALTER TABLE workflow_runs ADD COLUMN trace_context TEXT;

-- One trace from client to step. The column is empty for every run there is, so adding it rewrites nothing.

ALTER TABLE kagzi.workflow_runs
    ADD COLUMN trace_context text;       -- the span that started the run: traceparent, a space, tracestate (W3C)

"""The HTTP port of a server: `/api/v1` as JSON, a stream of changes, metrics, and probes.

    routes.py ──▶ every route, once: the application, the access table's check and the OpenAPI document come from it
    app.py        what every request goes through: host, limits, the gate, reading, answering
    port.py       listening: TLS, an orderly end

A route's work is in `runs.py`, `workers.py`, `namespaces.py`, `system.py` and `events.py`: functions of a `Call` that
return a document. Errors become problems (RFC 9457) in `problems.py`.
"""

"""Runs, steps, workers and the rest as JSON documents: one vocabulary for `--json` of commands and for the HTTP API.

Moments are RFC 3339 in UTC with milliseconds. Payloads are bytes to the engine; most of them are JSON and appear as
what they are, to the last digit. What is not JSON, because a codec has encrypted or compressed it, appears as
`{"base64": "…"}`.
"""

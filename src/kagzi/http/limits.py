"""Bounds of the transport. What a field may hold is checked by the engine."""

from __future__ import annotations

from typing import Final

# A body may be as large as the largest payload, escaped, with something around it.
BODY_SLACK_BYTES: Final = 64 * 1024
FORM_BYTES: Final = 4 * 1024 * 1024  # a form of a page: an input, percent-encoded
# The body of a route that asks for no key, such as the form to log in. It must not be compressed either.
PUBLIC_BYTES: Final = 4 * 1024
HEADER_BYTES: Final = 32 * 1024
TARGET_BYTES: Final = 8 * 1024  # the path and the query
QUERY_PARAMETERS: Final = 50
FORM_FIELDS: Final = 200
# An answer that may hold many payloads stops growing here.
ANSWER_BYTES: Final = 4 * 1024 * 1024

# How long a request may take; one that waits for a run gets its wait on top.
REQUEST_SECONDS: Final = 30.0
LONGEST_WAIT_SECONDS: Final = 60.0
# How long a connection may take to say what it wants.
HEADER_SECONDS: Final = 20.0
KEEP_ALIVE_SECONDS: Final = 15

REQUESTS: Final = 1_000  # under way in one server
STREAMS: Final = 500  # of events, besides
# Of these one key may have so many, and one namespace twice as many.
REQUESTS_PER_KEY: Final = REQUESTS // 4
STREAMS_PER_KEY: Final = STREAMS // 4
CONNECTIONS: Final = 5_000

STEPS_PAGE: Final = 50
NAMES: Final = 1_000  # in one map or list
HEALTH_SECONDS: Final = 2.0  # how old an answer to a probe may be
PROBE_SECONDS: Final = 0.8  # how long a probe is kept waiting; most give up after a second

HEARTBEAT_SECONDS: Final = 15.0
SEND_SECONDS: Final = 30.0  # how long a reader may let us wait
RECONNECT_MILLISECONDS: Final = 2_000

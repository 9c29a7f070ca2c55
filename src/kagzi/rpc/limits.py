"""Bounds of the transport, the same for both ends. What a field may hold is checked by the engine."""

from __future__ import annotations

from typing import Final

# The largest single thing is a step with input, output and error, each as large as a payload may be. So a payload that
# goes through a server has a limit of its own, whatever its settings allow.
MESSAGE_BYTES: Final = 16 * 1024 * 1024
PAYLOAD_BYTES: Final = 5 * 1024 * 1024
# Answers that may hold many things stop growing here: clients in the field refuse messages above 4 MiB.
ANSWER_BYTES: Final = 3 * 1024 * 1024
# The same for what a client collects into one call, or into one message of a stream; servers refuse more items.
CALL_BYTES: Final = 4 * 1024 * 1024
CALL_ITEMS: Final = 1000
# Larger requests do not share a stream: the others would wait behind them.
EXCHANGE_BYTES: Final = 512 * 1024
# What a stream adds to the largest message.
ENVELOPE_BYTES: Final = 1024
# The largest request that carries no payload.
SMALL_BYTES: Final = 512 * 1024
METADATA_BYTES: Final = 16 * 1024
ERROR_TEXT_BYTES: Final = 2000
MAXIMUM_CALLS: Final = 20_000  # under way in one server, waiting polls included
# On one connection; its client keeps further ones back until others have ended. gRPC hands us one call at a time,
# whosever it is, so that everybody waits for the calls that one of them has sent together. Many clients take this bound
# for granted; one that does not, and has not heard of it yet, is told UNAVAILABLE.
CONNECTION_CALLS: Final = 100
# Calls that have come and that nobody has looked at yet; further ones gRPC ends as CANCELLED, without a reason.
PENDING_CALLS: Final = MAXIMUM_CALLS
WATCHES: Final = 100  # of health, which anybody may begin

# What a client may send before somebody reads it, and what is set aside while somebody does, since its size is not
# known before. So many seconds a request may take to arrive.
UNREAD_BYTES: Final = 16 * 1024
READING_BYTES: Final = 4 * 1024 * 1024
READING_SECONDS: Final = 30.0
# What has come of messages on streams of calls that are not whole yet; beyond that streams are ended.
UNFINISHED_BYTES_PER_KEY: Final = 64 * 1024 * 1024
UNFINISHED_BYTES: Final = 256 * 1024 * 1024
HANDSHAKE_MS: Final = 10_000

# How long a poll or a wait may wait in the server, and how long any other call may take.
LONGEST_WAIT_SECONDS: Final = 60.0
CALL_SECONDS: Final = 60.0
# A waiting call answers this much before its caller gives up.
ANSWER_SECONDS: Final = 1.0

# A server whose callers wait says at least so often that it is there, on the stream of their calls. Clients look
# now and then whether they have heard anything, and after so many looks in vain take it for one that hangs.
SIGN_SECONDS: Final = 1.2
LOOK_SECONDS: Final = 0.8
SILENT_LOOKS: Final = 4

# A connection is to be made anew after this long: callers spread over new servers, and those who show certificates
# are looked at again. What is under way has time to finish.
CONNECTION_AGE_MS: Final = 3600_000
CONNECTION_GRACE_MS: Final = round(1000 * (LONGEST_WAIT_SECONDS + CALL_SECONDS))

KEEPALIVE_MS: Final = 20_000
KEEPALIVE_TIMEOUT_MS: Final = 10_000
# gRPC measures the line with pings of its own while there is traffic, and keepalive waits for those, by default for a
# minute. But a peer that vanishes in the middle of something is to be missed as soon as an idle one.
PING_TIMEOUT_MS: Final = KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS

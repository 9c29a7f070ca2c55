"""Receiving the request of a call that comes by itself: first who calls, then room for it, and only then its bytes.

gRPC reads nothing of a request before it is asked to, but for what fits into a window (`limits.UNREAD_BYTES`). So those
who may not call cost no more than that, and those who send more than their share wait with the rest of it unsent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kagzi.errors import InvalidRequest
from kagzi.rpc import limits
from kagzi.rpc.methods import Method
from kagzi.rpc.server.calls import CallAlone
from kagzi.rpc.server.respond import Guard
from kagzi.rpc.status import too_slow


@asynccontextmanager
async def received(method: Method, call: CallAlone, guard: Guard | None) -> AsyncIterator[bytes]:
    """Returns the bytes of the request. Raises if the caller may not make it, or does not send it in time."""
    room = None if guard is None else await guard.receive(method, call)
    if room is None:
        yield await _read(method, call)
        return
    with room.arriving():
        await room.take(held := limits.READING_BYTES)
        try:
            data = await _read(method, call)
            if len(data) < held:
                room.give(held - len(data))
            else:
                room.add(len(data) - held)
            held = len(data)
        except BaseException:
            room.give(held)
            raise
    try:
        yield data
    finally:
        room.give(held)


async def _read(method: Method, call: CallAlone) -> bytes:
    try:
        async with asyncio.timeout(limits.READING_SECONDS):
            data = await call.context.read()
    except TimeoutError:
        raise too_slow() from None
    if not isinstance(data, bytes):  # but grpc.aio.EOF
        raise InvalidRequest(f"the call came without a {method.rpc}Request")
    return data

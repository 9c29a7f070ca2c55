"""Answers without an end. One is over when its reader has gone or does not keep up, when the key it was opened with
ends, or when the server closes, and none of these waits for another."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext

from starlette.types import Receive, Scope, Send

from kagzi.errors import LimitExceeded, Unauthenticated
from kagzi.http.call import Host, Stream
from kagzi.http.limits import SEND_SECONDS

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


class Streaming:
    """`permission` raises Unauthenticated in the middle should the key be revoked, and LimitExceeded at the beginning
    if other calls of the key were faster."""

    def __init__(self, stream: Stream, host: Host, permission: AbstractContextManager[object] | None) -> None:
        self._stream = stream
        self._host = host
        self._permission = permission or nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            if scope["method"] != "HEAD":
                await self._until_over(receive, send)
            async with asyncio.timeout(1.0):
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            pass  # a reader that does not read need not hear that it is over
        finally:
            self._stream.close()

    async def _until_over(self, receive: Receive, send: Send) -> None:
        ways = [
            asyncio.ensure_future(self._send_parts(send)),
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._host.closing.wait()),
        ]
        try:
            with self._permission:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except (Unauthenticated, LimitExceeded):
            pass
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _send_parts(self, send: Send) -> None:
        async for part in self._stream.parts:
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": part, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

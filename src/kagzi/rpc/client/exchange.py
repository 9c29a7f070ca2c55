"""Calls over one stream: a message costs both ends a third of a call, and calls that are made together go together.

The stream is opened when it is needed, and anew when it has ended: then its calls raise Unavailable, and whoever made
them knows whether to repeat them. After a while it is left to its last answers and the next one opened, which may lead
to another server. Reading and writing happen in tasks of the stream's own, since cancelling either ends the stream.

A server that has calls to answer says at least every `limits.SIGN_SECONDS` that it is there. One from which nothing
comes hangs, whatever its connection says: it is suspended, its event loop is blocked, or the network is cut. Silence is
counted in looks of this process's own loop, so that a loop which is blocked itself does not take a server for dead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from kagzi._proto.v1.exchange_pb2 import ExchangedCall, ExchangeRequest, ExchangeResponse
from kagzi.core.instant import SECOND
from kagzi.errors import KagziError, Unavailable
from kagzi.rpc.client.authorization import Metadata, MetadataSource
from kagzi.rpc.limits import CALL_BYTES, CALL_ITEMS, LOOK_SECONDS, SILENT_LOOKS
from kagzi.rpc.status import error_of, error_of_call

_OLD_SECONDS: Final = 600.0  # long before the server ends the connection


class Unheard(Exception):
    """The stream ended before it carried anything, so that the call is to be made by itself."""


class NotOffered(Unheard):
    """The server is older than exchanges, so that every call is to be made by itself."""


class Exchange:
    """Carries calls on a stream; `open` begins one, in grpc.aio's style of reading and writing."""

    def __init__(
        self, open: Callable[[Metadata], Any], metadata: MetadataSource, silent: Callable[[], None] = lambda: None
    ) -> None:
        """`silent` is called when the server turns out to hang."""
        self._open = open
        self._silent = silent
        self._metadata = metadata
        self._loop = asyncio.get_running_loop()
        self._stream: _Stream | None = None
        self._streams: set[_Stream] = set()  # those with answers to come

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        """Returns the response. Raises what the server's engine raised, Unavailable, or Unheard."""
        return await self._current().call(method, request, seconds)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks whether the server hangs while a call is made beside the stream."""
        stream = self._current()
        stream.beside += 1
        stream.watch()
        try:
            yield
        finally:
            stream.beside -= 1

    def _current(self) -> _Stream:
        stream, metadata = self._stream, self._metadata()
        if stream is None or stream.ended or stream.metadata != metadata or stream.age() > _OLD_SECONDS:
            if stream is not None:
                stream.leave()
            stream = _Stream(self._open(metadata), metadata, self._loop, self._streams.discard, self._silent)
            self._stream = stream
            self._streams.add(stream)
        return stream

    async def close(self) -> None:
        for stream in list(self._streams):
            await stream.close()


class _Stream:
    def __init__(
        self,
        call: Any,
        metadata: Metadata,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[_Stream], None],
        silent: Callable[[], None],
    ) -> None:
        self._call = call
        self.metadata = metadata
        self._loop = loop
        self._forget = ended
        self._numbers = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._unsent: deque[ExchangedCall] = deque()
        self._given_up: list[int] = []
        self._left = False
        self._heard = False  # anything from the server
        self._tell_silent = silent
        self._silent = 0  # looks since something came
        self._looking: asyncio.TimerHandle | None = None
        self.beside = 0  # calls that are made by themselves meanwhile
        self._something: asyncio.Future[None] = loop.create_future()  # for the sender to do
        self._sender = loop.create_task(self._send(), name="kagzi-calls")
        self._reader = loop.create_task(self._read(), name="kagzi-exchange")
        self._begun = loop.time()
        self.ended = False

    def age(self) -> float:
        return self._loop.time() - self._begun

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[number] = answer
        timer = self._loop.call_later(seconds, _too_late, answer)
        timeout_us = round(seconds * SECOND)
        self._unsent.append(ExchangedCall(number=number, method=method, request=request, timeout_us=timeout_us))
        self._send_soon()
        if self._looking is None:
            self.watch()
        try:
            return await answer
        finally:
            timer.cancel()
            if self._waiting.pop(number, None) is not None and not self.ended:
                self._given_up.append(number)
                self._send_soon()

    def leave(self) -> None:
        """Asks nothing more on this stream; what was asked is still answered."""
        if not self._left:
            self._left = True
            self._send_soon()

    async def close(self) -> None:
        self._reader.cancel()
        self._sender.cancel()
        await asyncio.wait([self._reader, self._sender])

    def watch(self) -> None:
        """Looks now and then whether the server says anything, for as long as calls are under way."""
        if self._looking is None and not self.ended:
            self._silent = 0
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        if self.ended or not (self._waiting or self.beside):
            return
        self._silent += 1
        if self._silent < SILENT_LOOKS:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)
        else:
            self._reader.cancel()
            self._tell_silent()

    def _send_soon(self) -> None:
        if not self._something.done():
            self._something.set_result(None)

    async def _send(self) -> None:
        try:
            # Whoever has left may still give calls up: a poll that nobody waits for must not get runs.
            while not self._left or self._waiting or self._given_up:
                await self._something
                self._something = self._loop.create_future()
                while self._unsent or self._given_up:
                    await self._call.write(self._next_message())
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            pass  # the reader learns why

    def _next_message(self) -> bytes:
        request = ExchangeRequest()
        room = CALL_BYTES
        while self._unsent and room > 0 and len(request.calls) < CALL_ITEMS:
            call = self._unsent.popleft()
            room -= len(call.request)
            request.calls.append(call)
        if not self._unsent:
            request.given_up.extend(self._given_up[:CALL_ITEMS])
            del self._given_up[:CALL_ITEMS]
        return request.SerializeToString()

    async def _read(self) -> None:
        problem: Exception = Unavailable("the engine was closed during the call")
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                self._heard = True
                self._silent = 0
                for answer in ExchangeResponse.FromString(data).answers:
                    waiting = self._waiting.pop(answer.number, None)
                    if waiting is None or waiting.done():
                        continue
                    if answer.status:
                        waiting.set_exception(error_of(answer.error))
                    else:
                        waiting.set_result(answer.response)
                if self._left and not self._waiting:
                    self._send_soon()  # that there is nothing more
            problem = Unavailable("the server is about to stop; trying again is safe")
        except grpc.aio.AioRpcError as error:
            problem = _why(error, self._heard)
        except DecodeError:
            problem = KagziError("the server sent something that is no ExchangeResponse")
        finally:
            self.ended = True
            if self._silent >= SILENT_LOOKS:
                problem = silence()
            self._sender.cancel()
            self._call.cancel()
            self._forget(self)
            unanswered, self._waiting = self._waiting, {}
            for waiting in unanswered.values():
                if not waiting.done():
                    # One of its own for each caller, since one that many raise collects all their tracebacks.
                    waiting.set_exception(type(problem)(*problem.args))


def _why(error: grpc.aio.AioRpcError, heard: bool) -> Exception:
    """Returns why a stream has ended before its time."""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NotOffered()
    problem = error_of_call(error)
    if type(problem) is KagziError:
        # gRPC calls it INTERNAL when a stream goes away under a message that is being written, whatever the reason: the
        # connection broke, or the server has just said that it does not offer this.
        if not heard:
            return Unheard()
        return Unavailable(f"the connection to the server broke ({error.code().name}); trying again is safe")
    return problem


def silence() -> Unavailable:
    return Unavailable(
        f"the server has said nothing for {LOOK_SECONDS * SILENT_LOOKS:g} s, so it hangs; trying again is safe"
    )


def _too_late(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(Unavailable("the server did not answer in time; trying again is safe"))

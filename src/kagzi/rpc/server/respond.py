"""One call, from the bytes of its request to the bytes of its response: the same however it came.

Requests are read here rather than by gRPC, which would answer a malformed one with INTERNAL. Every call has a deadline,
and what goes wrong becomes a status in one place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message

from kagzi._proto.v1.common_pb2 import ErrorDetail
from kagzi.access.shares import Room
from kagzi.errors import InvalidRequest
from kagzi.ports.interruption import Interruptible
from kagzi.ports.requests import request_id
from kagzi.rpc import limits
from kagzi.rpc.methods import Method
from kagzi.rpc.server.calls import CallAlone
from kagzi.rpc.server.parts import FEW_BYTES, Parts
from kagzi.rpc.server.services.host import Call, Host
from kagzi.rpc.server.services.traces import Handle, traced
from kagzi.rpc.status import describe, not_ready, too_slow

log = logging.getLogger("kagzi.rpc")

_OUR_FAULT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


# What is answered without the database.
_ALWAYS: Final = frozenset({"HealthCheck", "GetServerInfo"})


class Guard:
    """Stands before every call. This one lets everybody in."""

    async def receive(self, method: Method, call: CallAlone) -> Room | None:  # noqa: ARG002
        """Returns the room for the bytes of a request, of which nothing is read yet; None: they need no room of their
        own. Raises if the caller may not make the call."""
        return None

    async def __call__(self, method: Method, request: Any, call: Any, handle: Handle) -> Message:  # noqa: ARG002
        """Answers a request that is read with `handle`, or raises if the caller may not make it."""
        return await handle(request, call)


class Failed(Exception):
    """A call that has failed, as its caller is told."""

    def __init__(self, status: grpc.StatusCode, detail: ErrorDetail) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail


class Overdue:
    """Ends calls that take too long. It looks at them now and then: a timer for each of them would be dear."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun: dict[Interruptible, float] = {}  # calls under way, in the order of their beginning
        self._timer: asyncio.TimerHandle | None = None

    async def unless(self, answer: Callable[[], Awaitable[Message]]) -> Message | None:
        """Returns the response; None if the call was ended."""
        if self._timer is None:
            self._look_later()
        with Interruptible() as call:
            self._begun[call] = self._loop.time()
            try:
                return await answer()
            finally:
                del self._begun[call]
        return None

    def end_all(self) -> None:
        """Ends the calls that are under way."""
        for call in list(self._begun):
            call.interrupt()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(_most_seconds() / 8, self._look)

    def _look(self) -> None:
        self._timer = None
        oldest = self._loop.time() - _most_seconds()
        for call, begun in self._begun.items():
            if begun > oldest:
                break
            call.interrupt()
        if self._begun:
            self._look_later()


class Responder:
    """Answers the calls of one method."""

    def __init__(self, method: Method, handle: Handle, host: Host, guard: Guard | None, overdue: Overdue) -> None:
        self.method = method
        self._host = host
        self._handle = handle if host.tracer is None else traced(host.tracer, method.path[1:], handle)
        self._guard = guard
        self._overdue = Overdue() if method.rpc in _ALWAYS else overdue
        self._parse = method.request.FromString
        self._parts = Parts(method.request)
        self._count = partial(host.engine.metrics.rpc_answered, method.rpc)
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._soon = loop.call_soon

    async def __call__(self, data: bytes, call: Call) -> bytes:
        """Returns the bytes of the response; raises Failed."""
        begun = self._time()
        try:
            self.check_ready()
            # To read a large request is much work, for which the others do not wait.
            request = self._read(data) if len(data) <= FEW_BYTES else await asyncio.to_thread(self._read, data)
            response = await self._answer(request, call)
            if response is None:
                raise too_slow() if self._host.ready() else not_ready()
            answer = response.SerializeToString()
            self._soon(self._count, "OK", self._time() - begun)  # the answer goes first
            return answer
        except asyncio.CancelledError:
            self._count("CANCELLED", self._time() - begun)
            raise
        except Exception as error:
            failed = self.refused(error, call, self._time() - begun)
        try:
            raise failed
        finally:
            del failed  # whose frame is this one: the request would stay until the garbage is collected

    def refused(self, error: Exception, call: Call, taken: float = 0.0) -> Failed:
        """Logs and counts an error, and returns what the caller is told."""
        failed = failure(error, self.method.rpc, call, self._host)
        error.__traceback__ = None  # a future that holds the error is in one of its frames
        self._count(failed.status.name, taken)
        return failed

    def check_ready(self) -> None:
        """Refuses what needs the database while that is out of reach, before anything else is done for it."""
        if self.method.rpc not in _ALWAYS:
            self._host.check_ready()

    def _answer(self, request: Message, call: Call) -> Awaitable[Message | None]:
        if self._guard is None:
            return self._overdue.unless(partial(self._handle, request, call))
        return self._overdue.unless(partial(self._guard, self.method, request, call, self._handle))

    def _read(self, data: bytes) -> Message:
        if len(data) > self.method.most_bytes:
            raise InvalidRequest(
                f"the {self.method.rpc}Request has {len(data):,} bytes; at most {self.method.most_bytes:,} are taken"
            )
        self._parts.check(data)
        try:
            return self._parse(data)
        except DecodeError:
            raise InvalidRequest(f"the request is not a readable {self.method.rpc}Request") from None


def _most_seconds() -> float:
    return limits.LONGEST_WAIT_SECONDS + limits.CALL_SECONDS


def failure(error: Exception, rpc: str, call: Call, host: Host) -> Failed:
    """Logs an error, and returns what the caller is told."""
    name = request_id(call.invocation_metadata(), host.ids)
    status, detail = describe(error, lambda: name)
    detail.metadata["request_id"] = name
    if status is not grpc.StatusCode.INTERNAL:  # which is in the log by now
        expected = host.closing.is_set()  # that a server which stops sends callers away is no trouble
        level = logging.WARNING if status in _OUR_FAULT and not expected else logging.DEBUG
        log.log(level, "%s failed: %s: %s", rpc, status.name, detail.message, extra={"request_id": name})
    return Failed(status, detail)

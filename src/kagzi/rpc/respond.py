"""One call, from the bytes of its request to the bytes of its response: the same however it came.

Requests are read here rather than by gRPC, which would answer a malformed one with INTERNAL. Every call has a deadline,
and what goes wrong becomes a status in one place.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError, Message

from kagzi._proto.v1.common_pb2 import ErrorDetail
from kagzi.errors import InvalidRequest
from kagzi.requests import request_id
from kagzi.rpc import limits
from kagzi.rpc.methods import Method
from kagzi.rpc.services.host import Call, Host
from kagzi.rpc.services.traces import Handle, traced
from kagzi.rpc.status import describe, too_slow

log = logging.getLogger("kagzi.rpc")

_OUR_FAULT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class Guard(Protocol):
    """Stands before every call, once its request is read: answers it with `handle`, or raises if the caller may not
    make it."""

    async def __call__(self, method: Method, request: Any, call: Any, handle: Handle) -> Message: ...


class Failed(Exception):
    """A call that has failed, as its caller is told."""

    def __init__(self, status: grpc.StatusCode, detail: ErrorDetail) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail


class Responder:
    """Answers the calls of one method."""

    def __init__(self, method: Method, handle: Handle, host: Host, guard: Guard | None) -> None:
        self._method = method
        self._handle = handle if host.tracer is None else traced(host.tracer, method.path[1:], handle)
        self._host = host
        self._guard = guard
        self._read = method.request.FromString
        self._count = partial(host.engine.metrics.rpc_answered, method.rpc)
        self._time = asyncio.get_running_loop().time

    async def __call__(self, data: bytes, call: Call) -> bytes:
        """Raises Failed."""
        error: Exception
        begun = self._time()
        try:
            request = self._read(data)
            async with asyncio.timeout(limits.LONGEST_WAIT_SECONDS + limits.CALL_SECONDS):
                if self._guard is None:
                    response = await self._handle(request, call)
                else:
                    response = await self._guard(self._method, request, call, self._handle)
            answer = response.SerializeToString()
            self._count("OK", self._time() - begun)
            return answer
        except asyncio.CancelledError:
            self._count("CANCELLED", self._time() - begun)
            raise
        except DecodeError:
            error = InvalidRequest(f"the request is not a readable {self._method.rpc}Request")
        except TimeoutError:
            error = too_slow()
        except Exception as problem:
            error = problem
        failed = failure(error, self._method.rpc, call, self._host)
        self._count(failed.status.name, self._time() - begun)
        raise failed


def failure(error: Exception, rpc: str, call: Call, host: Host) -> Failed:
    """What to tell the caller, after the log has been told."""
    name = request_id(call.invocation_metadata(), host.ids)
    status, detail = describe(error, lambda: name)
    detail.metadata["request_id"] = name
    if status is not grpc.StatusCode.INTERNAL:  # which is in the log by now
        level = logging.WARNING if status in _OUR_FAULT else logging.DEBUG
        log.log(level, "%s failed: %s: %s", rpc, status.name, detail.message, extra={"request_id": name})
    return Failed(status, detail)

"""Starts of runs: many in one call, or one together with its end.

Starts of many callers share calls (`outbox.py`), and so do those who wait for results (`waits.py`). A caller who comes
alone and waits for the result has nobody to share with: then one call starts the run and brings its end, if that comes
soon, and both sides are spared the way to and fro in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from kagzi._proto.v1 import workflow_pb2 as pb
from kagzi.api.operations import Started
from kagzi.core.instant import SECOND, Span
from kagzi.errors import KagziError
from kagzi.rpc.client.line import WRITE_SECONDS, Line
from kagzi.rpc.client.outbox import Outbox
from kagzi.rpc.convert.runs import started_from_wire
from kagzi.rpc.status import error_of

_SERVICE: Final = "WorkflowService"
# What takes longer is waited for together with others. Short also because the answer says that the run is stored.
_SOON: Final[Span] = SECOND
_MOST_ALONE: Final = 8  # calls under way at once


class Starts:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._shared: Outbox[pb.StartWorkflowRequest, Started] = Outbox(self._send, parallel=2)
        self._alone: set[asyncio.Future[None]] = set()  # calls under way
        self._closed = False

    def submit(
        self, namespace: str, start: pb.StartWorkflowRequest, weight: int, *, awaited: bool
    ) -> Awaitable[Started]:
        if not awaited or self._closed or not self._shared.idle or len(self._alone) >= _MOST_ALONE:
            return self._shared.submit(namespace, start, weight)
        start.namespace, start.wait_us = namespace, _SOON
        return self._send_alone(start)

    async def close(self) -> None:
        """Refuse new starts and wait for those already here."""
        self._closed = True
        if self._alone:
            await asyncio.wait(list(self._alone))
        await self._shared.close()

    async def _send_alone(self, start: pb.StartWorkflowRequest) -> Started:
        answered: asyncio.Future[None] = self._loop.create_future()
        self._alone.add(answered)
        try:
            response = await self._line.call(
                _SERVICE, "StartWorkflow", start, pb.StartWorkflowResponse, seconds=WRITE_SECONDS
            )
            return started_from_wire(response)
        finally:
            self._alone.discard(answered)
            answered.set_result(None)

    async def _send(self, namespace: str, starts: list[pb.StartWorkflowRequest]) -> list[Started | KagziError]:
        answer = await self._line.call(
            _SERVICE,
            "StartWorkflows",
            pb.StartWorkflowsRequest(namespace=namespace, starts=starts),
            pb.StartWorkflowsResponse,
            seconds=WRITE_SECONDS,
        )
        return [
            error_of(result.error) if result.HasField("error") else started_from_wire(result.started)
            for result in answer.results
        ]

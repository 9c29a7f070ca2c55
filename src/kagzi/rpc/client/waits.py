"""Waits for many runs by few calls.

Waiters share WaitWorkflows calls. What is new goes out at once in a call of its own; when there are several under way,
the one with the fewest runs is given up and its runs go along. The server remembers what it was asked for, so neither
that nor asking again costs it a query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kagzi.core.instant import SECOND, Span
from kagzi.core.run import Run
from kagzi.errors import KagziError, NotFound, Unavailable

Ask = Callable[[str, list[str], Span], Awaitable[tuple[list[Run], list[str]]]]

_CALLS: Final = 8
_RUNS: Final = 5000  # in one call
_WAIT: Final[Span] = 50 * SECOND
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_PATIENCE: Final = 2.0  # with a server that is out of reach; one that restarts is back before that


class Waiting:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, _Lane] = {}
        self._closed = False

    async def wait(self, namespace: str, run_id: str) -> Run:
        """Returns the run when it has finished."""
        if self._closed:
            raise Unavailable("the engine is closed")
        lane = self._lanes.get(namespace)
        if lane is None:
            lane = self._lanes[namespace] = _Lane(namespace)
        future: asyncio.Future[Run] = self._loop.create_future()
        waiters = lane.waiters.get(run_id)
        if waiters is None:
            waiters = lane.waiters[run_id] = set()
            lane.fresh[run_id] = None
            self._schedule(lane)
        waiters.add(future)
        try:
            return await future
        finally:
            waiters.discard(future)
            if not waiters and lane.waiters.get(run_id) is waiters:
                del lane.waiters[run_id]
                lane.fresh.pop(run_id, None)

    async def close(self) -> None:
        self._closed = True
        for lane in list(self._lanes.values()):
            for call in lane.calls:
                call.cancel()
            if lane.calls:
                await asyncio.wait(list(lane.calls))
            _fail(lane, list(lane.waiters), Unavailable("the engine was closed while waiting for a run"))

    def _schedule(self, lane: _Lane) -> None:
        if not lane.scheduled and not self._closed:
            lane.scheduled = True
            self._loop.call_soon(self._flush, lane)

    def _flush(self, lane: _Lane) -> None:
        lane.scheduled = False
        if self._closed:
            return
        run_ids = list(lane.fresh)
        lane.fresh.clear()
        if run_ids and len(lane.calls) >= _CALLS:
            smallest = min(lane.calls, key=lambda call: len(lane.calls[call]))
            run_ids += lane.calls.pop(smallest)
            smallest.cancel()
        for begin in range(0, len(run_ids), _RUNS):
            asked = run_ids[begin : begin + _RUNS]
            task = self._loop.create_task(self._call(lane, asked), name="kagzi-wait")
            lane.calls[task] = asked
            task.add_done_callback(lambda task: self._called(lane, task))

    async def _call(self, lane: _Lane, run_ids: list[str]) -> None:
        wanted = [run_id for run_id in run_ids if run_id in lane.waiters]
        if not wanted:
            return
        try:
            runs, unknown = await self._ask(lane.namespace, wanted, _WAIT)
        except Unavailable as error:
            # By time and not by number: when a server dies, all calls fail together.
            if lane.failing_since is None:
                lane.failing_since = self._loop.time()
            failing = self._loop.time() - lane.failing_since
            if failing >= _PATIENCE:
                # Those who wait decide whether to go on.
                _fail(lane, wanted, error)
            await asyncio.sleep(max(_FIRST_PAUSE, min(failing, _LONGEST_PAUSE)))
            return
        except KagziError as error:
            _fail(lane, wanted, error)
            return
        lane.failing_since = None
        for run in runs:
            for future in lane.waiters.pop(run.run_id, ()):
                if not future.done():
                    future.set_result(run)
        for run_id in unknown:
            _fail(lane, [run_id], NotFound(f"there is no run {run_id} in namespace {lane.namespace}"))

    def _called(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        run_ids = lane.calls.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _fail(lane, run_ids or [], KagziError(f"waiting for runs failed: {type(error).__name__}"))
        if run_ids is None:
            return  # given up; its runs went along with another call
        for run_id in run_ids:
            if run_id in lane.waiters:
                lane.fresh[run_id] = None
        if lane.fresh:
            self._schedule(lane)
        elif not lane.calls and not lane.waiters:
            self._lanes.pop(lane.namespace, None)


class _Lane:
    __slots__ = ("calls", "failing_since", "fresh", "namespace", "scheduled", "waiters")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.waiters: dict[str, set[asyncio.Future[Run]]] = {}
        self.fresh: dict[str, None] = {}  # in no call
        self.calls: dict[asyncio.Task[None], list[str]] = {}
        self.scheduled = False
        self.failing_since: float | None = None


def _fail(lane: _Lane, run_ids: list[str], error: KagziError) -> None:
    for run_id in run_ids:
        for future in lane.waiters.pop(run_id, ()):
            if not future.done():
                future.set_exception(type(error)(str(error)))

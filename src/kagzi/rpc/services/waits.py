"""Who waits for the end of which run.

A client asks again and again for those of its runs that have not ended. So a wait outlives the call that began it: the
engine is asked once for each run, a repeated question costs a look into a dictionary, and an end between two calls is
there for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from kagzi.api.workflows import WorkflowService
from kagzi.core.instant import SECOND, Span
from kagzi.core.run import Run
from kagzi.errors import KagziError, NotFound

_KEPT_SECONDS: Final = 10.0  # after the last call that asked
_WAIT: Final[Span] = 3600 * SECOND
_MOST: Final = 100_000


class _Wait:
    __slots__ = ("asked_at", "calls", "task")

    def __init__(self, task: asyncio.Future[Run]) -> None:
        self.task = task
        self.calls: set[asyncio.Future[None]] = set()
        self.asked_at = 0.0


class Waits:
    def __init__(self, workflows: WorkflowService) -> None:
        self._workflows = workflows
        self._loop = asyncio.get_running_loop()
        self._waits: dict[tuple[str, str], _Wait] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def any_of(
        self, namespace: str, run_ids: Iterable[str], wait: Span
    ) -> tuple[list[Run], list[str], KagziError | None]:
        """Runs that have finished, ids of those that do not exist, and what else went wrong."""
        waits = {run_id: self._wait(namespace, run_id) for run_id in run_ids}
        if waits and not any(entry.task.done() for entry in waits.values()):
            await self._first_of(list(waits.values()), wait)
        runs: list[Run] = []
        unknown: list[str] = []
        trouble: KagziError | None = None
        for run_id, entry in waits.items():
            if not entry.task.done():
                continue
            try:
                run = entry.task.result()
                if run.status.finished:
                    runs.append(run)
                    continue  # until it was sent
            except NotFound:
                unknown.append(run_id)
            except KagziError as error:
                trouble = error
            except asyncio.CancelledError:
                pass
            self._waits.pop((namespace, run_id), None)
        return runs, unknown, trouble

    def sent(self, run: Run) -> None:
        """The run's end is on its way to whoever asked. Should it get lost, the engine knows it."""
        self._waits.pop((run.namespace, run.run_id), None)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for entry in self._waits.values():
            entry.task.cancel()
        self._waits.clear()

    def _wait(self, namespace: str, run_id: str) -> _Wait:
        key = (namespace, run_id)
        entry = self._waits.get(key)
        if entry is None:
            if len(self._waits) >= _MOST:
                self._forget(0.0)
            entry = _Wait(self._loop.create_task(self._workflows.wait(namespace, run_id, _WAIT)))
            self._waits[key] = entry
            entry.task.add_done_callback(lambda task: _wake(entry, task))
            if self._sweep is None:
                self._sweep = self._loop.call_later(_KEPT_SECONDS, self._clean)
        entry.asked_at = self._loop.time()
        return entry

    async def _first_of(self, waits: list[_Wait], wait: Span) -> None:
        call: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(wait / SECOND, _set, call)
        for entry in waits:
            entry.calls.add(call)
        try:
            await call
        finally:
            timer.cancel()
            now = self._loop.time()
            for entry in waits:
                entry.calls.discard(call)
                entry.asked_at = now

    def _clean(self) -> None:
        self._sweep = None
        self._forget(_KEPT_SECONDS)
        if self._waits:
            self._sweep = self._loop.call_later(_KEPT_SECONDS, self._clean)

    def _forget(self, kept: float) -> None:
        oldest = self._loop.time() - kept
        for key, entry in list(self._waits.items()):
            if not entry.calls and entry.asked_at <= oldest:
                entry.task.cancel()
                del self._waits[key]


def _wake(entry: _Wait, task: asyncio.Future[Run]) -> None:
    if not task.cancelled():
        task.exception()  # counts as retrieved, should nobody ask again
    for call in entry.calls:
        _set(call)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""Waits for the ends of runs, on behalf of clients.

A client asks again and again for those of its runs that have not ended. So a wait outlives the call that began it: the
engine is asked once for each run, a repeated question costs a look into a dictionary, and an end between two calls is
there for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, Final

from kagzi.api.reply import Reply
from kagzi.api.workflows import HostedWorkflows
from kagzi.core.instant import SECOND, Span
from kagzi.core.run import Run
from kagzi.errors import KagziError, NotFound

RunKey = tuple[str, str]  # (namespace, run id)

_KEPT_SECONDS: Final = 10.0  # after the last call that asked
_WAIT: Final[Span] = 3600 * SECOND
_MOST: Final = 100_000


class _Wait:
    """The wait for one run, whose end is expected, or looked for by a task, or known."""

    __slots__ = ("asked_at", "calls", "end", "expected", "task")

    def __init__(self) -> None:
        self.end: Run | Exception | None = None
        self.expected: Reply[Run | None] | None = None
        self.task: asyncio.Task[Run] | None = None
        self.calls: set[asyncio.Future[None]] = set()
        self.asked_at = 0.0

    def settle(self, end: Run | Exception) -> None:
        self.end = end
        self.expected = self.task = None
        for call in self.calls:
            _set(call)


class Waits:
    def __init__(self, workflows: HostedWorkflows) -> None:
        self._workflows = workflows
        self._loop = asyncio.get_running_loop()
        self._waits: dict[RunKey, _Wait] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def any_of(
        self, namespace: str, run_ids: Iterable[str], wait: Span
    ) -> tuple[list[Run], list[str], KagziError | None]:
        """Returns runs that have finished, ids of those that do not exist, and other errors."""
        waits = {run_id: self._wait(namespace, run_id) for run_id in run_ids}
        if waits and all(entry.end is None for entry in waits.values()):
            await self._first_of(list(waits.values()), wait)
        runs: list[Run] = []
        unknown: list[str] = []
        trouble: KagziError | None = None
        for run_id, entry in waits.items():
            end = entry.end
            if end is None:
                continue
            if isinstance(end, Run) and end.status.finished:
                runs.append(end)
                continue  # until it was sent
            self._waits.pop((namespace, run_id), None)
            if isinstance(end, NotFound):
                unknown.append(run_id)
            elif isinstance(end, KagziError):
                trouble = end
            elif isinstance(end, Exception):
                raise end
        return runs, unknown, trouble

    def sent(self, run: Run) -> None:
        """Notes that the run's end is on its way to the caller who asked. Should it get lost, the engine knows it."""
        self._waits.pop((run.namespace, run.run_id), None)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for key, entry in self._waits.items():
            self._give_up(key, entry)
        self._waits.clear()

    def _wait(self, namespace: str, run_id: str) -> _Wait:
        key = (namespace, run_id)
        entry = self._waits.get(key)
        if entry is None:
            if len(self._waits) >= _MOST:
                self._forget(0.0)
            entry = self._waits[key] = _Wait()
            self._begin(key, entry)
            if self._sweep is None:
                self._sweep = self._loop.call_later(_KEPT_SECONDS, self._clean)
        entry.asked_at = self._loop.time()
        return entry

    def _begin(self, key: RunKey, entry: _Wait) -> None:
        entry.expected = self._workflows.expect(*key)
        if entry.expected is None:
            self._look(entry, self._workflows.wait(*key, _WAIT))
        else:
            entry.expected.then(partial(self._heard, key, entry))

    def _heard(self, key: RunKey, entry: _Wait, end: Run | Exception | None) -> None:
        if end is None:
            entry.expected = None
            self._look(entry, self._find(*key))
        else:
            entry.settle(end)

    async def _find(self, namespace: str, run_id: str) -> Run:
        run = await self._workflows.get(namespace, run_id)
        return run if run.status.finished else await self._workflows.wait(namespace, run_id, _WAIT)

    def _look(self, entry: _Wait, looking: Coroutine[Any, Any, Run]) -> None:
        entry.task = self._loop.create_task(looking)
        entry.task.add_done_callback(partial(_found, entry))

    def _give_up(self, key: RunKey, entry: _Wait) -> None:
        if entry.expected is not None:
            self._workflows.unexpect(*key, entry.expected)
        if entry.task is not None:
            entry.task.cancel()

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
                self._give_up(key, entry)
                del self._waits[key]


def _found(entry: _Wait, task: asyncio.Task[Run]) -> None:
    if not task.cancelled():
        error = task.exception()
        entry.settle(task.result() if not isinstance(error, Exception) else error)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

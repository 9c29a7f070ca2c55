"""Noticing that nothing can happen any more.

The background duties of an engine look at the database for ever, so on virtual time an event loop never runs out of
timers, and a test that waits for a run nobody executes would go through the centuries without end. What tells such a
test from one that is only patient: for more than a year nothing was recorded, no run is due later, and nobody has set a
timer for later either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar, cast

from kagzi.api.engine import Engine
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import SECOND
from kagzi.core.run import Run, RunStatus
from kagzi.testing.virtual import Deadlock, VirtualLoop

T = TypeVar("T")

_DAY = 86_400.0
_LOOK = 10 * _DAY  # longer than any timer of the engine's own
_LOOKS = 40
_MOST_NAMED = 3


async def unless_stuck(
    work: Awaitable[T], engine: Engine, *, namespace: str, queues: Sequence[str], loop: VirtualLoop | None = None
) -> T:
    """What `work` comes to; Deadlock if it waits for something that cannot happen. `loop` is the one on which time
    passes, if that is not the running one."""
    loop = loop or cast(VirtualLoop, asyncio.get_running_loop())
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_stillness(engine, namespace, loop))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Deadlock(_describe(watching.result(), queues))
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _stillness(engine: Engine, namespace: str, loop: VirtualLoop) -> list[Run]:
    """Returns when there is no hope, with the runs that are still there."""
    runs: list[Run] = []
    before: object = None
    quiet = 0
    while quiet < _LOOKS:
        await asyncio.sleep(_LOOK)
        runs = [run async for run in _live(engine, namespace)]
        # Not the runs as they are: one that waits for a signal is looked at every day, in case that was missed.
        seen = [(run.run_id, run.attempts, await engine.workflows.steps(namespace, run.run_id)) for run in runs]
        later = loop.clock.now() + round(_LOOK * SECOND)
        hope = loop.waits_for_later_than(_LOOK) or any((run.available_at or 0) > later for run in runs)
        quiet = 0 if hope or seen != before else quiet + 1
        before = seen
    return runs


async def _live(engine: Engine, namespace: str) -> AsyncIterator[Run]:
    for status in (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SLEEPING):
        wanted = RunFilter(namespace=namespace, status=status)
        token: str | None = None
        while True:
            page = await engine.workflows.list(wanted, page_size=100, page_token=token)
            for run in page.items:
                yield run
            if (token := page.next) is None:
                break


def _describe(runs: list[Run], queues: Sequence[str]) -> str:
    told = f"nothing has happened for {_LOOK * _LOOKS / _DAY:.0f} virtual days and nothing is due later"
    if not runs:
        return f"{told}: no run is left, and the scenario still waits"
    some = ", ".join(
        f"{run.workflow_type} {run.run_id} is {run.status.value} in queue {run.task_queue!r}"
        for run in runs[:_MOST_NAMED]
    )
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return f"{told}: {some}{more}; the worker here serves {', '.join(map(repr, queues))}"

"""The simulated application and its steps, as a user writes them.

Step bodies tell the world's ledger when they begin and end; what they return depends on their arguments and on the
number of the attempt only, so that each program has a known answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kagzi.app import Kagzi
from kagzi.core.retry import Retry
from kagzi.sdk import context as kagzi
from kagzi.testing.simulation.process import Crash, ProcessLoop

if TYPE_CHECKING:
    from kagzi.testing.simulation.ledger import Visit


class App(Kagzi):
    """Its steps are executed by many processes, each of which has an app of its own."""

    async def cancel_child(self, run_id: str) -> bool:
        return await _here().cancel_child(run_id)

    async def signal_child(self, run_id: str, name: str, value: str) -> None:
        await _here().signal_child(run_id, name, value)


def _here() -> Kagzi:
    """The app of the process in which this step is executed."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    app: Kagzi | None = loop.process.world.node_of(loop.process).app
    assert app is not None
    return app


app = App("memory://", namespace="default")

RUN_ATTEMPTS = 3
# The most attempts each step may have; the ledger holds recorded failures against it.
ATTEMPTS = {
    "step": 4,
    "flaky": 6,
    "patient": 4,
    "broken": 3,
    "stuck": 1,
    "spoil": 4,
    "poison": 4,
    "gatekeeper": 1,
    "hasty": 4,
}
_FAST = Retry(attempts=4, first="30ms", factor=2, jitter=0.5)


class Flaky(Exception):
    """Works the next time, or the time after that."""


class Broken(Exception):
    """Never works."""


class Refused(Exception):
    """The gatekeeper wants the run to be tried again."""


# Each step is given the `position` of the workflow that asks for it: all of that must be durable before its body
# begins.


def position() -> int:
    """The number of the last event this workflow has seen."""
    seen: int = asyncio.get_running_loop().execution.events  # type: ignore[attr-defined]
    return seen


def _enter(position: int) -> Visit:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    visit: Visit = loop.process.world.ledger.enter(loop.process, position)
    return visit


async def _work(visit: Visit, length: int, cleanup: int = 0) -> None:
    try:
        if length:
            await asyncio.sleep(length / 1000)
    except asyncio.CancelledError:
        visit.cancelled()
        if cleanup:
            await asyncio.sleep(cleanup / 1000)
        visit.left("cancelled")
        raise


@app.step(retry=_FAST)
async def step(number: int, length: int, position: int) -> Any:
    visit = _enter(position)
    await _work(visit, length, cleanup=700 if number % 2 else 0)
    visit.left("returned")
    return (number, "done")  # a tuple, which the workflow sees as a list


@app.step(retry=Retry(attempts=6, first="20ms", factor=2, cap="2s"))
async def flaky(number: int, failures: int, length: int, position: int) -> Any:
    visit = _enter(position)
    await _work(visit, length)
    if kagzi.attempt() <= failures:
        visit.left("raised")
        raise Flaky(f"{number} failed for the {kagzi.attempt()}. time")
    visit.left("returned")
    return (number, kagzi.attempt())


@app.step(retry=Retry(attempts=4, first="1500ms", factor=1, cap="5s"))
async def patient(number: int, failures: int, position: int) -> Any:
    """Waits so long between its attempts that the run is parked meanwhile."""
    visit = _enter(position)
    if kagzi.attempt() <= failures:
        visit.left("raised")
        raise Flaky(f"{number} failed for the {kagzi.attempt()}. time")
    visit.left("returned")
    return (number, kagzi.attempt())


@app.step(retry=Retry(attempts=3, first="10ms"))
async def broken(number: int, attempts: int, position: int) -> Any:  # noqa: ARG001
    visit = _enter(position)
    visit.left("raised")
    error = Broken(f"{number} is broken for the {kagzi.attempt()}. time")
    error.scar = object()  # type: ignore[attr-defined]  # does not survive being stored
    raise error


@app.step(retry=Retry.none, timeout="300ms")
async def stuck(number: int, position: int) -> Any:  # noqa: ARG001
    visit = _enter(position)
    await _work(visit, 3_600_000)


@app.step(retry=_FAST)
async def spoil(items: list[int], position: int) -> None:
    visit = _enter(position)
    items.append(-1)  # its own copy
    visit.left("returned")


@app.step(retry=_FAST)
async def poison(number: int, crashes: int, position: int) -> Any:
    visit = _enter(position)
    if visit.entries <= crashes:
        visit.crash()
        raise Crash
    visit.left("returned")
    return (number, "done")


@app.step(retry=Retry.none)
async def gatekeeper(refusals: int, position: int) -> Any:
    """Lets the run pass once it has been tried often enough."""
    visit = _enter(position)
    if visit.run_attempts < refusals:
        visit.left("raised")
        raise Refused(f"not before it was tried {refusals} times more")
    visit.left("returned")
    return "passed"

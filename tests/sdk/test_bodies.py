"""The ends of step bodies: each is told once, and only of the body that is still wanted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kagzi.core.instant import SECOND, Span
from kagzi.core.retry import Retry
from kagzi.sdk.replay.waits import StepCall
from kagzi.sdk.signature import signature_of
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.bodies import Bodies


class Told:
    """Stands for the attempt: writes down what it is told, and whether it was told inside of a task."""

    run_id = "run"
    workflow = "workflow"
    claim = SimpleNamespace(namespace="default")
    trace = None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.heard: list[tuple[str, Any]] = []
        self.wanted = False

    def about(self) -> dict[str, str]:
        return {"run_id": self.run_id}

    def wants(self, call: StepCall) -> bool:
        return self.wanted

    def step_returned(self, call: StepCall, value: object) -> None:
        self._hear("returned", value)

    def step_raised(self, call: StepCall, error: BaseException) -> None:
        self._hear("raised", str(error))

    gone = False

    def lease_holds(self) -> bool:
        return True

    def show(self, call: StepCall) -> None:
        call.shown = True

    def body_ended(self, call: StepCall) -> None:
        self._hear("ended", None)

    def _hear(self, what: str, value: object) -> None:
        assert asyncio.current_task() is None
        self.heard.append((what, value))


def call_of(fn: Callable[..., Any], timeout: Span | None = None) -> StepCall:
    return StepCall(
        step_id=fn.__name__,
        name=fn.__name__,
        fn=fn,
        codec=signature_of(fn),
        policy=Retry(),
        timeout=timeout,
        args=(),
        kwargs={},
        input=b"[]",
        stored=b"[]",
        input_hash=1,
    )


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def bodies() -> Bodies:
    return Bodies(monotonic=lambda: 0, threads=0)


async def test_bodies_that_end_in_one_turn_are_told_of_outside_of_their_tasks(bodies: Bodies) -> None:
    async def seven() -> int:
        return 7

    async def bad() -> None:
        raise ValueError("bad")

    async def leaves() -> None:
        raise SystemExit("leaves")

    told = Told()
    for fn in (seven, bad, leaves):
        bodies.start(cast("Attempt", told), call_of(fn), 0)
    await turns()
    assert told.heard == [("returned", 7), ("raised", "bad"), ("raised", "leaves")]
    bodies.close()


@pytest.mark.parametrize("begun", [False, True], ids=["before its first turn", "while it waits"])
async def test_a_cancelled_body_ends_once(bodies: Bodies, begun: bool) -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    told = Told()
    call = call_of(waits)
    bodies.start(cast("Attempt", told), call, 0)
    if begun:
        await turns()
    bodies.cancel(call)
    await turns()
    assert told.heard == [("ended", None)]
    bodies.close()


async def test_a_body_that_cancels_itself_has_failed(bodies: Bodies) -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    told = Told()
    told.wanted = True
    bodies.start(cast("Attempt", told), call_of(gives_up), 0)
    await turns()
    assert told.heard == [("raised", "step gives_up cancelled itself")]
    bodies.close()


async def test_a_body_that_was_given_up_does_not_speak_for_the_next_attempt(bodies: Bodies) -> None:
    doors = [asyncio.Event(), asyncio.Event()]
    waiting = iter(enumerate(doors))

    async def slow() -> int:
        number, door = next(waiting)
        try:
            await door.wait()
        except asyncio.CancelledError:
            await door.wait()
        return number

    told = Told()
    call = call_of(slow)
    bodies.start(cast("Attempt", told), call, 0)
    await turns()
    bodies.cancel(call)
    told.loop.call_soon(bodies._give_up, call)
    await turns(1)
    bodies.start(cast("Attempt", told), call, 0)
    await turns()
    doors[0].set()
    await turns()
    assert told.heard == [("ended", None)]
    doors[1].set()
    await turns()
    assert told.heard == [("ended", None), ("returned", 1)]
    bodies.close()


async def test_the_timeout_of_a_def_step_begins_when_a_thread_has_taken_it() -> None:
    now: Span = 0
    bodies = Bodies(monotonic=lambda: now, threads=1)
    began = [threading.Event(), threading.Event()]
    doors = [threading.Event(), threading.Event()]
    numbers = iter(range(2))

    def slow() -> int:
        number = next(numbers)
        began[number].set()
        doors[number].wait(30)
        return number

    told = Told()
    calls = [call_of(slow), call_of(slow, timeout=2 * SECOND)]
    try:
        for call in calls:
            bodies.start(cast("Attempt", told), call, now)
        await asyncio.to_thread(began[0].wait, 30)
        now = 10 * SECOND
        bodies._sweep()
        assert (calls[0].shown, calls[1].shown, told.heard) == (True, False, [])
        doors[0].set()
        await asyncio.to_thread(began[1].wait, 30)
        now += 2 * SECOND - 1
        bodies._sweep()
        assert calls[1].shown
        assert calls[1].started_at == 10 * SECOND
        assert told.heard == [("returned", 0)]
        now += 1
        told.loop.call_soon(bodies._sweep)
        await turns()
        assert told.heard == [("returned", 0), ("raised", "step slow ran longer than its timeout of 2 s")]
    finally:
        for door in doors:
            door.set()
        bodies.close()


async def test_a_body_that_waits_for_its_place_is_not_on_the_clock() -> None:
    now = [0]
    bodies = Bodies(monotonic=lambda: now[0], threads=0)
    told = cast("Attempt", Told())
    has_place = asyncio.Event()

    async def waits() -> None:
        with bodies.waiting(told, call) as begins:
            await has_place.wait()
            begins()
            await asyncio.Event().wait()

    call = call_of(waits, timeout=SECOND)
    bodies.start(told, call, 0)
    await turns()
    now[0] = 60 * SECOND
    bodies._sweep()
    assert not call.body_timed_out
    has_place.set()
    await turns()
    now[0] += SECOND // 2
    bodies._sweep()
    assert call.shown
    assert not call.body_timed_out
    now[0] += SECOND
    bodies._sweep()
    assert call.body_timed_out
    bodies.close()

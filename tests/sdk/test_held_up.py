"""Answers that are held up, and loops that are blocked: no timer fires before its time, and recorded times are true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from fractions import Fraction
from random import Random
from typing import Any, TypeVar

import pytest

import kagzi
from kagzi import Kagzi, Retry
from kagzi.coordinator.coordinator import Coordinator
from kagzi.core.instant import SECOND, Instant, from_datetime
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.ids import RandomIds
from kagzi.sdk.worker.heartbeat import HeartbeatTask
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.sdk.worker.worker import Worker
from kagzi.store.sqlite import SqliteStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.faulty import Call, FaultyEngine
from kagzi.testing.virtual import VirtualLoop

T = TypeVar("T")


class Way:
    """To an engine and back: polls take as long as it says, until the first of them has brought something."""

    def __init__(self, engine: LocalEngine, there: float, back: float) -> None:
        self._engine = engine
        self._there = there
        self._back = back

    async def carry(self, method: str, call: Call[T]) -> T:
        if method == "poll":
            await asyncio.sleep(self._there)
        answer = await call(self._engine)
        if method == "poll" and getattr(answer, "claims", ()):
            await asyncio.sleep(self._back)
            self._there = self._back = 0.0
        return answer


@pytest.fixture(params=[(0.0, 0.0), (2.0, 0.0), (0.0, 2.5), (0.3, 5.0)], ids=str)
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


class Town:
    """An app whose worker lives behind a slow way, on virtual time, with a clock of its own."""

    def __init__(self, way: tuple[float, float]) -> None:
        self.app = Kagzi("memory://")
        self.clock = VirtualClock()
        self.store: SqliteStore
        self._way = way

    def seconds(self) -> Fraction:
        return Fraction(self.clock.monotonic(), SECOND)

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        async def scenario() -> T:
            ids = RandomIds(self.clock.now, entropy=Random(1).randbytes)
            store = SqliteStore(None, now=self.clock.now, inline=True)
            settings = EngineSettings(step_grace=SECOND)
            self.store = store
            engine = LocalEngine(store, clock=self.clock, ids=ids, settings=settings, coordinate=Coordinator)
            async with engine:
                await self.app.open(engine)
                worker = Worker(
                    FaultyEngine(Way(engine, *self._way)),
                    self.app,
                    namespace=self.app.namespace,
                    clock=self.clock,
                    ids=ids,
                    settings=WorkerSettings(threads=0, adopt=False),
                    heart=HeartbeatTask,
                )
                async with worker:
                    await asyncio.sleep(1.0)  # so that a poll waits
                    return await main()

        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self.clock)) as runner:
            return runner.run(scenario())


@pytest.mark.parametrize("length", [0.2, 2.0])
@pytest.mark.parametrize("after_a_step", [False, True])
def test_sleeps_last_as_long_as_they_should(way: tuple[float, float], length: float, after_a_step: bool) -> None:
    town = Town(way)
    woke: list[Fraction] = []

    @town.app.step
    async def look() -> int:
        return 1

    @town.app.workflow
    async def sleeper() -> None:
        if after_a_step:
            await look()
        before = town.seconds()
        if not woke:
            woke.append(before)
        await asyncio.sleep(length)
        woke.append(town.seconds())

    town.run(lambda: sleeper.run())

    late = sum(way) + 0.1
    assert Fraction(str(length)) <= woke[-1] - woke[0] <= length + late


def test_a_moment_is_a_moment(way: tuple[float, float]) -> None:
    town = Town(way)
    passed: list[Fraction] = []

    @town.app.workflow
    async def until() -> None:
        moment = kagzi.now() + timedelta(seconds=10)
        await kagzi.sleep_until(moment)
        passed.append(Fraction(town.clock.now() - from_datetime(moment), SECOND))

    town.run(lambda: until.run())

    assert 0 <= passed[0] <= sum(way) + 0.1


def test_timeouts_in_a_workflow_do_not_come_early(way: tuple[float, float]) -> None:
    town = Town(way)
    took: list[Fraction] = []

    @town.app.step
    async def slow() -> str:
        await asyncio.sleep(1.9)
        return "done"

    @town.app.workflow
    async def hasty() -> str:
        began = town.seconds()
        async with asyncio.timeout(2):
            answer = await slow()
        took.append(town.seconds() - began)
        return answer

    assert town.run(lambda: hasty.run()) == "done"
    assert 1.9 <= took[0] <= 1.95


def test_a_healthy_step_is_not_failed_and_its_times_are_true(way: tuple[float, float]) -> None:
    town = Town(way)
    real: list[Instant] = []

    @town.app.step(timeout="8s", retry=Retry.none)
    async def careful() -> None:
        real.append(town.clock.now())
        await asyncio.sleep(7.5)
        real.append(town.clock.now())

    @town.app.workflow
    async def once() -> None:
        await careful()
        await careful()

    async def main() -> Any:
        run = await once.start()
        await run.result()
        return await run.steps()

    steps = town.run(main)

    for step, (began, ended) in zip(steps, [real[:2], real[2:]], strict=True):
        assert began <= from_datetime(step.started_at)
        assert ended <= from_datetime(step.finished_at)
        assert step.finished_at - step.started_at <= timedelta(seconds=7.6)


@pytest.mark.parametrize("delay", ["300ms", "3s"])
def test_retries_do_not_come_early(way: tuple[float, float], delay: str) -> None:
    town = Town(way)
    tried: list[Fraction] = []

    @town.app.step(retry=Retry(attempts=2, first=delay, factor=1, jitter=0))
    async def flaky() -> None:
        tried.append(town.seconds())
        if len(tried) == 1:
            raise RuntimeError("not yet")

    @town.app.workflow
    async def again() -> None:
        await flaky()

    town.run(lambda: again.run())

    assert tried[1] - tried[0] >= (3 if delay == "3s" else Fraction(3, 10))


def test_a_run_that_is_tried_again_waits_as_long_as_its_policy_says(way: tuple[float, float]) -> None:
    town = Town(way)
    tried: list[Fraction] = []

    @town.app.workflow(retry=Retry(attempts=2, first="2s", factor=1, jitter=0))
    async def again() -> None:
        tried.append(town.seconds())
        if len(tried) == 1:
            raise RuntimeError("not yet")

    town.run(lambda: again.run())

    assert tried[1] - tried[0] >= 2.0


def test_a_run_that_begins_with_a_timer_notes_when_and_others_do_not() -> None:
    town = Town((0.0, 2.0))

    @town.app.step
    async def look() -> int:
        return 1

    @town.app.workflow
    async def plain() -> None:
        await look()
        await asyncio.sleep(3)

    @town.app.workflow
    async def timed() -> None:
        await asyncio.sleep(3)

    async def main() -> None:
        runs = [await plain.start(), await timed.start()]
        for run in runs:
            await run.result()
        histories = [await town.store.runs.steps("default", run.id) for run in runs]
        assert [[step.step_id for step in history] for history in histories] == [
            ["look", "@sleep"],
            ["@begin", "@sleep"],
        ]
        # People see steps and sleeps.
        assert [step.step_id for step in await runs[1].steps()] == ["@sleep"]

    town.run(main)

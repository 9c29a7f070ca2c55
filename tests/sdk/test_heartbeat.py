"""How often heartbeats are sent, and what becomes of their answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kagzi.api.engine import Engine
from kagzi.api.workers import Claim, Heartbeat, HeartbeatAnswer, Registered, Registration
from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND, Span
from kagzi.errors import Unavailable
from kagzi.ids import RandomIds
from kagzi.sdk.worker.engine_clock import Bounds
from kagzi.sdk.worker.heartbeat import HeartbeatTask
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.sdk.worker.worker import Heart, Worker
from tests.engine.support import run


class Held:
    """Stands for the worker."""

    worker_id = "w"

    def __init__(self) -> None:
        self.interval: Span = 10 * SECOND

    def heartbeat(self) -> tuple[Heartbeat, Span]:
        return Heartbeat(worker_id="w", held=(), heard=0), 0

    def heartbeat_interval(self) -> Span:
        return self.interval

    def renewed(self, sent: Heartbeat, at: Span, answer: HeartbeatAnswer) -> None:
        pass

    def not_renewed(self, error: Exception) -> None:
        pass


class Engineer:
    """Writes down when heartbeats arrive; refuses the first few."""

    def __init__(self, refuse: int = 0) -> None:
        self.at: list[float] = []
        self._refuse = refuse
        self.engine = cast("Engine", SimpleNamespace(workers=self))

    async def heartbeat(self, heartbeat: Heartbeat, within: Span | None = None) -> HeartbeatAnswer:
        self.at.append(round(asyncio.get_running_loop().time(), 3))
        if len(self.at) <= self._refuse:
            raise Unavailable("not now")
        return HeartbeatAnswer()


def hearts(engineer: Engineer, held: Held) -> Any:
    return HeartbeatTask(engineer.engine, held)


def test_a_short_lease_taken_on_while_heartbeats_rest_is_renewed_in_time() -> None:
    async def main() -> None:
        engineer, held = Engineer(), Held()
        heart = hearts(engineer, held)
        await heart.start()
        await asyncio.sleep(12)
        assert engineer.at == [10]
        held.interval = 1 * SECOND
        heart.hurry()
        await asyncio.sleep(2.5)
        assert engineer.at == [10, 12, 13, 14]
        held.interval = 10 * SECOND
        await asyncio.sleep(20)
        assert engineer.at == [10, 12, 13, 14, 15, 25]
        await heart.stop()

    run(main)


def test_hurrying_for_nothing_sends_nothing() -> None:
    async def main() -> None:
        engineer, held = Engineer(), Held()
        heart = hearts(engineer, held)
        await heart.start()
        for _ in range(9):
            await asyncio.sleep(1)
            heart.hurry()
        assert engineer.at == []
        await asyncio.sleep(2)
        assert engineer.at == [10]
        await heart.stop()

    run(main)


def test_after_a_failure_the_next_one_comes_soon() -> None:
    async def main() -> None:
        engineer, held = Engineer(refuse=2), Held()
        heart = hearts(engineer, held)
        await heart.start()
        await asyncio.sleep(21)
        assert engineer.at == [10, 10.2, 10.6, 20.6]
        await heart.stop()

    run(main)


@pytest.mark.parametrize("where", ["asking the engine", "asking the worker", "telling the worker"])
def test_what_nobody_foresaw_is_told_and_heartbeats_go_on(where: str, caplog: pytest.LogCaptureFixture) -> None:
    class Stumbling(Held):
        def heartbeat(self) -> tuple[Heartbeat, Span]:
            stumble("asking the worker")
            return super().heartbeat()

        def renewed(self, sent: Heartbeat, at: Span, answer: HeartbeatAnswer) -> None:
            stumble("telling the worker")
            renewed.append(round(asyncio.get_running_loop().time(), 3))

    class Stumbler(Engineer):
        async def heartbeat(self, heartbeat: Heartbeat, within: Span | None = None) -> HeartbeatAnswer:
            stumble("asking the engine")
            return await super().heartbeat(heartbeat)

    def stumble(here: str) -> None:
        if here == where and not stumbled:
            stumbled.append(here)
            raise ZeroDivisionError("nobody foresaw this")

    stumbled: list[str] = []
    renewed: list[float] = []

    async def main() -> None:
        heart = hearts(Stumbler(), Stumbling())
        await heart.start()
        await asyncio.sleep(21)
        await heart.stop()

    run(main)
    assert renewed == [10.2, 20.2]
    (told,) = [each for each in caplog.records if each.exc_info]
    assert (told.levelname, told.getMessage()) == ("ERROR", "heartbeat failed")
    assert "nobody foresaw this" in caplog.text


def test_a_worker_taken_for_dead_registers_again_until_it_is_known() -> None:
    async def main() -> None:
        clock = SystemClock()
        registered: list[str] = []

        async def register(registration: Registration) -> Registered:
            registered.append(registration.worker_id)
            if len(registered) == 1:
                raise Unavailable("not now")
            return Registered(lease=30 * SECOND, heartbeat=10 * SECOND)

        worker = new_worker(clock, register=register)
        for known in (True, False, False, True):
            heartbeat, at = worker.heartbeat()
            worker.renewed(heartbeat, at, HeartbeatAnswer(known=known))
            await asyncio.sleep(1)
        assert registered == [worker.worker_id] * 2

    run(main)


def test_a_worker_hurries_its_heart_for_a_shorter_lease_and_only_then() -> None:
    async def main() -> None:
        clock = SystemClock()
        worker = new_worker(clock)
        hurried: list[Span] = []
        worker._heart = cast("Heart", SimpleNamespace(hurry=lambda: hurried.append(worker.heartbeat_interval())))
        for number, lease in enumerate((30, 3, 3, 30)):
            worker._hold(new_claim(f"run-{number}", lease * SECOND), Bounds(0, 0), 0)
        assert hurried == [1 * SECOND]

    run(main)


def new_worker(clock: SystemClock, **calls: Any) -> Worker:
    """A worker whose engine answers these calls."""
    engine = cast("Engine", SimpleNamespace(workers=SimpleNamespace(**{"commit": None, "read_inbox": None} | calls)))
    registry: Any = SimpleNamespace(workflow_types=lambda: (), workflow_interfaces=lambda: ())
    ids = RandomIds(clock.now)
    worker = Worker(engine, registry, namespace="default", clock=clock, ids=ids, settings=WorkerSettings())
    worker.loop = asyncio.get_running_loop()
    return worker


def new_claim(run_id: str, lease: Span) -> Claim:
    return Claim(
        namespace="default",
        run_id=run_id,
        token="token",
        workflow_type="order",
        version="1",
        task_queue="shop",
        external_id=None,
        input=b"[]",
        started_at=0,
        lease=lease,
        attempts=0,
        executions=1,
        crashes=0,
        inbox_seq=0,
        retry_policy=None,
        history=(),
    )


def test_a_lease_that_could_not_be_renewed_ends_when_it_would_have_and_is_tried_again_soon() -> None:
    async def main() -> None:
        worker = new_worker(SystemClock())
        for name in ("held", "free"):
            worker._hold(new_claim(name, 30 * SECOND), Bounds(0, 0), 0)
        before = {name: attempt.leased_at for name, attempt in worker._held.items()}
        heartbeat, _ = worker.heartbeat()
        worker.renewed(heartbeat, 20 * SECOND, HeartbeatAnswer(unrenewed=("held",)))
        assert worker._held["held"].leased_at == before["held"]
        assert worker._held["free"].leased_at == 20 * SECOND

        engineer = Engineer()
        heart = hearts(engineer, Held())

        async def held(heartbeat: Heartbeat, within: Span | None = None) -> HeartbeatAnswer:
            await Engineer.heartbeat(engineer, heartbeat, within)
            return HeartbeatAnswer(unrenewed=("held",) if len(engineer.at) == 1 else ())

        engineer.heartbeat = held  # type: ignore[method-assign]
        await heart.start()
        await asyncio.sleep(21)
        assert engineer.at == [10, 10.2, 20.2]
        await heart.stop()

    run(main)

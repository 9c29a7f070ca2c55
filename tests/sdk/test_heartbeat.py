"""How often heartbeats are sent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from kagzi.api.engine import Engine
from kagzi.api.workers import Claim, Heartbeat, HeartbeatAnswer
from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND, Span
from kagzi.errors import Unavailable
from kagzi.ids import RandomIds
from kagzi.sdk.worker.engine_clock import Bounds
from kagzi.sdk.worker.heartbeat import HeartbeatTask
from kagzi.sdk.worker.worker import Heart, Worker, WorkerSettings
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

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
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


def test_a_worker_hurries_its_heart_for_a_shorter_lease_and_only_then() -> None:
    async def main() -> None:
        clock = SystemClock()
        engine = cast("Engine", SimpleNamespace(workers=SimpleNamespace(commit=None)))
        registry: Any = SimpleNamespace(workflow_types=lambda: ())
        ids = RandomIds(clock.now)
        worker = Worker(engine, registry, namespace="default", clock=clock, ids=ids, settings=WorkerSettings())
        worker.loop = asyncio.get_running_loop()
        hurried: list[Span] = []
        worker._heart = cast("Heart", SimpleNamespace(hurry=lambda: hurried.append(worker.heartbeat_interval())))
        for number, lease in enumerate((30, 3, 3, 30)):
            worker._hold(new_claim(f"run-{number}", lease * SECOND), Bounds(0, 0), 0)
        assert hurried == [1 * SECOND]

    run(main)


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

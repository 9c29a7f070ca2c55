"""An event loop in virtual time, a store whose calls are counted, and short ways to say things."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kagzi.api.operations import (
    BirthLease,
    Chunk,
    CompleteRun,
    CompleteStep,
    FailRun,
    HandBackRun,
    Operation,
    ParkRun,
    StartRun,
)
from kagzi.api.workers import Claim, Poll, Registration
from kagzi.coordinator.coordinator import Coordinator
from kagzi.core.instant import SECOND, Instant
from kagzi.core.worker import WorkflowType
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.ids import RandomIds
from kagzi.store.protocol.nouns import NOUNS, call_name
from kagzi.store.sqlite import SqliteStore

T = TypeVar("T")
START: Instant = 1_750_000_000 * SECOND
WORKER = "00000000-0000-4000-8000-000000000001"
OTHER_WORKER = "00000000-0000-4000-8000-000000000002"


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when nothing is left to do, and then jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.virtual = 0.0

    def time(self) -> float:
        return self.virtual


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._virtual_loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everything waits for ever: a wake-up was lost")
        # A little more: the loop's own arithmetic may otherwise stop a rounding error before the timer.
        self._virtual_loop.virtual += timeout and timeout + 1e-9
        return super().select(0)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def database_now() -> Instant:
    return START + round(asyncio.get_running_loop().time() * SECOND)


def new_ids() -> RandomIds:
    count = iter(range(10**9))
    return RandomIds(database_now, entropy=lambda size: (next(count).to_bytes(8, "big") * size)[:size])


def count_calls(store: SqliteStore) -> Counter[str]:
    """How often each method that asks the database something is called from now on."""
    calls: Counter[str] = Counter()
    for noun, verbs in NOUNS.items():
        part = getattr(store, noun)
        for verb in verbs - {"listen"}:
            setattr(part, verb, _counted(getattr(part, verb), calls, call_name(noun, verb)))
    return calls


def _counted(method: Callable[..., Any], calls: Counter[str], name: str) -> Callable[..., Any]:
    async def counted(*args: Any, **named: Any) -> Any:
        calls[name] += 1
        return await method(*args, **named)

    return counted


def new_engine(
    store: SqliteStore | None = None,
    *,
    coordinate: bool = False,
    settings: EngineSettings = EngineSettings(),  # noqa: B008
) -> LocalEngine:
    return LocalEngine(
        store or SqliteStore(None, now=database_now, inline=True),
        ids=new_ids(),
        settings=settings,
        coordinate=Coordinator if coordinate else None,
    )


def new_start(engine: LocalEngine, **fields: Any) -> StartRun:
    given: dict[str, Any] = {
        "namespace": "default",
        "run_id": engine._ids.run_id(),
        "workflow_type": "order",
        "task_queue": "shop",
        "version": "1",
    }
    return StartRun(**(given | fields))


def new_poll(number: int = 1, **fields: Any) -> Poll:
    given: dict[str, Any] = {
        "namespace": "default",
        "worker_id": WORKER,
        "queues": ("shop",),
        "types": (WorkflowType("order"),),
        "limit": 10,
        "number": number,
        "token": f"00000000-0000-4000-8000-{number:012x}",
        "wait": 60 * SECOND,
    }
    return Poll(**(given | fields))


def new_registration(**fields: Any) -> Registration:
    given: dict[str, Any] = {
        "worker_id": WORKER,
        "namespace": "default",
        "queues": ("shop",),
        "types": (WorkflowType("order"),),
        "hostname": "host",
        "pid": 1,
        "version": "1",
        "concurrency": 10,
    }
    return Registration(**(given | fields))


def chunk(claim: Claim, *operations: Operation) -> Chunk:
    return Chunk(namespace=claim.namespace, run_id=claim.run_id, token=claim.token, operations=operations)


def completed_step(seq: int = 1, **fields: Any) -> CompleteStep:
    now = database_now()
    given: dict[str, Any] = {
        "step_id": f"step{seq}",
        "completed_seq": seq,
        "started_at": now,
        "finished_at": now,
        "output": b"1",
    }
    return CompleteStep(**(given | fields))


def complete(output: bytes = b"42") -> CompleteRun:
    return CompleteRun(output=output)


def fail(error: bytes = b"{}") -> FailRun:
    return FailRun(error=error)


def park(seconds: float) -> ParkRun:
    return ParkRun(available_at=database_now() + round(seconds * SECOND), inbox_seq=0)


def hand_back() -> HandBackRun:
    return HandBackRun()


async def claim_one(engine: LocalEngine, number: int = 1, **fields: Any) -> Claim:
    polled = await engine.workers.poll(new_poll(number, **fields))
    assert len(polled.claims) == 1
    return polled.claims[0]


class SlotWorker:
    """An adopter with so many slots, which keeps what it is given."""

    def __init__(self, slots: int, worker_id: str = WORKER) -> None:
        self.worker_id = worker_id
        self.slots = slots
        self.adopted: list[Claim] = []
        self.declined = 0
        self.claiming = 0
        self.cancelled: list[str] = []
        self.lost: list[str] = []

    def reserve(self, start: StartRun) -> BirthLease | None:
        if self.slots - self.claiming <= 0:
            return None
        self.slots -= 1
        return BirthLease(
            worker_id=self.worker_id, token=start.run_id[:14] + "4" + start.run_id[15:], length=30 * SECOND
        )

    def adopt(self, claim: Claim, now: Instant) -> None:
        assert asyncio.current_task() is None
        self.adopted.append(claim)

    def decline(self, lease: BirthLease) -> None:
        self.declined += 1
        self.slots += 1

    def claimable(self, limit: int) -> int:
        self.claiming = min(limit, self.slots)
        return self.claiming

    def claimed(self) -> None:
        self.claiming = 0

    def cancel(self, run_id: str) -> None:
        assert asyncio.current_task() is None
        self.cancelled.append(run_id)

    def lose(self, run_id: str) -> None:
        assert asyncio.current_task() is None
        self.lost.append(run_id)

"""Run a program on virtual time: a sleep of thirty days takes no time at all.

>>> def test_reminder() -> None:
...     async def scenario() -> str:
...         run = await remind.start("ada")
...         return await run.result()
...
...     assert run_virtually(app, scenario) == "sent"

The engine, the worker and the coordinator are the real ones, on SQLite in memory; only the clock is not. Whenever
everything waits, the clock jumps to the next moment at which something is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from kagzi.app import Kagzi
from kagzi.coordinator.coordinator import Coordinator
from kagzi.core.instant import SECOND
from kagzi.core.options import names_its_options
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.ids import IdSource, RandomIds
from kagzi.sdk.worker.heartbeat import HeartbeatTask
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.sdk.worker.worker import Worker
from kagzi.store.protocol.store import Store
from kagzi.store.sqlite import SqliteStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.stillness import unless_stuck
from kagzi.testing.virtual import VirtualLoop

T = TypeVar("T")

# One process needs nobody else's news, so its regular looks at the database are far apart: thirty virtual days are then
# a few hundred of them instead of millions.
_DAY = 86_400 * SECOND
_SETTINGS = EngineSettings(
    lease=3 * _DAY, worker_stale=9 * _DAY, tick=_DAY // 8, duty_interval=_DAY, prune_interval=_DAY, step_grace=_DAY
)


@names_its_options
def run_virtually(
    app: Kagzi,
    main: Callable[[], Awaitable[T]],
    *,
    seed: int = 0,
    queues: tuple[str, ...] | None = None,
    concurrency: int = 100,
) -> T:
    """Open the app on an engine in memory with a worker beside it, await `main()` on virtual time, return its result.

    The worker serves `queues`; without them `default`, and those that the workflows name. Schedules that the code
    declares fire as time passes. Ids and jitter come from `seed`, so a test that fails once fails every time. `def`
    steps run without threads. If everything waits for something that cannot happen, `Deadlock` says what is there.
    """
    clock = VirtualClock()
    ids = RandomIds(clock.now, entropy=Random(seed).randbytes)
    served = app.queues_named() if queues is None else queues

    async def scenario() -> T:
        async with virtual_engine(SqliteStore(None, now=clock.now, inline=True), clock, ids) as engine:
            await app.open(engine)
            try:
                worker = virtual_worker(engine, app, clock, ids, queues=served, concurrency=concurrency)
                async with app.resources(), worker:
                    return await unless_stuck(main(), engine, namespace=app.namespace, queues=served)
            finally:
                await app.close()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(scenario())


def virtual_engine(store: Store, clock: VirtualClock, ids: IdSource) -> LocalEngine:
    return LocalEngine(store, clock=clock, ids=ids, settings=_SETTINGS, coordinate=Coordinator)


def virtual_worker(
    engine: LocalEngine,
    app: Kagzi,
    clock: VirtualClock,
    ids: IdSource,
    *,
    queues: tuple[str, ...],
    concurrency: int = 100,
    strict: bool = False,
) -> Worker:
    """Returns a worker without threads, which keeps its leases for virtual days."""
    settings = WorkerSettings(
        queues=queues,
        concurrency=concurrency,
        threads=0,
        poll_wait=_DAY,
        strict=strict,
        schedules=app.declared_schedules(),
        schedules_again=_DAY,
        limits=app.declared_limits(),
        blocking_calls=app.settings.worker_blocking_calls,
    )
    return Worker(
        engine,
        app,
        namespace=app.namespace,
        clock=clock,
        ids=ids,
        settings=settings,
        heart=HeartbeatTask,
        transactions=engine.transactions,
    )

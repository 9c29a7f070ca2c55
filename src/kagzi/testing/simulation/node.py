"""What runs in a process of the simulated world: an engine, a worker, a client, or several of them."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from kagzi.api.engine import Engine
from kagzi.app import Kagzi
from kagzi.coordinator.coordinator import Coordinator
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.engine.local import LocalEngine
from kagzi.errors import KagziError, Unavailable, WorkflowCancelled, WorkflowFailed, WorkflowTimedOut
from kagzi.ids import RandomIds
from kagzi.sdk.handle import Handle
from kagzi.sdk.worker.heartbeat import Held, Pace, beat
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.sdk.worker.worker import Worker
from kagzi.testing.faulty import FaultyEngine
from kagzi.testing.simulation.catalogue import interfaces_of, workflow_named, workflows_of
from kagzi.testing.simulation.handlers import HANDLER
from kagzi.testing.simulation.orders import Order
from kagzi.testing.simulation.process import Process
from kagzi.testing.simulation.restarts import Changer
from kagzi.testing.simulation.signals import Telling
from kagzi.testing.simulation.store_port import store_port

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class _Heart:
    """Heartbeats beside the loop of a process, as `HeartbeatThread` sends them."""

    def __init__(self, process: Process, engine: Engine, held: Held) -> None:
        self._process = process
        self._engine = engine.sibling()
        self._held = held
        self._pace = Pace()
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._process.spawn_beside(self._run())

    async def stop(self) -> None:
        self._pace.stop()
        if self._beating is not None:
            self._beating.cancel()

    def hurry(self) -> None:
        self._pace.hurry()

    async def _run(self) -> None:
        while not self._pace.stopped:
            try:
                await self._engine.open()
                break
            except KagziError:
                await asyncio.sleep(0.1)
        self._beating = asyncio.ensure_future(beat(self._engine, self._held, self._pace))
        await asyncio.wait([self._beating])
        if not self._beating.cancelled():
            self._beating.result()


class Node:
    def __init__(self, world: World, process: Process, random: Random, *, engine: bool, worker: bool) -> None:
        self.world = world
        self.process = process
        self.engine: Engine
        self.worker: Worker | None = None
        self.app: Kagzi | None = None
        self.leaving = False
        self.orders: list[Order] = []  # that are still to be placed
        self.waiting = 0  # for results
        self.has_engine = engine
        self.has_worker = worker
        self._random = random
        self._workers: list[Worker] = []
        self._slots = random.choice((1, 2, 4))
        self._adopts = random.random() < 0.7
        self._poll_wait = random.choice((1, 5, 10)) * SECOND
        self._queues = random.choice((("default", "other"), ("other", "default")))

    def start(self) -> None:
        self.process.clock.origin = self._random.randrange(10**12)  # hosts count from when they were booted
        self.leaving = False
        self.worker = self.app = None
        self.waiting = 0
        self.process.start(self._main)

    async def _main(self) -> None:
        process = self.process
        ids = RandomIds(process.clock.now, entropy=self._random.randbytes)
        if self.has_engine:
            self.engine = LocalEngine(
                store_port(self.world.network, process),
                clock=process.clock,
                ids=ids,
                settings=self.world.settings,
                coordinate=Coordinator,
            )
        else:
            self.engine = FaultyEngine(self.world.link(process, self._random))
        await self._until_it_works(self.engine.open)
        app = Kagzi("memory://", namespace="default", clock=process.clock, ids=ids)
        app._workflows = workflows_of(self.world.seed, bulk=self.world.bulk)
        app._interfaces = interfaces_of(app._workflows)
        await app.open(self.engine)
        self.app = app
        if self.has_worker:
            await self._start_worker(app)
        await asyncio.gather(*[self._place(app, order) for order in list(self.orders)])

    async def _start_worker(self, app: Kagzi) -> None:
        def make() -> Worker:
            return Worker(
                self.engine,
                app,
                namespace=app.namespace,
                clock=self.process.clock,
                ids=app._ids,
                settings=WorkerSettings(
                    queues=self._queues,
                    concurrency=self._slots,
                    poll_wait=self._poll_wait,
                    adopt=self._adopts,
                    strict=True,
                    limits=app.declared_limits(),
                ),
                heart=lambda engine, held: _Heart(self.process, engine, held),
            )

        self._make_worker = make
        await self._until_it_works(self._new_worker)

    async def _new_worker(self) -> None:
        worker = self._make_worker()
        await worker.start()
        self.worker = worker
        self._workers.append(worker)
        self.world.log(self.process.name, "has a new worker")

    async def _until_it_works(self, attempt: Any) -> None:
        while True:
            try:
                await attempt()
                return
            except KagziError:
                await asyncio.sleep(self._random.uniform(0.05, 0.5))

    async def replace_worker(self, grace: float) -> None:
        """SIGTERM to a worker whose process lives on, and a new one in its place."""
        worker = self.worker
        if worker is not None and not worker.draining:
            await worker.stop(round(grace * SECOND))
            self.worker = None
            if not self.leaving:
                await self._until_it_works(self._new_worker)

    async def leave(self, grace: float) -> None:
        """End in order, as after SIGTERM, and start again a little later."""
        if self.leaving:
            return
        self.leaving = True
        if self.worker is not None:
            await self.worker.stop(round(grace * SECOND))
        await self.engine.close()
        self.world.log(self.process.name, "has left")
        self.process.crash()
        self.world.start_later(self)

    # The client.

    async def _place(self, app: Kagzi, order: Order) -> None:
        await asyncio.sleep(max(0.0, order.at - self.process.loop.time()))
        workflow = workflow_named(order.workflow).options(
            id=order.id,
            delay=order.delay,
            timeout=order.timeout,
            priority=order.priority,
            queue=order.queue,
            on_failure=HANDLER if order.handled else None,
            **({} if order.limit_key is None else {"limit_key": order.limit_key}),
            **({} if order.debounce is None else {"debounce": order.debounce}),
        )
        workflow._app = app
        handle = await self._start_run(order, workflow)
        if order in self.orders:
            self.orders.remove(order)
        if handle is not None:
            self.world.log(self.process.name, "started", handle.id, order.number)
            self.world.acknowledged(order, handle)
            if order.changes:
                self.waiting += 1
                await Changer(self, self._random).change(order, workflow, handle)
                self.waiting -= 1
            if order.cancel is not None or order.terminate is not None:
                await self._stop(order, handle)
            if order.wait:
                await self._await(order, handle)
        self.world.look_whether_over()

    async def _stop(self, order: Order, handle: Handle[Any]) -> None:
        self.waiting += 1
        await asyncio.sleep(order.cancel or order.terminate or 0.0)

        async def ask() -> None:
            if order.cancel is not None:
                answer = await handle.cancel(grace=order.grace)
            else:
                answer = await handle.terminate("so the client says")
            self.world.log(self.process.name, "was told", handle.id, answer)

        await self._until_it_works(ask)
        self.waiting -= 1

    async def tell(self, run_id: str, external_id: str | None, telling: Telling) -> None:
        """Sends a signal, once; whether it has arrived is not known if that fails."""
        if self.app is None:
            return
        try:
            if telling.by_id and external_id is not None:
                await self.app.signal(external_id, telling.name, telling.key, key=telling.key)
            else:
                await self.app.handle(run_id).signal(telling.name, telling.key, key=telling.key)
        except KagziError as error:
            self.world.log(self.process.name, "could not tell", run_id, telling.key, repr(error))
            self.world.untold(run_id, telling, error)
        else:
            self.world.log(self.process.name, "told", run_id, telling.key)
            self.world.told(run_id, telling)

    async def _start_run(self, order: Order, workflow: Any) -> Handle[Any] | None:
        while True:
            try:
                handle: Handle[Any] = await workflow.start(*order.args)
                return handle
            except Unavailable:
                # Perhaps it was started, perhaps not. With an id it is safe to ask again.
                if order.id is None:
                    self.world.log(self.process.name, "does not know whether it started", order.number)
                    return None
                await asyncio.sleep(self._random.uniform(0.05, 1.0))

    async def _await(self, order: Order, handle: Handle[Any]) -> None:
        self.waiting += 1
        answer: Any = None
        try:
            answer = await handle.result()
            status = RunStatus.COMPLETED
        except WorkflowTimedOut:
            status = RunStatus.TIMED_OUT
        except WorkflowCancelled:
            status = RunStatus.CANCELLED
        except WorkflowFailed:
            status = RunStatus.FAILED
        except Unavailable:
            if not self.leaving:
                raise
            return  # the engine is closed, and the process ends: whoever asked asks again elsewhere
        self.waiting -= 1
        self.world.answered(order, handle, status, answer)

    def evict(self) -> None:
        """Let go of everything the workers of this node have in memory."""
        for worker in self._workers:
            for attempt in worker._held.values():
                if attempt.execution is not None:
                    attempt.execution.evict()
        self._workers.clear()

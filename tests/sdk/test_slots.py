"""A run whose code has come to its end needs no slot; where more is due, others are claimed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from kagzi import Kagzi
from kagzi.api.operations import BirthLease, Chunk, ChunkAnswer, HandBackRun, Write
from kagzi.api.workers import Poll, Polled
from kagzi.core.instant import SECOND, Instant
from kagzi.core.limits import CLAIMS
from kagzi.core.step import BEGIN, Step, StepKind, StepStatus
from kagzi.engine.local import LocalEngine
from kagzi.sdk.worker.slots import Slots
from kagzi.sdk.worker.worker import Worker
from kagzi.store.protocol.changes import Applied
from tests.engine.support import new_engine, new_start, run
from tests.sdk.test_headstart import Claims, until, worker_of


class Resumed:
    def __init__(self) -> None:
        self.gone = False
        self.resumed = False

    def resume(self) -> None:
        self.resumed = True


def taken(slots: Slots) -> Resumed:
    slots.take()
    return Resumed()


def test_a_run_that_ends_makes_room_at_once_and_frees_its_slot_when_it_is_let_go_of() -> None:
    freed: list[int] = []
    slots = Slots(2, lambda: freed.append(slots.room))
    slots.awaited = True
    first, _ = taken(slots), taken(slots)
    assert (slots.free, slots.room, freed) == (0, 0, [])
    slots.end(first)
    slots.end(first)
    assert (slots.free, slots.room, freed) == (0, 1, [1])
    slots.release(first)
    assert (slots.free, slots.room) == (1, 1)


def test_as_many_runs_as_there_are_slots_may_end_beside_those_at_work() -> None:
    slots = Slots(2, lambda: None)
    for room in (2, 2, 1, 0):
        slots.end(taken(slots))
        assert slots.room == room
    assert slots.free == -2


def test_a_run_that_waited_in_memory_gets_the_slot_of_one_that_ends() -> None:
    slots = Slots(1, lambda: None)
    waits = taken(slots)
    assert slots.lend(waits)
    works = taken(slots)
    slots.take_back(waits)
    assert not waits.resumed
    slots.end(works)
    assert waits.resumed
    assert slots.room == 0
    slots.release(works)
    slots.release(waits)
    assert (slots.free, slots.room) == (1, 1)


def test_a_run_that_waits_in_memory_ends_there() -> None:
    slots = Slots(1, lambda: None)
    waits = taken(slots)
    assert slots.lend(waits)
    slots.end(waits)
    assert not slots.is_lent(waits)
    assert (slots.free, slots.room) == (0, 1)
    slots.release(waits)
    assert (slots.free, slots.room) == (1, 1)


class Asked(Claims):
    """It remembers how many runs each poll asked for, and may have as many as anybody asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.plenty = False

    async def poll(self, poll: Poll) -> Polled:
        self.asked.append(poll.limit)
        if self.plenty:
            self.give(*(f"{poll.number} {number}" for number in range(poll.limit)))
        return await super().poll(poll)


def ending_at_once() -> Kagzi:
    app = Kagzi("memory://")

    @app.workflow
    async def order() -> None: ...

    return app


def play(slots: int, scene: Callable[[Asked, Worker], Awaitable[None]], app: Kagzi | None = None) -> None:
    """Runs of the workflow `order`, which does nothing but end if no app says otherwise."""

    async def main() -> None:
        service = Asked()
        worker = worker_of(service, app or ending_at_once(), grace=0, concurrency=slots)
        await worker.start()
        await asyncio.sleep(1)
        await scene(service, worker)
        stopping = asyncio.create_task(worker.stop())
        while not stopping.done():
            service.settle()
            await asyncio.sleep(0.1)

    run(main)


def test_where_more_is_due_a_worker_asks_for_it_while_ends_are_stored() -> None:
    async def scene(service: Asked, worker: Worker) -> None:
        service.give("one", "two")
        await until(lambda: len(service.unsettled), 2)
        await until(lambda: len(service.asked), 2)
        service.give("three")
        await until(lambda: len(service.unsettled), 3)
        assert service.asked[:2] == [2, 2]  # when it asked again, both had come to their ends
        assert len(worker.heartbeat()[0].held) == 3  # until their ends are durable they are this worker's

    play(2, scene)


def test_it_asks_when_those_that_end_at_once_have_ended() -> None:
    async def scene(service: Asked, _: Worker) -> None:
        service.give("one")
        await asyncio.sleep(1)
        service.give("two")  # all that it asked for
        await until(lambda: len(service.asked), 3)
        assert service.asked == [2, 1, 2]

    play(2, scene)


def test_also_for_what_an_engine_in_this_process_claims_or_declines() -> None:
    async def scene(service: Asked, worker: Worker) -> None:
        service.give("one", "two")
        await until(lambda: len(service.unsettled), 2)
        await until(lambda: len(service.asked), 2)
        assert (worker.slots.free, worker.claimable(5)) == (0, 2)
        worker.claimed()
        worker.slots.reserved += 1
        worker._slot_free.clear()
        worker.decline(BirthLease(worker_id=worker.worker_id, token="token", length=SECOND))
        assert worker._slot_free.is_set()

    play(2, scene)


def test_a_poll_asks_for_no_more_than_one_brings() -> None:
    """Else an answer with all that it may hold would not be known for a full one."""

    async def scene(service: Asked, _: Worker) -> None:
        assert service.asked == [CLAIMS]

    play(CLAIMS + 1, scene)


def test_but_not_for_more_than_it_has_slots() -> None:
    async def scene(service: Asked, _: Worker) -> None:
        service.plenty = True
        service.give("one", "two")
        await asyncio.sleep(10)
        assert len(service.unsettled) == 4
        service.unsettled.pop(0).settle(ChunkAnswer.DONE)
        await asyncio.sleep(10)
        assert len(service.unsettled) == 4
        service.plenty = False

    play(2, scene)


def begun(at: Instant) -> Step:
    return Step(
        step_id=BEGIN,
        attempt=1,
        kind=StepKind.SIGNAL,
        status=StepStatus.COMPLETED,
        completed_seq=1,
        started_at=at,
        finished_at=at,
        retry_at=None,
        input_hash=0,
        output=None,
        error=None,
    )


def test_a_run_whose_wait_is_over_keeps_its_slot() -> None:
    """Else the worker would ask for more than it has a place for, and give it back."""
    app = Kagzi("memory://")

    @app.step
    async def work() -> None:
        await asyncio.sleep(10)

    @app.workflow
    async def order() -> None:
        await asyncio.sleep(0.5)
        await work()

    async def scene(service: Asked, _: Worker) -> None:
        service.now = SECOND  # the run began at 0, so it has slept
        service.history = (begun(at=0),)
        service.give("one")
        await until(lambda: len(service.unsettled), 1)
        assert service.asked == [1]

    play(1, scene, app)


def test_where_nothing_more_is_due_a_slot_is_free_when_the_end_is_stored() -> None:
    async def scene(service: Asked, _: Worker) -> None:
        service.give("one")
        await until(lambda: len(service.unsettled), 1)
        await asyncio.sleep(1)
        assert service.asked == [2, 1]

    play(2, scene)


def test_many_runs_that_waited_in_memory_end_one_after_the_other() -> None:
    """Each gives its slot to the next: not within each other, or there would be no end to the stack."""
    app = Kagzi("memory://")
    naps, go_on = [900], asyncio.Event()

    @app.step
    async def work() -> None:
        await go_on.wait()

    @app.workflow
    async def order() -> None:
        if naps[0]:
            naps[0] -= 1
            await asyncio.sleep(0.5)
        else:
            await work()

    async def scene(service: Asked, worker: Worker) -> None:
        for group in range(9):
            service.give(*(f"nap {group} {number}" for number in range(100)))
            await asyncio.sleep(0.001)
        service.give(*(f"work {number}" for number in range(100)))
        await asyncio.sleep(0.9)
        assert (len(worker.heartbeat()[0].held), worker.slots.taken) == (1000, 100)
        go_on.set()
        async with asyncio.timeout(10):
            while worker.heartbeat()[0].held:
                service.settle()
                await asyncio.sleep(0.1)
        assert worker.heartbeat()[0].completed == 1000

    play(100, scene, app)


@pytest.mark.parametrize("slots", [1, 10])
def test_no_place_is_offered_twice(slots: int) -> None:
    """Neither by the worker, whose poll counts runs that end, nor by the engine when their ends are stored."""
    app = Kagzi("memory://")
    patience = [0.0]

    @app.step
    async def work() -> None:
        await asyncio.sleep(patience[0])

    @app.workflow
    async def order() -> None:
        if patience[0]:
            await work()

    async def main() -> None:
        async with new_engine() as engine:
            handed_back = slowed_down(engine)
            for _ in range(slots):
                await engine.workflows.start(new_start(engine, input=b"[]"))
            worker = worker_of(cast("Any", engine.workers), app, queues=("shop",), concurrency=slots, grace=0)
            await worker.start()
            await asyncio.sleep(0.05)
            assert not worker.heartbeat()[0].held
            patience[0] = 20.0
            await asyncio.gather(*(engine.workflows.start(new_start(engine, input=b"[]")) for _ in range(slots)))
            for _ in range(3 * slots):
                await engine.workflows.start(new_start(engine, input=b"[]"))
            await asyncio.sleep(200)
            await worker.stop()
            assert handed_back == []

    run(main)


def slowed_down(engine: LocalEngine) -> list[str]:
    """Its store takes its time. The runs that are handed back."""
    handed_back: list[str] = []
    store: Any = engine.store
    apply = store.work.apply

    async def slowly(writes: Sequence[Write]) -> Applied:
        chunks = [write for write in writes if isinstance(write, Chunk)]
        handed_back.extend(chunk.run_id for chunk in chunks if isinstance(chunk.operations[-1], HandBackRun))
        await asyncio.sleep(0.01)
        applied: Applied = await apply(writes)
        return applied

    store.work.apply = slowly
    return handed_back

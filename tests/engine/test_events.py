"""What those who watch are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kagzi.api.events import Change, Numbered, QueueChanged, Resync, RunChanged
from kagzi.api.operations import (
    CancelRun,
    Chunk,
    CompleteRun,
    CompleteStep,
    HandBackRun,
    ParkRun,
    RepeatRun,
    StartRun,
)
from kagzi.api.workers import Claim, Poll, Registration
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.engine import events as module
from kagzi.engine.events import Events
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds
from kagzi.store.protocol.changes import Recovered
from tests.engine.support import run

IDS = RandomIds(lambda: 1_700_000_000_000_000)


@pytest.fixture
async def engine() -> AsyncIterator[LocalEngine]:
    made = connect("memory://")
    assert isinstance(made, LocalEngine)
    await made.open()
    yield made
    await made.close()


async def start(engine: LocalEngine, **fields: Any) -> str:
    request = StartRun(namespace="default", run_id=IDS.run_id(), workflow_type="ship", task_queue="shop", **fields)
    return (await engine.workflows.start(request)).run_id


class Worker:
    def __init__(self, engine: LocalEngine, version: str | None = None) -> None:
        """Without a version it is one of those that know nothing of cancellations."""
        self.engine = engine
        self.version = version
        self.worker_id = IDS.token()
        self.number = 0

    async def claim(self) -> Claim:
        if not self.number:
            registration = Registration(
                worker_id=self.worker_id,
                namespace="default",
                queues=("shop",),
                types=(WorkflowType("ship", self.version),),
                hostname="h",
                pid=1,
                version="1",
                concurrency=5,
            )
            await self.engine.workers.register(registration)
        self.number += 1
        poll = Poll(
            namespace="default",
            worker_id=self.worker_id,
            queues=("shop",),
            types=(WorkflowType("ship"),),
            limit=1,
            number=self.number,
            token=IDS.token(),
            wait=30 * SECOND,
        )
        (claim,) = (await self.engine.workers.poll(poll)).claims
        return claim

    async def commit(self, claim: Claim, *operations: Any) -> None:
        chunk = Chunk(namespace="default", run_id=claim.run_id, token=claim.token, operations=operations)
        await self.engine.workers.commit(chunk)


def changes(events: Any) -> list[RunChanged]:
    """Without the Resync that comes when an engine begins to listen to others."""
    return [each.event for each in events if isinstance(each.event, RunChanged)]


def told(events: Any) -> list[tuple[str, RunStatus | None]]:
    return [(event.change.value, event.status) for event in changes(events)]


async def test_the_life_of_a_run(engine: LocalEngine) -> None:
    reader = engine.events.subscribe(namespace="default")
    elsewhere = engine.events.subscribe(namespace="other")
    run_id = await start(engine)
    worker = Worker(engine)
    claim = await worker.claim()
    watcher = engine.events.subscribe(namespace="default", run_id=run_id)
    step = CompleteStep(step_id="a", completed_seq=1, started_at=1, finished_at=2, output=b"1")
    await worker.commit(claim, step)
    await worker.commit(claim, ParkRun(available_at=0, inbox_seq=0))
    claim = await worker.claim()
    await worker.commit(claim, HandBackRun())
    claim = await worker.claim()
    await worker.commit(claim, CompleteRun(output=b"null"))
    await asyncio.sleep(0)
    seen = list(await reader.next(1))
    assert told(seen) == [
        ("started", "PENDING"),
        ("claimed", "RUNNING"),
        ("parked", "SLEEPING"),
        ("claimed", "RUNNING"),
        ("returned", "PENDING"),
        ("claimed", "RUNNING"),
        ("finished", "COMPLETED"),
    ]
    assert {(event.run_id, event.workflow, event.queue) for event in changes(seen)} == {(run_id, "ship", "shop")}
    assert told(await watcher.next(1))[0] == ("progressed", "RUNNING")
    assert not told(await elsewhere.next(0))


async def test_cancelling_and_repeating(engine: LocalEngine) -> None:
    reader = engine.events.subscribe(namespace="default")
    never_ran = await start(engine)
    await engine.workflows.cancel(CancelRun(namespace="default", run_id=never_ran))
    again = RepeatRun(namespace="default", run_id=IDS.run_id(), of_run_id=never_ran, keep_steps=False)
    await engine.workflows.repeat(again)
    worker = Worker(engine, "1")
    await worker.claim()
    await engine.workflows.cancel(CancelRun(namespace="default", run_id=again.run_id))
    await engine.workers.deregister(worker.worker_id)
    assert told(await reader.next(1)) == [
        ("started", "PENDING"),
        ("finished", "CANCELLED"),
        ("started", "PENDING"),
        ("claimed", "RUNNING"),
        ("cancelling", "RUNNING"),
        ("returned", "PENDING"),
    ]


async def test_nobody_watches_nothing_is_kept(engine: LocalEngine) -> None:
    await start(engine)
    assert not engine.events.on
    assert not engine.events._kept


class Hub:
    """Events with a clock of their own."""

    def __init__(self) -> None:
        self.tended = 0
        names = iter(["epoch", "later"])
        self.events = Events(lambda: next(names), lambda: 7, self.tend)

    def tend(self) -> None:
        self.tended += 1

    def change(self, number: int = 1, run_id: str = "r") -> None:
        for _ in range(number):
            self.events.run("default", run_id, Change.STARTED)


async def test_a_reader_that_comes_back_goes_on_where_it_was() -> None:
    hub = Hub()
    first = hub.events.subscribe(namespace="default")
    assert hub.tended == 1
    hub.change(3)
    seen = await first.next(1)
    first.close()
    hub.change(2)  # nobody is there, but not for long
    second = hub.events.subscribe(namespace="default", after=seen[1].event_id)
    assert [each.event_id for each in await second.next(1)] == ["epoch-3", "epoch-4", "epoch-5"]
    up_to_date = hub.events.subscribe(namespace="default", after="epoch-5")
    assert await up_to_date.next(0) == []


def _failed(namespace: str, run_id: str, queue: str) -> Recovered:
    return Recovered(namespace=namespace, run_id=run_id, task_queue=queue, status=RunStatus.FAILED, available_at=0)


async def test_nobody_hears_of_other_namespaces() -> None:
    """Neither of their runs nor of their queues, at once or when coming back."""
    hub = Hub()
    reader = hub.events.subscribe(namespace="default")
    of_a_run = hub.events.subscribe(namespace="default", run_id="r")
    hub.change()
    begun = (await reader.next(1))[-1].event_id
    await of_a_run.next(1)
    hub.events.queue("other", "secret-queue")
    hub.events.run("other", "r", Change.STARTED, workflow="secret", queue="secret-queue")
    hub.events.changed([_failed("other", "r", "secret-queue")])
    hub.events.queue("default", "shop")
    assert [each.event for each in await reader.next(1)] == [QueueChanged(namespace="default", queue="shop", at=7)]
    assert await of_a_run.next(0) == []
    back = hub.events.subscribe(namespace="default", after=begun)
    assert [each.event for each in await back.next(1)] == [QueueChanged(namespace="default", queue="shop", at=7)]


async def test_ids_tell_nothing_of_what_happens_in_other_namespaces() -> None:
    hub = Hub()
    reader = hub.events.subscribe(namespace="default")
    hub.change()
    for number in range(100):
        hub.events.run("busy", f"run {number}", Change.STARTED)
        hub.events.queue("busy", "shop")
    hub.change()
    assert [each.event_id for each in await reader.next(1)] == ["epoch-1", "epoch-2"]
    # They are still good for going on, among all that was kept of the others.
    back = hub.events.subscribe(namespace="default", after="epoch-1")
    assert [each.event_id for each in await back.next(1)] == ["epoch-2"]
    neighbour = hub.events.subscribe(namespace="busy", after="epoch-198")
    assert [each.event_id for each in await neighbour.next(1)] == ["epoch-199", "epoch-200"]
    hub.events.anything()
    assert [each.event_id for each in await reader.next(1)] == ["epoch-2"]


async def test_what_neighbours_have_pushed_out_is_looked_at_again() -> None:
    hub = Hub()
    hub.events.subscribe(namespace="default")
    hub.change(3)
    for _ in range(module._KEPT - 1):
        hub.events.queue("busy", "shop")
    kept = hub.events.subscribe(namespace="default", after="epoch-2")
    assert [each.event_id for each in await kept.next(1)] == ["epoch-3"]
    gone = hub.events.subscribe(namespace="default", after="epoch-1")
    assert [type(each.event) for each in await gone.next(1)] == [Resync]


@pytest.mark.parametrize("after", ["", "x", "epoch-6", "epoch--1", "other-3", "epoch.0-3", "epoch-" + "9" * 50])
async def test_who_cannot_be_told_what_it_missed_looks_again(after: str) -> None:
    hub = Hub()
    hub.events.subscribe(namespace="default")
    hub.change(5)
    reader = hub.events.subscribe(namespace="default", after=after)
    assert [each.event for each in await reader.next(1)] == [Resync(at=7)]


async def test_events_of_before_a_pause_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.0)
    hub = Hub()
    hub.events.subscribe(namespace="default").close()
    await asyncio.sleep(0.01)
    assert not hub.events.on
    reader = hub.events.subscribe(namespace="default", after="epoch-0")
    resync = (await reader.next(1))[0]
    assert (resync.event_id, type(resync.event)) == ("later-0", Resync)


async def test_a_reader_of_one_run_is_told_of_that_run_only() -> None:
    hub = Hub()
    reader = hub.events.subscribe(namespace="default", run_id="mine")
    hub.change(run_id="other")
    hub.events.queue("default", "shop")
    hub.events.progressed("default", "other")
    hub.events.progressed("default", "mine")
    (told,) = await reader.next(1)
    assert isinstance(told.event, RunChanged)
    assert (told.event.run_id, told.event.change) == ("mine", Change.PROGRESSED)


async def test_a_reader_that_does_not_keep_up_looks_again() -> None:
    hub = Hub()
    reader = hub.events.subscribe(namespace="default")
    hub.change(module._BUFFER + 1)
    assert [each.event for each in await reader.next(1)] == [Resync(at=7)]
    hub.change()
    (after,) = await reader.next(1)
    assert isinstance(after.event, RunChanged)
    # What it was told to read again includes everything before: it goes on from there.
    assert after.event_id == f"epoch-{module._BUFFER + 2}"


def test_anything_may_have_changed_is_said_once_a_second() -> None:
    async def main() -> None:
        hub = Hub()
        reader = hub.events.subscribe(namespace="default")
        for _ in range(100):
            hub.events.anything()
        assert [type(each.event) for each in await reader.next(0)] == [Resync]
        hub.events.anything()
        assert await reader.next(0.9) == []
        assert [type(each.event) for each in await reader.next(0.2)] == [Resync]

    run(main)


async def test_now_and_then_it_looks_again_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_AGAIN_SECONDS", 0.05)
    reader = Hub().events.subscribe(namespace="default")
    assert [type(each.event) for each in await reader.next(30)] == [Resync]


async def test_closing_wakes_those_who_wait() -> None:
    hub = Hub()
    reader = hub.events.subscribe(namespace="default")
    waiting = asyncio.create_task(reader.next(60))
    await asyncio.sleep(0)
    hub.events.close()
    async with asyncio.timeout(30):
        assert await waiting == []


@pytest.mark.postgres
async def test_what_other_processes_do_is_heard_of(postgres_database: str) -> None:
    """Ends are told with the run's id, also of runs somebody there has waited for; new work with its queue."""
    here, there = connect(postgres_database), connect(postgres_database)
    assert isinstance(here, LocalEngine)
    assert isinstance(there, LocalEngine)
    await here.open()
    await there.open()
    try:
        reader = here.events.subscribe(namespace="default")
        seen: list[Numbered] = []

        async def until(wanted: Callable[[Any], bool]) -> None:
            async with asyncio.timeout(60):
                while not any(wanted(each.event) for each in seen):
                    seen.extend(await reader.next(1))

        await until(lambda event: isinstance(event, Resync))  # it listens from now on
        seen.clear()
        run_id = await start(there)
        await until(lambda event: isinstance(event, QueueChanged) and event.queue == "shop")
        waiting = asyncio.create_task(there.workflows.wait("default", run_id, 60 * SECOND))
        worker = Worker(there)
        await worker.commit(await worker.claim(), CompleteRun(output=b"null"))
        assert (await waiting).status is RunStatus.COMPLETED
        await until(
            lambda event: isinstance(event, RunChanged) and event.run_id == run_id and event.change is Change.FINISHED
        )
    finally:
        await here.close()
        await there.close()

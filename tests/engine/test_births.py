"""Runs that are started while a worker of another process waits for work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kagzi.api.workers import Heartbeat, Poll, Polled
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Unavailable
from kagzi.store.sqlite import SqliteStore
from tests.engine.support import (
    OTHER_WORKER,
    WORKER,
    cancel,
    count_calls,
    database_now,
    new_engine,
    new_poll,
    new_start,
    run,
)


def adopting(number: int = 1, **fields: Any) -> Poll:
    return new_poll(number, adopts=True, **fields)


async def waiting(engine: LocalEngine, poll: Poll) -> asyncio.Task[Polled]:
    """A poll that has looked and found nothing."""
    task = asyncio.create_task(engine.workers.poll(poll))
    await asyncio.sleep(0.5)
    assert not task.done()
    return task


def test_a_run_started_beside_a_waiting_poll_is_its_answer_and_nobody_claims_it() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            poll = adopting()
            task = await waiting(engine, poll)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            start = new_start(engine)
            started = await engine.workflows.start(start)
            assert started.status is RunStatus.RUNNING
            polled = await task
            (claim,) = polled.claims
            assert claim.run_id == start.run_id
            assert claim.token == "00000001" + poll.token[8:]
            assert polled.now == claim.started_at
            assert polled.waited == SECOND // 2
            assert calls["claim"] == 0
            found = await engine.workflows.get("default", start.run_id)
            assert found.status is RunStatus.RUNNING
            assert found.worker_id == WORKER

    run(main)


def test_if_the_answer_is_lost_repeating_the_poll_brings_the_run_again() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            task = await waiting(engine, adopting())
            await engine.workflows.start(new_start(engine))
            (first,) = (await task).claims
            (again,) = (await engine.workers.poll(adopting())).claims
            assert (again.run_id, again.token, again.executions) == (first.run_id, first.token, first.executions)

    run(main)


def test_if_the_worker_has_never_heard_of_the_run_its_heartbeat_gives_it_back() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            task = await waiting(engine, adopting())
            start = new_start(engine)
            await engine.workflows.start(start)
            await task
            await engine.workers.heartbeat(Heartbeat(worker_id=WORKER, held=(), heard=0))
            assert (await engine.workflows.get("default", start.run_id)).status is RunStatus.RUNNING
            await engine.workers.heartbeat(Heartbeat(worker_id=WORKER, held=(), heard=1))
            assert (await engine.workflows.get("default", start.run_id)).status is RunStatus.PENDING

    run(main)


def test_no_more_runs_are_born_than_there_is_room_for() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            task = await waiting(engine, adopting(limit=2))
            starts = [new_start(engine) for _ in range(3)]
            started = await asyncio.gather(*(engine.workflows.start(start) for start in starts))
            assert [each.status for each in started] == [RunStatus.RUNNING, RunStatus.RUNNING, RunStatus.PENDING]
            assert [claim.run_id for claim in (await task).claims] == [start.run_id for start in starts[:2]]
            (left,) = (await engine.workers.poll(adopting(2))).claims
            assert left.run_id == starts[2].run_id

    run(main)


def test_a_poll_waits_for_what_is_being_inserted_for_it() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            store: Any = engine.store
            task = await waiting(engine, adopting(wait=2 * SECOND))
            apply = store.work.apply

            async def slowly(*args: Any) -> Any:
                await asyncio.sleep(5)
                return await apply(*args)

            store.work.apply = slowly
            starting = asyncio.ensure_future(engine.workflows.start(new_start(engine)))
            await asyncio.sleep(3)
            assert not task.done()
            started = await starting
            assert [claim.run_id for claim in (await task).claims] == [started.run_id]

    run(main)


def test_only_what_the_worker_offers_and_may_start_now_is_born() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            task = await waiting(engine, adopting(types=(WorkflowType("order", "2"),)))
            for fields in (
                {"workflow_type": "refund"},
                {"version": "1"},
                {"version": "2", "delay": 60 * SECOND},
                {"version": "2", "task_queue": "elsewhere"},
            ):
                started = await engine.workflows.start(new_start(engine, **fields))
                assert started.status is RunStatus.PENDING
                await asyncio.sleep(0.5)  # the poll has looked because of it, and offers its slots again
            started = await engine.workflows.start(new_start(engine, version="2"))
            assert started.status is RunStatus.RUNNING
            assert [claim.run_id for claim in (await task).claims] == [started.run_id]

    run(main)


def test_a_start_that_is_sent_twice_is_one_claim() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            task = await waiting(engine, adopting())
            start = new_start(engine)
            both = await asyncio.gather(engine.workflows.start(start), engine.workflows.start(start))
            assert {each.run_id for each in both} == {start.run_id}
            assert [claim.run_id for claim in (await task).claims] == [start.run_id]

    run(main)


def test_a_start_whose_answer_was_lost_and_that_is_sent_again_was_born_the_first_time() -> None:
    """Else the worker would take the time of then for that of now, be behind by as much, and end sleeps early."""

    async def main() -> None:
        store = SqliteStore(None, now=database_now, inline=True)
        apply, lost = store.work.apply, True

        async def losing_answers(*args: Any) -> Any:
            answers = await apply(*args)
            if lost:
                raise Unavailable("the answer was lost")
            return answers

        store.work.apply = losing_answers  # type: ignore[method-assign]
        async with new_engine(store, settings=EngineSettings(patience=SECOND)) as engine:
            task = await waiting(engine, adopting())
            start = new_start(engine)
            with pytest.raises(Unavailable):
                await engine.workflows.start(start)
            lost = False
            assert (await engine.workflows.start(start)).status is RunStatus.RUNNING
            polled = await task
            assert [claim.run_id for claim in polled.claims] == [start.run_id]
            assert polled.now == polled.claims[0].started_at
            assert polled.waited == SECOND // 2

    run(main)


def test_a_poll_that_was_given_up_or_does_not_adopt_gets_nothing_born() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            gone = await waiting(engine, adopting())
            await cancel(gone)
            plain = await waiting(engine, new_poll(worker_id=OTHER_WORKER))
            started = await engine.workflows.start(new_start(engine))
            assert started.status is RunStatus.PENDING
            assert [claim.run_id for claim in (await plain).claims] == [started.run_id]

    run(main)


def test_of_a_poll_and_its_repeat_only_the_repeat_is_answered() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            first = await waiting(engine, adopting())
            again = await waiting(engine, adopting())
            started = await engine.workflows.start(new_start(engine))
            assert [claim.run_id for claim in (await again).claims] == [started.run_id]
            await cancel(first)

    run(main)


def test_a_waiting_poll_hears_of_a_run_before_the_one_who_started_it() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            order: list[str] = []
            polling = await waiting(engine, adopting())
            polling.add_done_callback(lambda _: order.append("poll"))
            starting = asyncio.ensure_future(engine.workflows.start(new_start(engine)))
            starting.add_done_callback(lambda _: order.append("start"))
            await asyncio.gather(polling, starting)
            assert order == ["poll", "start"]

    run(main)

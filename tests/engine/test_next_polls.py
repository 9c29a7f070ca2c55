"""Runs that are started while a worker of another process is between two polls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import ChunkAnswer, CompleteRun, HandBackRun, Operation, StartRun
from kagzi.api.workers import Claim, Heartbeat, Poll, Polled
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.store.sqlite import SqliteStore
from tests.engine.support import (
    OTHER_WORKER,
    WORKER,
    SlotWorker,
    cancel,
    chunk,
    count_calls,
    database_now,
    new_engine,
    new_poll,
    new_registration,
    new_start,
    run,
)


def adopting(number: int = 1, **fields: Any) -> Poll:
    return new_poll(number, adopts=True, **fields)


def engine_on(directory: Path) -> LocalEngine:
    """One of several that share a database."""
    return new_engine(SqliteStore(str(directory / "kagzi.db"), now=database_now, inline=True))


async def answered(engine: LocalEngine, **fields: Any) -> None:
    """The first poll of a worker, answered with nothing; its second one is yet to come."""
    assert (await engine.workers.poll(adopting(wait=SECOND, **fields))).claims == ()
    await asyncio.sleep(0)  # the answer goes first


async def filled(engine: LocalEngine, slots: int = 1) -> list[Claim]:
    """A worker that has nothing free, and the runs it has. Nothing else is due."""
    task = asyncio.create_task(engine.workers.poll(adopting(limit=slots)))
    await asyncio.sleep(0.1)
    await asyncio.gather(*[started(engine) for _ in range(slots)])
    claims = (await task).claims
    assert len(claims) == slots
    await asyncio.sleep(0)
    return list(claims)


async def ended(engine: LocalEngine, claims: list[Claim]) -> None:
    for claim in claims:
        assert await engine.workers.commit(chunk(claim, CompleteRun(output=b"1"))) is ChunkAnswer.DONE


async def started(engine: LocalEngine, **fields: Any) -> tuple[StartRun, RunStatus]:
    start = new_start(engine, **fields)
    return start, (await engine.workflows.start(start)).status


def test_a_run_started_between_two_polls_is_the_answer_to_the_second() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await answered(engine)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            start, status = await started(engine)
            assert status is RunStatus.RUNNING
            began = asyncio.get_running_loop().time()
            polled = await engine.workers.poll(adopting(2))
            assert asyncio.get_running_loop().time() == began
            (claim,) = polled.claims
            assert claim.run_id == start.run_id
            assert polled.now == claim.started_at
            assert calls["claim"] == 0
            assert polled.waited == 0
            assert await engine.workers.poll(adopting(2)) == polled  # its answer was lost
            await asyncio.sleep(2)
            assert (await engine.workers.poll(adopting(2))).waited == -2 * SECOND  # they were born before this one came

    run(main)


def test_also_after_an_answer_with_runs_but_only_in_the_room_that_is_left() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await answered(engine)
            await started(engine)
            assert len((await engine.workers.poll(adopting(2, limit=3))).claims) == 1
            await asyncio.sleep(0)
            states = [(await started(engine))[1] for _ in range(3)]
            assert states == [RunStatus.RUNNING, RunStatus.RUNNING, RunStatus.PENDING]
            assert len((await engine.workers.poll(adopting(3, limit=2))).claims) == 2
            assert len((await engine.workers.poll(adopting(4, limit=1))).claims) == 1

    run(main)


def test_a_poll_with_less_room_than_was_expected_gets_no_more_than_it_asks_for() -> None:
    """Runs that waited in the worker's memory have taken their slots back meanwhile."""

    async def main() -> None:
        async with new_engine() as engine:
            await answered(engine, limit=3)
            starts = [await started(engine) for _ in range(3)]
            assert [status for _, status in starts] == [RunStatus.RUNNING] * 3
            (claim,) = (await engine.workers.poll(adopting(2, limit=1))).claims
            assert claim.run_id == starts[0][0].run_id
            claims = (await engine.workers.poll(adopting(3, limit=3))).claims
            assert [(claim.run_id, claim.executions) for claim in claims] == [
                (start.run_id, 2) for start, _ in starts[1:]
            ]

    run(main)


@pytest.mark.parametrize(("places", "most"), [(1, 100), (2, 100), (2, 1)])
def test_runs_that_end_leave_their_places_to_those_that_are_started(places: int, most: int) -> None:
    async def main() -> None:
        async with new_engine(settings=EngineSettings(claim_limit=2)) as engine:
            claims = await filled(engine, 2)
            (polls,) = engine._opened.polls._all()
            polls._around = replace(polls._around, settings=EngineSettings(claim_limit=most))
            await ended(engine, claims[:places])
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            starts = [await started(engine) for _ in range(3)]
            born = [start.run_id for start, status in starts if status is RunStatus.RUNNING]
            assert born == [start.run_id for start, _ in starts[: min(places, most)]]
            polled = await engine.workers.poll(adopting(2, limit=places))
            assert [claim.run_id for claim in polled.claims] == born
            assert calls["claim"] == 0

    run(main)


def test_a_worker_in_this_process_adopts_itself_and_not_by_its_polls() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            worker = SlotWorker(1)
            engine.workers.attach(worker, "default", ("shop",))
            task = asyncio.create_task(engine.workers.poll(adopting()))
            await asyncio.sleep(0.1)
            first, status = await started(engine)
            assert status is RunStatus.RUNNING
            assert (await started(engine))[1] is RunStatus.PENDING
            assert [claim.run_id for claim in worker.adopted] == [first.run_id]
            await cancel(task)

    run(main)


def test_its_place_is_with_the_next_poll_even_if_one_waits() -> None:
    """The poll that waits was made before the run ended, and says how much room there was then."""

    async def main() -> None:
        async with new_engine() as engine:
            await started(engine)
            (claim,) = (await engine.workers.poll(adopting(limit=1))).claims
            task = asyncio.create_task(engine.workers.poll(adopting(2, limit=1)))
            await asyncio.sleep(0.1)
            await engine.workers.commit(chunk(claim, CompleteRun(output=b"1")))
            one, other, third = [new_start(engine) for _ in range(3)]
            answers = await asyncio.gather(*[engine.workflows.start(start) for start in (one, other, third)])
            assert [answer.status for answer in answers] == [RunStatus.RUNNING, RunStatus.RUNNING, RunStatus.PENDING]
            assert [claim.run_id for claim in (await task).claims] == [one.run_id]
            assert [claim.run_id for claim in (await engine.workers.poll(adopting(3, limit=1))).claims] == [
                other.run_id
            ]

    run(main)


def test_a_poll_that_waits_is_answered_when_runs_wait_for_the_next() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            taken, _ = await started(engine, external_id="taken")
            (claim,) = (await engine.workers.poll(adopting(limit=1))).claims
            task = asyncio.create_task(engine.workers.poll(adopting(2, limit=1)))
            await asyncio.sleep(0.1)
            await engine.workers.commit(chunk(claim, CompleteRun(output=b"1")))
            # The first has a place with the poll that waits, and turns out to be there already.
            again, new = new_start(engine, external_id="taken"), new_start(engine)
            answers = await asyncio.gather(engine.workflows.start(again), engine.workflows.start(new))
            assert answers[0].run_id == taken.run_id
            began = asyncio.get_running_loop().time()
            assert (await task).claims == ()
            assert [claim.run_id for claim in (await engine.workers.poll(adopting(3, limit=1))).claims] == [new.run_id]
            assert asyncio.get_running_loop().time() == began

    run(main)


@pytest.mark.parametrize("seldom", [False, True])
def test_a_worker_that_hands_back_or_comes_seldom_leaves_no_place(seldom: bool) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            (claim,) = await filled(engine)
            await asyncio.sleep(1 if seldom else 0)
            last: Operation = CompleteRun(output=b"1") if seldom else HandBackRun(available_at=database_now() + SECOND)
            await engine.workers.commit(chunk(claim, last))
            assert (await started(engine))[1] is RunStatus.PENDING

    run(main)


def test_a_worker_that_waits_comes_before_one_that_will_come() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await answered(engine)
            task = asyncio.create_task(engine.workers.poll(adopting(worker_id=OTHER_WORKER)))
            await asyncio.sleep(0.1)
            start, status = await started(engine)
            assert status is RunStatus.RUNNING
            assert [claim.run_id for claim in (await task).claims] == [start.run_id]

    run(main)


def test_a_poll_that_adopts_nothing_leaves_no_offer() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            assert (await engine.workers.poll(new_poll(wait=SECOND))).claims == ()
            assert (await started(engine))[1] is RunStatus.PENDING

    run(main)


def test_if_the_worker_does_not_come_soon_the_run_goes_back_and_its_poll_claims_it() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await answered(engine)
            start, status = await started(engine)
            assert status is RunStatus.RUNNING
            await asyncio.sleep(1)
            assert (await engine.workflows.get("default", start.run_id)).status is RunStatus.PENDING
            (claim,) = (await engine.workers.poll(adopting(2))).claims
            assert (claim.run_id, claim.executions) == (start.run_id, 2)

    run(main)


def test_a_worker_that_came_and_went_away_again_gets_its_run_with_the_next_poll() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            store: Any = engine.store
            await answered(engine)
            apply = store.work.apply

            async def slowly(*args: Any) -> Any:
                await asyncio.sleep(5)
                return await apply(*args)

            store.work.apply = slowly
            starting = asyncio.ensure_future(engine.workflows.start(start := new_start(engine)))
            await asyncio.sleep(0)
            gone = asyncio.create_task(engine.workers.poll(adopting(2)))
            await asyncio.sleep(1)
            assert not gone.done()
            await cancel(gone)
            assert (await starting).status is RunStatus.RUNNING
            (claim,) = (await engine.workers.poll(adopting(2))).claims
            assert (claim.run_id, claim.executions) == (start.run_id, 2)

    run(main)


def test_a_late_poll_for_which_nothing_was_born_waits_like_any_other() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await answered(engine)
            await asyncio.sleep(1)
            task = asyncio.create_task(engine.workers.poll(adopting(2)))
            await asyncio.sleep(1)
            assert not task.done()
            start, status = await started(engine)
            assert status is RunStatus.RUNNING
            assert [claim.run_id for claim in (await task).claims] == [start.run_id]

    run(main)


def test_a_poll_that_was_left_out_gives_its_runs_back() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await answered(engine)
            start, _ = await started(engine)
            (claim,) = (await engine.workers.poll(adopting(3))).claims
            assert (claim.run_id, claim.executions) == (start.run_id, 2)

    run(main)


def test_what_is_older_goes_first() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await answered(engine)
            older, status = await started(engine, workflow_type="refund")
            assert status is RunStatus.PENDING
            newer, status = await started(engine)
            assert status is RunStatus.PENDING
            types = (WorkflowType("order"), WorkflowType("refund"))
            claims = (await engine.workers.poll(adopting(2, types=types))).claims
            assert [claim.run_id for claim in claims] == [older.run_id, newer.run_id]

    run(main)


def test_a_worker_that_leaves_gives_back_what_was_born_for_it() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.register(new_registration())
            await answered(engine)
            start, status = await started(engine)
            assert status is RunStatus.RUNNING
            await engine.workers.deregister(WORKER)
            assert (await engine.workflows.get("default", start.run_id)).status is RunStatus.PENDING
            assert (await started(engine))[1] is RunStatus.PENDING

    run(main)


def test_a_worker_that_went_to_another_server_gives_them_back_with_its_heartbeat(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine_on(tmp_path) as one, engine_on(tmp_path) as other:
            await answered(one)
            start, status = await started(one)
            assert status is RunStatus.RUNNING
            # Neither the poll before it nor the one it was born for finds it there: the first server may hand it back.
            assert (await other.workers.poll(adopting(1, wait=0))).claims == ()
            assert (await other.workers.poll(adopting(2, wait=0))).claims == ()
            await other.workers.heartbeat(Heartbeat(worker_id=WORKER, held=(), heard=2))
            (claim,) = (await other.workers.poll(adopting(3))).claims
            assert (claim.run_id, claim.executions) == (start.run_id, 2)
            await asyncio.sleep(1)  # and the first server, which still waits for it, does not take it away
            held = Heartbeat(worker_id=WORKER, held=((claim.run_id, claim.token),), heard=3)
            assert (await other.workers.heartbeat(held)).lost == ()

    run(main)


def test_a_server_that_closes_hands_them_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine_on(tmp_path) as other:
            async with engine_on(tmp_path) as one:
                await answered(one)
                start, status = await started(one)
                assert status is RunStatus.RUNNING
            assert (await other.workflows.get("default", start.run_id)).status is RunStatus.PENDING

    run(main)


def test_nothing_is_born_for_a_poll_that_has_come_already() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            store: Any = engine.store
            claim_from_store = store.work.claim

            async def claim(*asked: Any) -> Polled:
                polled: Polled = await claim_from_store(*asked)
                if polled.claims:
                    engine.wakeups.wake(("default", "shop"))  # so that the next poll looks, too
                await asyncio.sleep(0)
                return polled

            store.work.claim = claim

            async def polling() -> Polled:
                assert len((await engine.workers.poll(adopting(limit=3))).claims) == 1
                return await engine.workers.poll(adopting(2, limit=3))  # in the same turn

            await started(engine)
            task = asyncio.create_task(polling())
            await asyncio.sleep(0.1)
            began = asyncio.get_running_loop().time()
            start, status = await started(engine)
            assert status is RunStatus.RUNNING
            assert [claim.run_id for claim in (await task).claims] == [start.run_id]
            assert asyncio.get_running_loop().time() == began

    run(main)


def test_who_waits_for_a_run_hears_of_its_end_before_its_place_is_given_away() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            (claim,) = await filled(engine)
            told: list[str] = []
            end = engine.workflows.expect(claim.namespace, claim.run_id)
            assert end is not None
            end.then(lambda _: told.append("the end"))
            adopters = engine._opened.adopters
            offer = adopters.offer

            def offered(*args: Any, **kwargs: Any) -> Any:
                told.append("the place")
                return offer(*args, **kwargs)

            adopters.offer = offered  # type: ignore[method-assign]
            await ended(engine, [claim])
            await asyncio.sleep(0)
            assert told == ["the end", "the place"]
            assert (await started(engine))[1] is RunStatus.RUNNING

    run(main)

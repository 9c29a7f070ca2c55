"""Workers that leave while something is on its way to them, and polls that are not what they seem."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kagzi.api.operations import Started, StartRun
from kagzi.api.workers import Poll
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.engine.local import LocalEngine
from tests.engine.support import OTHER_WORKER, WORKER, cancel, new_engine, new_poll, new_registration, new_start, run


def adopting(number: int = 1, **fields: Any) -> Poll:
    return new_poll(number, adopts=True, **fields)


@asynccontextmanager
async def registered() -> AsyncIterator[LocalEngine]:
    async with new_engine() as engine:
        await engine.workers.register(new_registration())
        yield engine


def held_up(engine: LocalEngine, method: str) -> Callable[[], None]:
    """The next call of this method of the store's work has its effect when it is let go."""
    work: Any = engine.store.work
    called = getattr(work, method)
    free = asyncio.Event()

    async def later(*args: Any) -> Any:
        await free.wait()
        return await called(*args)

    setattr(work, method, later)
    return free.set


async def claimable(engine: LocalEngine, run_id: str) -> None:
    """Another worker gets the run at once, and nothing has burned."""
    (claim,) = (await engine.workers.poll(new_poll(worker_id=OTHER_WORKER, wait=0))).claims
    assert (claim.run_id, claim.crashes) == (run_id, 0)


@pytest.mark.parametrize("poll", [new_poll(), adopting()])
def test_what_is_being_claimed_for_a_worker_that_leaves_is_handed_back(poll: Poll) -> None:
    async def main() -> None:
        async with registered() as engine:
            start = new_start(engine)
            await engine.workflows.start(start)
            let_go = held_up(engine, "claim")
            polling = asyncio.create_task(engine.workers.poll(poll))
            await asyncio.sleep(1)
            polling.cancel()
            leaving = asyncio.create_task(engine.workers.deregister(WORKER))
            await asyncio.sleep(1)
            assert not leaving.done()
            let_go()
            await leaving
            assert polling.cancelled()
            await claimable(engine, start.run_id)

    run(main)


def test_what_is_being_born_for_a_worker_that_leaves_is_handed_back() -> None:
    async def main() -> None:
        async with registered() as engine:
            polling = asyncio.create_task(engine.workers.poll(adopting()))
            await asyncio.sleep(1)
            let_go = held_up(engine, "apply")
            start = new_start(engine)
            starting = asyncio.ensure_future(engine.workflows.start(start))
            await asyncio.sleep(1)
            polling.cancel()
            leaving = asyncio.create_task(engine.workers.deregister(WORKER))
            await asyncio.sleep(1)
            let_go()
            assert (await starting).status is RunStatus.RUNNING
            await leaving
            await claimable(engine, start.run_id)

    run(main)


async def being_born(engine: LocalEngine) -> tuple[StartRun, asyncio.Future[Started], Callable[[], None]]:
    """A run for the poll that the worker makes next, stored when it is let go."""
    assert (await engine.workers.poll(adopting(wait=SECOND))).claims == ()
    await asyncio.sleep(0)
    let_go = held_up(engine, "apply")
    start = new_start(engine)
    starting = asyncio.ensure_future(engine.workflows.start(start))
    await asyncio.sleep(0.05)
    return start, starting, let_go


async def its_worker_leaves(engine: LocalEngine) -> None:
    await engine.workers.deregister(WORKER)


async def its_server_stops(engine: LocalEngine) -> None:
    await engine._opened.polls.stop_offering()


@pytest.mark.parametrize("ending", [its_worker_leaves, its_server_stops])
def test_what_is_handed_back_to_all_is_not_handed_out_as_well(
    ending: Callable[[LocalEngine], Coroutine[Any, Any, None]],
) -> None:
    """It was born for a worker's next poll, which has come for it. Two would drive it under one token."""

    async def main() -> None:
        async with registered() as engine:
            start, starting, let_go = await being_born(engine)
            polling = asyncio.create_task(engine.workers.poll(adopting(2, wait=SECOND)))
            await asyncio.sleep(0.05)
            over = asyncio.create_task(ending(engine))
            await asyncio.sleep(0.05)
            let_go()
            assert (await starting).status is RunStatus.RUNNING
            await over
            claims = (await polling).claims
            if ending is its_worker_leaves:
                assert claims == ()
                await claimable(engine, start.run_id)
            else:  # it goes on looking, and claims this like anything that is handed back
                assert [(claim.run_id, claim.executions) for claim in claims] == [(start.run_id, 2)]

    run(main)


def test_a_poll_that_still_waits_when_its_worker_leaves_ends_and_gets_nothing() -> None:
    """Its caller may be gone without a word."""

    async def main() -> None:
        async with registered() as engine:
            polling = asyncio.create_task(engine.workers.poll(adopting()))
            await asyncio.sleep(1)
            began = asyncio.get_running_loop().time()
            await engine.workers.deregister(WORKER)
            assert (await polling).claims == ()
            assert asyncio.get_running_loop().time() == began
            start = new_start(engine)
            assert (await engine.workflows.start(start)).status is RunStatus.PENDING
            await claimable(engine, start.run_id)

    run(main)


def test_a_poll_that_was_given_up_during_its_claim_has_claimed_when_it_is_over() -> None:
    """Whoever repeats it then finds what it got, at this server or at another one."""

    async def main() -> None:
        async with registered() as engine:
            start = new_start(engine)
            await engine.workflows.start(start)
            let_go = held_up(engine, "claim")
            polling = asyncio.create_task(engine.workers.poll(new_poll()))
            await asyncio.sleep(1)
            for _ in range(3):
                polling.cancel()
                await asyncio.sleep(1)
                assert not polling.done()
            let_go()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert (await engine.workflows.get("default", start.run_id)).status is RunStatus.RUNNING
            (claim,) = (await engine.workers.poll(new_poll())).claims
            assert (claim.run_id, claim.executions) == (start.run_id, 1)

    run(main)


def test_a_claim_that_fails_when_nobody_waits_for_it_is_not_complained_of() -> None:
    async def main() -> None:
        async with registered() as engine:
            complaints: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            store: Any = engine.store

            async def claim(*_: Any) -> None:
                await asyncio.sleep(1)
                raise RuntimeError

            store.work.claim = claim
            polling = asyncio.create_task(engine.workers.poll(new_poll()))
            await asyncio.sleep(0.5)
            await cancel(polling)
            assert polling.cancelled()
            assert complaints == []

    run(main)


def test_a_poll_repeated_while_a_birth_for_it_is_under_way_gets_the_run() -> None:
    """The connection broke, and the first one is not known to be dead yet."""

    async def main() -> None:
        async with registered() as engine:
            start, starting, let_go = await being_born(engine)
            first = asyncio.create_task(engine.workers.poll(adopting(2)))
            await asyncio.sleep(0.1)
            repeat = asyncio.create_task(engine.workers.poll(adopting(2)))
            await asyncio.sleep(0.1)
            first.cancel()
            await asyncio.sleep(0.1)
            let_go()
            await starting
            assert [claim.run_id for claim in (await repeat).claims] == [start.run_id]
            assert first.cancelled()
            await asyncio.sleep(1)
            assert (await engine.workflows.get("default", start.run_id)).status is RunStatus.RUNNING

    run(main)


def test_polls_of_one_worker_for_different_queues_are_all_answered() -> None:
    """As those of workers in the field may be, which name one queue in each call."""

    async def main() -> None:
        async with registered() as engine:
            polls = {
                queue: asyncio.create_task(
                    engine.workers.poll(new_poll(queues=(queue,), token=f"00000000-0000-4000-8000-00000000000{queue}"))
                )
                for queue in ("a", "b", "c")
            }
            await asyncio.sleep(1)
            began = asyncio.get_running_loop().time()
            for queue, polling in polls.items():
                start = new_start(engine, task_queue=queue)
                await engine.workflows.start(start)
                assert [claim.run_id for claim in (await polling).claims] == [start.run_id]
            assert asyncio.get_running_loop().time() == began

    run(main)


def test_who_uses_the_id_of_a_worker_of_another_namespace_gets_and_disturbs_nothing() -> None:
    async def main() -> None:
        async with registered() as engine:
            await engine.workers.poll(adopting(wait=SECOND))
            await asyncio.sleep(0)
            start = new_start(engine)
            assert (await engine.workflows.start(start)).status is RunStatus.RUNNING  # for the second poll
            foreign = adopting(2, namespace="foreign", wait=0)
            assert (await engine.workers.poll(foreign)).claims == ()
            await engine.workers.deregister(WORKER, "foreign")
            (claim,) = (await engine.workers.poll(adopting(2))).claims
            assert claim.run_id == start.run_id
            polling = asyncio.create_task(engine.workers.poll(adopting(3)))
            await asyncio.sleep(1)
            intruding = asyncio.create_task(engine.workers.poll(adopting(3, namespace="foreign")))
            await asyncio.sleep(1)
            await engine.workers.deregister(WORKER, "foreign")
            assert (await intruding).claims == ()
            began = asyncio.get_running_loop().time()
            another = new_start(engine)
            await engine.workflows.start(another)
            assert [claim.run_id for claim in (await polling).claims] == [another.run_id]
            assert asyncio.get_running_loop().time() == began

    run(main)

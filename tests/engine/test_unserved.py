"""Runs that no worker of their queue executes do not slow down its polls, and are taken when one comes."""

from __future__ import annotations

import asyncio

from kagzi.core.instant import SECOND
from kagzi.core.worker import WorkflowType
from kagzi.engine.local import LocalEngine
from tests.engine.support import OTHER_WORKER, new_engine, new_poll, new_registration, new_start, run

RUNS = 2000


async def instructions_of_a_poll(engine: LocalEngine, number: int) -> int:
    """How many instructions of its machine SQLite needs to find nothing: a few for every row that it reads."""
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1

    connection = engine.store._database._writer._connection  # type: ignore[attr-defined]
    connection.set_progress_handler(counted, 1)
    try:
        assert not (await engine.workers.poll(new_poll(number, wait=0))).claims
    finally:
        connection.set_progress_handler(None, 0)
    return count


def test_a_poll_reads_none_of_them() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            await engine.workers.register(new_registration())
            await asyncio.gather(
                *[engine.workflows.start(new_start(engine, workflow_type="rare")) for _ in range(RUNS)]
            )
            walked = await instructions_of_a_poll(engine, 1)
            await engine.workers.poll(new_poll(2, wait=20 * SECOND))
            spared = await instructions_of_a_poll(engine, 3)
            assert walked > 20 * RUNS
            assert spared < 2000

    run(main)


def test_they_are_taken_within_two_seconds_of_their_worker() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            await engine.workers.register(new_registration())
            started = await engine.workflows.start(new_start(engine, workflow_type="rare"))
            await engine.workers.poll(new_poll(1, wait=20 * SECOND))
            poll = new_poll(2, types=(WorkflowType("rare"),), worker_id=OTHER_WORKER, wait=10 * SECOND)
            await engine.workers.register(new_registration(worker_id=OTHER_WORKER, types=(WorkflowType("rare"),)))
            before = asyncio.get_running_loop().time()
            (claim,) = (await engine.workers.poll(poll)).claims
            assert claim.run_id == started.run_id
            assert asyncio.get_running_loop().time() - before <= 2

    run(main)


def test_a_worker_that_asks_for_more_than_it_has_registered_gets_it() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            await engine.workers.register(new_registration())
            started = await engine.workflows.start(new_start(engine, workflow_type="rare"))
            await engine.workers.poll(new_poll(1, wait=20 * SECOND))
            poll = new_poll(2, types=(WorkflowType("rare"),), wait=10 * SECOND)
            (claim,) = (await engine.workers.poll(poll)).claims
            assert claim.run_id == started.run_id

    run(main)

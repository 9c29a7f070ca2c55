"""An idle engine leaves the database alone."""

from __future__ import annotations

import asyncio
from typing import Any

from kagzi.api.workers import Heartbeat
from kagzi.core.instant import SECOND
from kagzi.errors import Unavailable
from tests.engine.support import (
    OTHER_WORKER,
    WORKER,
    cancel,
    chunk,
    claim_one,
    complete,
    count_calls,
    new_engine,
    new_poll,
    new_registration,
    new_start,
    run,
)


def test_an_idle_process_with_worker_waiter_and_coordinator_asks_at_most_twice_a_second() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            await engine.workers.register(new_registration())
            remote = await engine.workflows.start(new_start(engine, task_queue="elsewhere"))
            await engine.workflows.start(new_start(engine, delay=10**12))
            waiting = asyncio.create_task(engine.workflows.wait("default", remote.run_id, 600 * SECOND))
            polling = asyncio.create_task(engine.workers.poll(new_poll(wait=600 * SECOND)))
            await asyncio.sleep(5.5)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            await asyncio.sleep(10)
            assert calls["overview.horizon"] in (9, 10)
            assert calls["runs.finished_of"] in range(6, 11)
            assert calls.total() <= 20, calls
            await asyncio.sleep(300)
            await engine.workers.heartbeat(Heartbeat(worker_id=WORKER, held=(), heard=0))
            # Everything that happens once in a while, included.
            assert calls.total() <= 2 * 311, calls
            await cancel(waiting, polling)

    run(main)


def test_an_idle_worker_costs_one_query_a_second() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            polling = asyncio.create_task(engine.workers.poll(new_poll(wait=600 * SECOND)))
            await asyncio.sleep(5.5)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            await asyncio.sleep(10)
            assert calls.total() <= 10, calls
            await cancel(polling)

    run(main)


def test_without_polls_waiters_and_coordinator_there_is_no_query_at_all() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            await asyncio.sleep(100)
            assert not calls
            # A worker that has gone is forgotten after a while, and so is a waiter.
            started = await engine.workflows.start(new_start(engine))
            await engine.workers.poll(new_poll(wait=SECOND, queues=("other",)))
            await engine.workflows.wait("default", started.run_id, SECOND)
            await asyncio.sleep(20)
            calls.clear()
            await asyncio.sleep(100)
            assert not calls
            # And it is all there again when somebody needs it.
            await engine.workers.commit(chunk(await claim_one(engine, 2), complete()))

    run(main)


def test_a_sibling_for_heartbeats_never_asks_by_itself() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            sibling = engine.sibling()
            calls = count_calls(sibling.store)  # type: ignore[arg-type]
            await sibling.open()
            answer = await sibling.workers.heartbeat(Heartbeat(worker_id=WORKER, held=(), heard=0))
            assert not answer.known
            await asyncio.sleep(10)
            assert calls == {"workers.heartbeats": 1}
            await sibling.close()
            # Closing it leaves the engine as it was.
            await engine.workflows.start(new_start(engine))

    run(main)


def test_other_processes_are_listened_to_only_while_somebody_waits() -> None:
    async def main() -> None:
        listening: list[bool] = []

        async def listen(*_: Any) -> None:
            listening.append(True)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                listening.append(False)

        engine = new_engine()
        engine.store.wakeups.listen = listen  # type: ignore[method-assign]
        async with engine:
            await asyncio.sleep(10)
            assert listening == []
            await engine.workers.poll(new_poll(wait=5 * SECOND))
            assert listening == [True]
            await asyncio.sleep(60)
            assert listening == [True, False]
            await engine.workers.poll(new_poll(2, wait=5 * SECOND))
            assert listening == [True, False, True]
        assert listening == [True, False, True, False]

    run(main)


def test_a_listener_that_dies_is_started_again_and_polling_goes_on_meanwhile() -> None:
    async def main() -> None:
        tries: list[float] = []

        async def listen(*_: Any) -> None:
            tries.append(asyncio.get_running_loop().time())
            raise RuntimeError("broken")

        engine = new_engine()
        engine.store.wakeups.listen = listen  # type: ignore[method-assign]
        async with engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            polling = asyncio.create_task(engine.workers.poll(new_poll(wait=600 * SECOND)))
            await asyncio.sleep(200)
            assert 5 <= len(tries) <= 20
            await other.workflows.start(new_start(other))
            assert len((await polling).claims) == 1

    run(main)


def test_the_pulse_survives_an_outage() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            store = engine.store
            horizon, finished_of = store.overview.horizon, store.runs.finished_of
            tries = 0

            async def down(*_: Any) -> Any:
                nonlocal tries
                tries += 1
                raise Unavailable("down") if tries % 2 else RuntimeError("bug")

            started = await other.workflows.start(new_start(other, delay=30 * SECOND))
            polling = asyncio.create_task(engine.workers.poll(new_poll(wait=600 * SECOND)))
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 600 * SECOND))
            await asyncio.sleep(1.5)
            store.overview.horizon = store.runs.finished_of = down  # type: ignore[method-assign]
            await asyncio.sleep(60)
            assert 8 < tries < 60
            store.overview.horizon, store.runs.finished_of = horizon, finished_of  # type: ignore[method-assign]
            began = asyncio.get_running_loop().time()
            (claim,) = (await polling).claims
            assert asyncio.get_running_loop().time() - began < 8
            await other.workers.commit(chunk(claim, complete()))
            await waiting

    run(main)


def test_announcements_to_other_processes_are_coalesced() -> None:
    async def main() -> None:
        announced: list[tuple[float, Any, Any]] = []

        async def announce(work: Any, finished: Any, news: Any) -> None:
            announced.append((asyncio.get_running_loop().time(), work, finished))

        engine = new_engine()
        engine.store.wakeups.announce = announce  # type: ignore[method-assign]
        async with engine:
            for _ in range(100):
                await engine.workflows.start(new_start(engine))
                await asyncio.sleep(0.0002)
            # At once, then no more often than every 5 ms.
            assert announced[0][0] < 0.0001
            assert 4 <= len(announced) <= 6
            assert announced[0][1] == [("default", "shop")]
            # What was born beside a worker is nobody else's business; the end of a run nobody waits for here is.
            await asyncio.sleep(1)
            announced.clear()
            claims = (await engine.workers.poll(new_poll(limit=100))).claims
            await asyncio.gather(*(engine.workers.commit(chunk(claim, complete())) for claim in claims))
            await asyncio.sleep(1)
            assert sum(len(finished) for _, _, finished in announced) == 100
            assert len(announced) <= 2

    run(main)


def test_an_announcement_that_fails_is_only_a_hint_lost() -> None:
    async def main() -> None:
        async def announce(work: Any, finished: Any, news: Any) -> None:
            raise Unavailable("down")

        engine = new_engine()
        engine.store.wakeups.announce = announce  # type: ignore[method-assign]
        async with engine:
            await engine.workflows.start(new_start(engine))
            await asyncio.sleep(5)
            await engine.workflows.start(new_start(engine))
            assert len((await engine.workers.poll(new_poll(worker_id=OTHER_WORKER))).claims) == 2

    run(main)

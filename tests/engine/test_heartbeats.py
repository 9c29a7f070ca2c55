"""Heartbeats of many workers go to the database together, and nobody waits longer than its leases allow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kagzi.api.workers import Heartbeat, HeartbeatAnswer
from kagzi.core.instant import SECOND
from kagzi.core.worker import WorkerStatus
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, Unavailable
from kagzi.store.protocol.workers import HeartbeatResult
from tests.engine.support import (
    OTHER_WORKER,
    WORKER,
    cancel,
    claim_one,
    new_engine,
    new_poll,
    new_registration,
    new_start,
    run,
)


def worker(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def beat(worker_id: str = WORKER, held: Sequence[tuple[str, str]] = (), **fields: Any) -> Heartbeat:
    return Heartbeat(**({"worker_id": worker_id, "held": tuple(held), "heard": 0} | fields))


class Batches:
    """What an engine writes: when, and whose heartbeats."""

    def __init__(self, engine: LocalEngine) -> None:
        self.written: list[tuple[float, list[str]]] = []
        self.fail: Exception | None = None
        self.seconds = 0.0
        self._inner = engine.store.workers.heartbeats
        engine.store.workers.heartbeats = self._write  # type: ignore[method-assign]

    async def _write(self, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        self.written.append((now(), [each.worker_id for each in beats]))
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if self.fail is not None:
            raise self.fail
        return await self._inner(beats)

    @property
    def sizes(self) -> list[int]:
        return [len(workers) for _, workers in self.written]


def now() -> float:
    return asyncio.get_running_loop().time()


def send(engine: LocalEngine, heartbeat: Heartbeat) -> asyncio.Task[HeartbeatAnswer]:
    return asyncio.create_task(engine.workers.heartbeat(heartbeat))


def test_a_worker_alone_never_waits() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            batches = Batches(engine)
            await engine.workers.register(new_registration())
            for _ in range(5):
                begun = now()
                assert (await engine.workers.heartbeat(beat())).known
                assert now() - begun < 0.001
                await asyncio.sleep(10)
            assert batches.sizes == [1] * 5

    run(main)


def test_two_hundred_idle_workers_cost_a_third_of_a_transaction_a_second() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            batches = Batches(engine)
            longest = 0.0

            async def work(number: int) -> None:
                nonlocal longest
                await engine.workers.register(new_registration(worker_id=worker(number)))
                await asyncio.sleep(number / 20)
                while True:
                    begun = now()
                    assert (await engine.workers.heartbeat(beat(worker(number)))).known
                    longest = max(longest, now() - begun)
                    await asyncio.sleep(10)

            workers = [asyncio.create_task(work(number)) for number in range(200)]
            await asyncio.sleep(100)
            assert 10 <= len(batches.written) <= 100 / 3 + 1
            assert sum(batches.sizes) >= 200 * 7
            assert longest <= 3.001
            counts = await engine.store.workers.count("default", 3600 * SECOND)
            assert counts == {WorkerStatus.ONLINE: 200}
            await cancel(*workers)

    run(main)


def test_what_collects_is_written_a_window_after_the_last() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            batches = Batches(engine)
            await send(engine, beat(worker(1)))
            await asyncio.sleep(1)
            first = [send(engine, beat(worker(number))) for number in (2, 3)]
            await asyncio.sleep(1)
            second = send(engine, beat(worker(4)))
            await asyncio.gather(*first, second)
            assert [(round(at), len(workers)) for at, workers in batches.written] == [(0, 1), (3, 3)]

    run(main)


def test_answers_are_each_workers_own_and_what_goes_back_is_claimed_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            for worker_id in (WORKER, OTHER_WORKER):
                await engine.workers.register(new_registration(worker_id=worker_id))
            await engine.workflows.start(new_start(engine))
            lost = await claim_one(engine)
            polling = asyncio.create_task(engine.workers.poll(new_poll(9, worker_id=OTHER_WORKER, wait=600 * SECOND)))
            await engine.workers.heartbeat(beat(worker(7)))
            stranger, mine, other = await asyncio.gather(
                send(engine, beat(worker(8))), send(engine, beat(heard=1)), send(engine, beat(OTHER_WORKER))
            )
            assert (stranger.known, mine.known, other.known) == (False, True, True)
            at = now()
            assert [claim.run_id for claim in (await polling).claims] == [lost.run_id]
            assert now() - at < 0.1

    run(main)


def test_a_short_lease_waits_for_a_tenth_of_it() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            batches = Batches(engine)
            await engine.workers.register(new_registration())
            await engine.workflows.start(new_start(engine, lease_length=3 * SECOND))
            claim = await claim_one(engine)
            held = [(claim.run_id, claim.token)]
            await engine.workers.heartbeat(beat(worker(1)))
            # Nobody here knows how long its lease is.
            at = now()
            await engine.workers.heartbeat(beat(held=held, heard=1))
            assert now() - at < 0.011
            # Now it is known; and who has more time goes along.
            at = now()
            answers = send(engine, beat(worker(2))), send(engine, beat(held=held, heard=1))
            await asyncio.gather(*answers)
            assert 0.29 < now() - at < 0.301
            assert batches.sizes == [1, 1, 2]
            # Without the run, there is time again.
            at = now()
            await engine.workers.heartbeat(beat(heard=0))
            assert 2.99 < now() - at < 3.001

    run(main)


def test_a_run_that_was_not_renewed_here_before_does_not_wait_with_those_that_were() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.register(new_registration())
            held = []
            for number in (1, 2):
                await engine.workflows.start(new_start(engine, lease_length=3 * number * SECOND))
                claim = await claim_one(engine, number)
                held.append((claim.run_id, claim.token))
            waits = []
            for listed in (held[1:], held[1:], held, held):
                at = now()
                assert (await engine.workers.heartbeat(beat(held=listed, heard=0))).lost == ()
                waits.append(round(now() - at, 2))
            assert waits == [0.0, 0.6, 0.01, 0.3]

    run(main)


def test_a_worker_without_a_list_waits_as_its_confirmed_leases_allow() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.register(new_registration())
            await engine.workflows.start(new_start(engine, lease_length=SECOND))
            claim = await claim_one(engine)
            waits = []
            for confirm in (False, False, True, False):
                if confirm:
                    await engine.leases.read("default", claim.run_id, claim.token, confirm=True)
                at = now()
                await engine.workers.heartbeat(beat(confirmed=True))
                waits.append(round(now() - at, 2))
            assert waits == [0.0, 3.0, 0.1, 0.1]

    run(main)


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        (EngineSettings(), 3.0),
        (EngineSettings(lease=300 * SECOND), 3.0),
        (EngineSettings(lease=SECOND), 0.1),
        (EngineSettings(heartbeat=2 * SECOND), 0.6),
        (EngineSettings(worker_stale=5 * SECOND), 0.5),
    ],
)
def test_the_window_follows_the_settings(settings: EngineSettings, window: float) -> None:
    async def main() -> None:
        async with new_engine(settings=settings) as engine:
            await engine.workers.heartbeat(beat())
            at = now()
            await engine.workers.heartbeat(beat())
            assert now() - at == pytest.approx(window, abs=0.001)

    run(main)


def test_a_caller_that_goes_away_leaves_the_others_alone() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            batches = Batches(engine)
            await engine.workers.heartbeat(beat(worker(1)))
            waiting = [send(engine, beat(worker(number))) for number in (2, 3)]
            await asyncio.sleep(1)
            await cancel(waiting[0])
            await waiting[1]
            assert batches.written[1][1] == [worker(3)]
            # And while it is being written.
            batches.seconds = 1.0
            await asyncio.sleep(5)
            waiting = [send(engine, beat(worker(number))) for number in (4, 5)]
            await asyncio.sleep(0.5)
            await cancel(waiting[0])
            await waiting[1]
            assert batches.written[2][1] == [worker(4), worker(5)]
            # Nobody is left: nothing is written.
            alone = send(engine, beat(worker(6)))
            await asyncio.sleep(0.5)
            await cancel(alone)
            await asyncio.sleep(10)
            assert batches.sizes == [1, 1, 2]

    run(main)


def test_what_comes_while_others_are_written_goes_together_after_them() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            batches = Batches(engine)
            batches.seconds = 5.0
            first = send(engine, beat(worker(1)))
            await asyncio.sleep(1)
            later = [send(engine, beat(worker(number))) for number in (2, 3, 4)]
            await asyncio.gather(first, *later)
            assert [(round(at), len(workers)) for at, workers in batches.written] == [(0, 1), (5, 3)]

    run(main)


def test_a_worker_is_not_twice_in_a_batch_and_a_batch_has_a_bound() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            batches = Batches(engine)
            await engine.workers.heartbeat(beat())
            await asyncio.gather(*(send(engine, beat()) for _ in range(3)))
            assert batches.sizes == [1, 1, 1, 1]
            await asyncio.gather(*(send(engine, beat(worker(number))) for number in range(2500)))
            assert batches.sizes[4:] == [1000, 1000, 500]
            held = [(worker(number), worker(number)) for number in range(4000)]
            await asyncio.gather(*(send(engine, beat(worker(number), held)) for number in range(5)))
            assert batches.sizes[7:] == [2, 2, 1]

    run(main)


def test_whose_heartbeat_failed_among_others_sends_the_next_alone() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            batches = Batches(engine)
            await engine.workers.heartbeat(beat(worker(1)))
            for failure in (Unavailable("down"), InvalidRequest("a bug")):
                batches.fail = failure
                together = [send(engine, beat(worker(number))) for number in (2, 3)]
                for answer in await asyncio.gather(*together, return_exceptions=True):
                    assert isinstance(answer, Unavailable)
                    assert answer is not failure
                batches.fail = None
                batches.written.clear()
                at = now()
                await asyncio.gather(*(send(engine, beat(worker(number))) for number in (2, 3)))
                assert now() - at < 0.001
                assert batches.sizes == [1, 1]
                batches.written.clear()
                await asyncio.sleep(10)
                await asyncio.gather(*(send(engine, beat(worker(number))) for number in (2, 3)))
                assert batches.sizes == [2]
            # Alone, it hears what is wrong.
            for failure in (Unavailable("down"), InvalidRequest("a bug")):
                batches.fail = failure
                with pytest.raises(type(failure)):
                    await engine.workers.heartbeat(beat(worker(9)))

    run(main)


def test_closing_refuses_what_waits_and_finishes_what_is_under_way() -> None:
    async def main() -> None:
        engine = new_engine()
        await engine.open()
        batches = Batches(engine)
        await engine.workers.register(new_registration())
        workers = engine.workers
        batches.seconds = 1.0
        written = send(engine, beat())
        await asyncio.sleep(0.5)
        waiting = [send(engine, beat(worker(number))) for number in (2, 3)]
        await asyncio.sleep(0.1)
        await engine.close()
        assert (await written).known
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, Unavailable)
        with pytest.raises(Unavailable):
            await workers.heartbeat(beat())
        assert batches.sizes == [1]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_closing_in_the_middle_of_a_window_leaves_no_timer() -> None:
    async def main() -> None:
        engine = new_engine()
        await engine.open()
        batches = Batches(engine)
        await engine.workers.heartbeat(beat())
        waiting = send(engine, beat(OTHER_WORKER))
        await asyncio.sleep(0.1)
        await engine.close()
        with pytest.raises(Unavailable):
            await waiting
        await asyncio.sleep(10)
        assert batches.sizes == [1]

    run(main)

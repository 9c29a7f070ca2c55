"""Wake-ups are hints, siblings are the same store, and nothing that was handed over is lost."""

from __future__ import annotations

import asyncio
import threading

from kagzi.api.operations import Chunk, ChunkAnswer, CompleteRun
from kagzi.core.run import RunStatus
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, Bench


class TestWakeups:
    async def test_announcing_needs_no_listener(self, bench: Bench) -> None:
        await bench.store.wakeups.announce([(NAMESPACE, QUEUE)], [(NAMESPACE, bench.new_id())])
        await bench.store.wakeups.announce([], [])

    async def test_listening_lasts_until_it_is_cancelled(self, bench: Bench) -> None:
        listening = asyncio.create_task(bench.store.wakeups.listen(_ignore, _ignore, _ignore))
        await asyncio.sleep(0)
        await bench.start()
        assert not listening.done()

        listening.cancel()

        await asyncio.wait([listening])
        assert listening.cancelled()

    async def test_listening_ends_with_the_store(self, bench: Bench) -> None:
        other = bench.store.sibling()
        await other.open()
        listening = asyncio.create_task(other.wakeups.listen(_ignore, _ignore, _ignore))
        await asyncio.sleep(0.01)

        await other.close()

        await asyncio.wait([listening], timeout=10)
        assert listening.done()
        await bench.start()

    async def test_a_sibling_works_in_another_thread_while_this_loop_is_blocked(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        answers: list[object] = []

        async def beat() -> None:
            sibling = bench.store.sibling()
            await sibling.open()
            try:
                other = Bench(sibling, bench.clock)
                other.worker_id = bench.worker_id
                answers.append((await other.beat(claim, heard=1))[0].lost)
            finally:
                await sibling.close()

        thread = threading.Thread(target=lambda: asyncio.run(beat()))
        thread.start()
        thread.join(timeout=30)  # blocks this loop on purpose

        assert answers == [()]
        await bench.done(claim, CompleteRun(output=b"1"))

    async def test_a_cancelled_caller_does_not_cancel_the_commit(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        chunk = bench.chunk(claim, bench.completed("a", 1), CompleteRun(output=b"1"))
        applying = asyncio.create_task(_apply(bench, chunk))
        await asyncio.sleep(0)  # it is on its way now

        applying.cancel()
        await asyncio.wait([applying])

        # What comes later finds it done, whether or not the caller has heard the answer.
        assert await bench.answer(chunk) is ChunkAnswer.DONE
        run, steps = await bench.state(claim.run_id)
        assert run.status is RunStatus.COMPLETED
        assert len(steps) == 1

    async def test_calls_at_once_do_not_disturb_each_other(self, bench: Bench) -> None:
        starts = [bench.start_run() for _ in range(20)]

        await asyncio.gather(*(bench.answer(start) for start in starts))
        polls = [bench.poll(limit=3, worker_id=bench.new_id()) for _ in range(10)]
        polled = await asyncio.gather(*(bench.polled(poll) for poll in polls))

        claims = [claim for each in polled for claim in each.claims]
        assert sorted(claim.run_id for claim in claims) == sorted(start.run_id for start in starts)
        answers = await asyncio.gather(*(bench.send(claim, CompleteRun(output=b"1")) for claim in claims))
        assert answers == [ChunkAnswer.DONE] * 20


async def _apply(bench: Bench, chunk: Chunk) -> None:
    await bench.apply([chunk])


def _ignore(*_: str | tuple[str, str]) -> None:
    pass

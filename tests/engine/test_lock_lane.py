"""Writes that meet a row which somebody has locked, on virtual time and a database that says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from kagzi.api.operations import Answer, Chunk, ChunkAnswer, SignalAnswer, StartRun, TerminateRun, Write
from kagzi.api.reply import Reply, gather
from kagzi.core.instant import SECOND
from kagzi.engine.batcher import Batcher
from kagzi.engine.lock_lane import ATTEMPTS, LockLane, key_of
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Locked, Unavailable
from kagzi.store.protocol.changes import Applied
from tests.engine.support import run

SETTINGS = EngineSettings(lock_patience=4 * SECOND, patience=8 * SECOND)


def chunk(run_id: str, namespace: str = "n", token: str = "t") -> Chunk:
    return Chunk(namespace=namespace, run_id=run_id, token=token, operations=())


def request(run_id: str) -> TerminateRun:
    return TerminateRun(namespace="n", run_id=run_id)


def start(external_id: str) -> StartRun:
    return StartRun(
        namespace="n", run_id=f"new-{external_id}", external_id=external_id, workflow_type="w", task_queue="q"
    )


class Database:
    """Commits in a tenth of a second. What is `locked` is answered with that, at once or after half a second."""

    def __init__(self, *locked: str) -> None:
        self.locked = set(locked)
        self.written: list[tuple[float, str]] = []
        self.batches: list[list[str]] = []
        self.attempts: list[list[str]] = []
        self.at_once = 0
        self.most_at_once = 0

    async def apply(self, writes: Sequence[Write]) -> Applied:
        self.batches.append([key_of(write)[1] for write in writes])
        return await self._write(writes, 0.1)

    async def apply_patiently(self, writes: Sequence[Write]) -> Applied:
        self.attempts.append([key_of(write)[1] for write in writes])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        held = any(key_of(write)[1] in self.locked for write in writes)
        applied = await self._write(writes, 0.5 if held else 0.1)
        self.at_once -= 1
        return applied

    async def _write(self, writes: Sequence[Write], seconds: float) -> Applied:
        await asyncio.sleep(seconds)
        answers: list[Answer] = []
        for write in writes:
            key = key_of(write)[1]
            if key in self.locked:
                answers.append(Locked("locked by process 7"))
            else:
                self.written.append((asyncio.get_running_loop().time(), key))
                answers.append(ChunkAnswer.DONE)
        return Applied(answers, [])

    def batcher(self, settings: EngineSettings = SETTINGS) -> Batcher:
        lane = LockLane(self.apply_patiently, lambda *given: _give(*given), settings)
        return Batcher(self.apply, settings=settings, locked=lane)


def _give(writes: list[Write], replies: list[Reply[SignalAnswer]], applied: Applied) -> None:
    for reply, answer in zip(replies, applied.answers, strict=True):
        reply.settle(answer)  # type: ignore[arg-type]


def test_a_locked_run_holds_up_nobody_else_and_is_met_by_one_batch_only() -> None:
    async def main() -> None:
        database = Database("a")
        batcher, loop = database.batcher(), asyncio.get_running_loop()
        began = loop.time()
        held = [batcher.submit(write) for write in (chunk("a"), request("a"))]
        others = [batcher.submit(chunk("b"))]
        for _ in range(30):  # ten a second of the locked run, and as many of others
            held.append(batcher.submit(chunk("a")))
            others.append(batcher.submit(chunk("b")))
            await asyncio.sleep(0.1)
        assert await asyncio.gather(*others) == [ChunkAnswer.DONE] * 31
        assert loop.time() - began < 3.3
        assert [batch for batch in database.batches if "a" in batch] == [["a", "a", "b", "a", "b"]]
        database.locked.clear()
        assert await asyncio.gather(*held) == [ChunkAnswer.DONE] * 32
        await batcher.submit(chunk("a"))
        assert database.batches[-1] == ["a"]  # nothing is known of it any more

    run(main)


def test_the_writes_of_a_run_stay_in_order_wherever_they_wait() -> None:
    async def main() -> None:
        database = Database("a")
        order: list[int] = []
        batcher = database.batcher(EngineSettings(batch_writes=2, patience=8 * SECOND))
        replies = [batcher.submit(chunk("a", token=f"{number}")) for number in range(7)]
        for number, reply in enumerate(replies):
            reply.then(lambda _, number=number: order.append(number))  # type: ignore[misc]
        await asyncio.sleep(0.15)
        replies.append(batcher.submit(chunk("a", token="7")))
        replies[-1].then(lambda _: order.append(7))
        await asyncio.sleep(1)
        assert database.written == []
        database.locked.clear()
        await asyncio.gather(*replies)
        assert order == list(range(8))
        assert len(database.written) == 8

    run(main)


def test_who_waits_for_too_long_is_told_who_holds_it_and_so_is_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        database = Database("a", "order-1")
        batcher, loop = database.batcher(), asyncio.get_running_loop()
        began = loop.time()
        early, late = batcher.submit(request("a")), batcher.submit(start("order-1"))
        leased, behind = batcher.submit(chunk("a")), batcher.submit(chunk("a"))
        for reply in (early, late):
            with pytest.raises(Unavailable, match=r"run (a|new-order-1) waits for a lock: locked by process 7"):
                await reply
        assert 4 <= loop.time() - began < 5.5
        with pytest.raises(Locked, match="locked by process 7"):
            await leased
        with pytest.raises(Unavailable):
            await behind
        tried = len(database.batches)
        with pytest.raises(Unavailable):
            await batcher.submit(request("a"))
        assert len(database.batches) == tried  # it is still known to be locked

    with caplog.at_level(logging.WARNING, "kagzi"):
        run(main)
    said = [record.getMessage() for record in caplog.records]
    assert any("run a has waited" in each and "locked by process 7" in each for each in said)
    assert len(said) < 6  # not at each attempt


def test_a_failed_chunk_takes_those_behind_it_along_here_too() -> None:
    async def main() -> None:
        database = Database("a")
        batcher = database.batcher()
        first = batcher.submit(chunk("a"))
        await asyncio.sleep(3)
        later = batcher.submit(chunk("a"))  # would have seconds left
        with pytest.raises(Unavailable, match="process 7"):
            await first
        with pytest.raises(Locked, match="process 7"):  # not merely Unavailable: its worker would let go of the run
            await later

    run(main)


def test_a_lock_that_holds_up_many_runs_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        database = Database(*(f"a{number}" for number in range(200)))
        batcher = database.batcher(EngineSettings(lock_patience=30 * SECOND))
        held = [batcher.submit(chunk(f"a{number}")) for number in range(200)]
        await asyncio.sleep(8)
        database.locked.clear()
        assert await asyncio.gather(*held) == [ChunkAnswer.DONE] * 200

    with caplog.at_level(logging.WARNING, "kagzi"):
        run(main)
    said = [record.getMessage() for record in caplog.records]
    assert 1 <= len(said) <= 5
    assert all("of its namespace 200 wait" in each and "locked by process 7" in each for each in said)


def test_a_namespace_with_many_locked_runs_leaves_an_attempt_to_others() -> None:
    async def main() -> None:
        database = Database(*(f"a{number}" for number in range(9)), "b")
        batcher, loop = database.batcher(), asyncio.get_running_loop()
        many = [batcher.submit(chunk(f"a{number}", "greedy")) for number in range(9)]
        await asyncio.sleep(2)
        other = batcher.submit(chunk("b", "modest"))
        await asyncio.sleep(0.2)
        database.locked.discard("b")
        began = loop.time()
        assert await other is ChunkAnswer.DONE
        assert loop.time() - began < 1.2
        assert database.most_at_once <= ATTEMPTS
        database.locked.clear()
        assert await asyncio.gather(*many) == [ChunkAnswer.DONE] * 9

    run(main)


def test_what_was_locked_for_a_moment_is_written_in_one_attempt() -> None:
    async def main() -> None:
        database = Database(*"abcdef")
        batcher = database.batcher()
        replies = [batcher.submit(chunk(run_id)) for run_id in "abcdef"]
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_later(0.051, database.locked.clear)
        assert await asyncio.gather(*replies) == [ChunkAnswer.DONE] * 6
        assert database.attempts == [list("abcdef")]

    run(main)


def test_an_engine_that_is_closed_does_not_wait_for_a_lock_for_ever() -> None:
    async def main() -> None:
        database = Database("a")
        batcher, loop = database.batcher(EngineSettings()), asyncio.get_running_loop()
        reply = batcher.submit(chunk("a"))
        await asyncio.sleep(1)
        began = loop.time()
        await batcher.close()
        assert loop.time() - began < 6
        with pytest.raises(Unavailable, match="process 7"):
            await reply

    run(main)


def test_those_who_are_answered_together_with_a_locked_write_do_not_wait_for_it() -> None:
    async def main() -> None:
        database = Database("a")
        batcher, loop = database.batcher(), asyncio.get_running_loop()
        began = loop.time()
        answers = await gather([batcher.submit(chunk(run_id)) for run_id in "abc"])
        assert loop.time() - began < 0.5
        assert [type(answer) for answer in answers] == [Locked, ChunkAnswer, ChunkAnswer]
        alone = gather([batcher.submit(chunk("a"))])
        asyncio.get_running_loop().call_later(2, database.locked.clear)
        assert await alone == [ChunkAnswer.DONE]
        assert 2 < loop.time() - began < 4

    run(main)


def test_a_run_that_is_locked_again_is_not_forgotten_because_it_was_locked_before() -> None:
    async def main() -> None:
        database = Database("a")
        batcher, loop = database.batcher(), asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(Locked):  # after four seconds; the run counts as locked for ten more
            await batcher.submit(request("a"))
        database.locked.clear()
        assert await batcher.submit(request("a")) is ChunkAnswer.DONE
        database.locked.add("a")
        await asyncio.sleep(12.5 - (loop.time() - began))
        held = [batcher.submit(chunk("a"))]
        await asyncio.sleep(2.5)
        held.append(batcher.submit(chunk("a")))
        met = [batch for batch in database.batches if "a" in batch]
        database.locked.clear()
        assert await asyncio.wait_for(asyncio.gather(*held), 5) == [ChunkAnswer.DONE] * 2
        assert len(met) == 2  # each lock once
        assert [batch for batch in database.batches if "a" in batch] == met

    run(main)


def test_who_waits_behind_many_other_locks_hears_of_it_in_time_too() -> None:
    async def main() -> None:
        database = Database(*(f"a{number}" for number in range(200)))
        batcher, loop = database.batcher(), asyncio.get_running_loop()
        began = loop.time()
        held = [batcher.submit(request(f"a{number}")) for number in range(200)]
        await asyncio.sleep(1)
        free = batcher.submit(request("b"))
        answers = await gather(held)
        assert {type(answer) for answer in answers} == {Locked}
        assert loop.time() - began < 6
        await free

    run(main)

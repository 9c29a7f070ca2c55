from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kagzi.api.operations import Answer, Chunk, ChunkAnswer, HandBackRun, Started, StartRun, Write
from kagzi.api.reply import Reply
from kagzi.core.instant import SECOND
from kagzi.engine.batcher import Batcher
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Conflict, KagziError, Unavailable
from kagzi.store.protocol.changes import Applied
from tests.engine.support import new_engine, run


def write(name: str, run_id: str = "") -> Chunk:
    return Chunk(namespace=name, run_id=run_id or name, token="t", operations=())


class Database:
    """Takes batches; a commit takes a second of virtual time."""

    def __init__(self, fault: Callable[[list[str]], Exception | None] = lambda _: None) -> None:
        self.batches: list[list[str]] = []
        self.tried: list[list[str]] = []
        self.fault = fault
        self.refuses: dict[str, Answer] = {}

    async def apply(self, writes: Sequence[Write]) -> Applied:
        names = [w.namespace for w in writes]
        self.tried.append(names)
        await asyncio.sleep(1)
        error = self.fault(names)
        if error is not None:
            raise error
        self.batches.append(names)
        return Applied([self.refuses.get(name, ChunkAnswer.DONE) for name in names], [])


def test_what_is_submitted_in_one_turn_shares_a_commit_and_the_next_batch_fills_meanwhile() -> None:
    async def main() -> list[list[str]]:
        database = Database()
        batcher = Batcher(database.apply)
        first = [batcher.submit(write(name)) for name in "abc"]
        await asyncio.sleep(0.5)
        second = [batcher.submit(write(name)) for name in "de"]
        assert await asyncio.gather(*first, *second) == [ChunkAnswer.DONE] * 5
        return database.batches

    assert run(main) == [["a", "b", "c"], ["d", "e"]]


def test_an_idle_batcher_waits_for_nothing() -> None:
    async def main() -> float:
        batcher = Batcher(Database().apply)
        loop = asyncio.get_running_loop()
        for _ in range(3):
            began = loop.time()
            await batcher.submit(write("a"))
            assert loop.time() - began == pytest.approx(1.0)
        return 0

    run(main)


def test_batches_are_bounded_by_count_and_by_bytes_and_keep_the_order() -> None:
    async def main() -> list[list[str]]:
        database = Database()
        batcher = Batcher(database.apply, settings=EngineSettings(batch_writes=3, batch_bytes=100))
        futures = [batcher.submit(write(name)) for name in "abcd"]
        futures += [batcher.submit(write(name), 60) for name in "efg"]
        await asyncio.gather(*futures)
        return database.batches

    assert run(main) == [["a", "b", "c"], ["d", "e", "f"], ["g"]]


def test_large_starts_take_turns_with_everything_else() -> None:
    def start(name: str) -> StartRun:
        return StartRun(namespace=name, run_id=name, workflow_type="w", task_queue="q", input=b"")

    async def main() -> list[list[str]]:
        database = Database()
        batcher = Batcher(database.apply)
        large = [batcher.submit(start(name), 2_000_000) for name in "ABC"]
        medium = [batcher.submit(start(name), 600_000) for name in "DEFG"]
        small = [batcher.submit(write("a")), batcher.submit(start("b"), 100)]
        await asyncio.sleep(1.5)
        small += [batcher.submit(write("c"), 2_000_000)]  # in its order, however large it is
        await asyncio.gather(*large, *medium, *small)
        return database.batches

    assert run(main) == [["a", "b"], ["A"], ["c"], ["B"], ["C"], ["D", "E"], ["F", "G"]]


def test_too_many_bytes_of_large_starts_are_refused_at_once() -> None:
    async def main() -> None:
        batcher = Batcher(Database().apply, settings=EngineSettings(waiting_writes=1000, batch_bytes=3_000_000))
        start = StartRun(namespace="n", run_id="r", workflow_type="w", task_queue="q", input=b"")
        taken = [batcher.submit(start, 1_500_000) for _ in range(2)]
        with pytest.raises(Unavailable, match="too many writes are waiting"):
            await batcher.submit(start, 1_500_000)
        await asyncio.gather(*taken)
        await batcher.submit(start, 1_500_000)

    run(main)


def test_what_came_with_one_call_is_written_apart_from_the_next_if_it_is_worth_a_batch() -> None:
    async def main() -> list[int]:
        database = Database()
        batcher = Batcher(database.apply)

        def call(size: int) -> list[Reply[Answer]]:
            replies = [batcher.submit(write(f"{number}")) for number in range(size)]
            batcher.close_batch()
            return replies

        large = call(50) + call(50)
        await asyncio.gather(*large)
        small = call(10) + call(10)
        await asyncio.gather(*small)
        many = [reply for _ in range(6) for reply in call(50)]
        await asyncio.gather(*many)
        return [len(batch) for batch in database.batches]

    # Of many calls at once the last are written together: nobody gains if each of them waits for all others.
    assert run(main) == [50, 50, 20, 50, 250]


def test_each_write_gets_its_own_answer() -> None:
    async def main() -> None:
        database = Database()
        database.refuses = {"b": ChunkAnswer.LEASE_LOST, "c": Conflict("taken")}
        batcher = Batcher(database.apply)
        futures = [batcher.submit(write(name)) for name in "abcd"]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert [answers[0], answers[1], answers[3]] == [
            ChunkAnswer.DONE,
            ChunkAnswer.LEASE_LOST,
            ChunkAnswer.DONE,
        ]
        assert isinstance(answers[2], Conflict)

    run(main)


def test_a_caller_who_leaves_does_not_take_the_commit_along() -> None:
    async def main() -> None:
        database = Database()
        heard: list[tuple[str, Answer]] = []
        batcher = Batcher(
            database.apply,
            settled=lambda writes, applied: heard.extend(
                (w.namespace, a) for w, a in zip(writes, applied.answers, strict=True)
            ),
        )

        async def caller(name: str) -> Answer:
            return await batcher.submit(write(name))

        early, late, stays = (asyncio.create_task(caller(name)) for name in "abc")
        await asyncio.sleep(0)
        early.cancel()
        await asyncio.sleep(0.5)
        late.cancel()
        assert await stays is ChunkAnswer.DONE
        assert early.cancelled()
        assert late.cancelled()
        assert database.batches == [["a", "b", "c"]]
        assert heard == [(name, ChunkAnswer.DONE) for name in "abc"]

    run(main)


def test_an_outage_repeats_the_same_batch_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        outage = iter([True] * 4)
        database = Database(lambda _: Unavailable("down") if next(outage, False) else None)
        batcher = Batcher(database.apply)
        first = batcher.submit(write("a"))
        await asyncio.sleep(0.5)
        second = batcher.submit(write("b"))
        assert await first is ChunkAnswer.DONE
        assert await second is ChunkAnswer.DONE
        assert database.tried == [["a"]] * 5 + [["b"]]

    with caplog.at_level(logging.WARNING, "kagzi"):
        run(main)
    assert len(caplog.records) == 1


def test_a_long_outage_becomes_unavailable_and_nobody_waits_longer_than_patience() -> None:
    async def main() -> None:
        database = Database(lambda _: Unavailable("down"))
        batcher = Batcher(database.apply, settings=EngineSettings(patience=30 * SECOND))
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = batcher.submit(write("a"))
        await asyncio.sleep(5)
        second = batcher.submit(write("b"))
        with pytest.raises(Unavailable, match="down"):
            await first
        assert 30 <= loop.time() - began < 35
        with pytest.raises(Unavailable):
            await second
        assert loop.time() - began < 5 + 35
        database.fault = lambda _: None
        assert await batcher.submit(write("c")) is ChunkAnswer.DONE

    run(main)


def test_one_bad_write_is_found_and_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        database = Database(lambda names: OverflowError("value out of range") if "bad" in names else None)
        batcher = Batcher(database.apply)
        names = [f"w{n}" for n in range(50)] + ["bad"] + [f"x{n}" for n in range(49)]
        futures = [batcher.submit(write(name)) for name in names]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            if name == "bad":
                assert type(answer) is KagziError
                assert "OverflowError" in str(answer)
                assert "out of range" not in str(answer)
                assert isinstance(answer.__cause__, OverflowError)
            else:
                assert answer is ChunkAnswer.DONE
        assert [name for batch in database.batches for name in batch] == [n for n in names if n != "bad"]
        assert await batcher.submit(write("later")) is ChunkAnswer.DONE

    with caplog.at_level(logging.ERROR, "kagzi"):
        run(main)
    assert len(caplog.records) == 1


def test_a_store_that_refuses_everything_is_not_asked_for_ever() -> None:
    async def main() -> None:
        database = Database(lambda _: RuntimeError("bug"))
        batcher = Batcher(database.apply)
        futures = [batcher.submit(write(f"w{n}")) for n in range(1000)]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(answer, KagziError) for answer in answers)
        assert len(database.tried) < 150

    run(main)


def test_nothing_of_a_lease_is_written_after_a_chunk_that_failed() -> None:
    async def main() -> None:
        database = Database(lambda names: OverflowError("bad") if "a1" in names else None)
        batcher = Batcher(database.apply)
        futures = {name: batcher.submit(write(name, run_id=name[0])) for name in ("b1", "a1", "a2", "b2")}
        await asyncio.sleep(0.5)
        futures |= {name: batcher.submit(write(name, run_id=name[0])) for name in ("a3", "b3")}
        answers = dict(zip(futures, await asyncio.gather(*futures.values(), return_exceptions=True), strict=True))
        assert {name for name, answer in answers.items() if answer is ChunkAnswer.DONE} == {"b1", "b2", "b3"}
        assert [name for batch in database.batches for name in batch] == ["b1", "b2", "b3"]

    run(main)


def test_an_answer_missing_is_an_error_of_that_batch_only() -> None:
    async def main() -> None:
        short = iter([True])

        async def apply(writes: Sequence[Write]) -> Applied:
            return Applied([] if next(short, False) else [ChunkAnswer.DONE] * len(writes), [])

        batcher = Batcher(apply)
        with pytest.raises(KagziError):
            await batcher.submit(write("a"))
        assert await batcher.submit(write("b")) is ChunkAnswer.DONE

    run(main)


def test_bookkeeping_that_fails_costs_nobody_an_answer() -> None:
    async def main() -> None:
        def settled(writes: list[Write], applied: Applied) -> None:
            raise RuntimeError("bug")

        batcher = Batcher(Database().apply, settled=settled)
        assert await batcher.submit(write("a")) is ChunkAnswer.DONE

    run(main)


def test_too_many_waiting_writes_are_refused_at_once() -> None:
    async def main() -> None:
        settings = EngineSettings(batch_writes=2, waiting_writes=4)
        batcher = Batcher(Database().apply, settings=settings)
        futures = [batcher.submit(write(str(n))) for n in range(5)]
        assert futures[4].done()
        with pytest.raises(Unavailable, match="too many"):
            await futures[4]
        assert await asyncio.gather(*futures[:4]) == [ChunkAnswer.DONE] * 4

    run(main)


def test_closing_waits_for_what_is_in_flight_and_refuses_the_rest() -> None:
    async def main() -> None:
        batcher = Batcher(Database().apply)
        first = batcher.submit(write("a"))
        await asyncio.sleep(0.5)
        second = batcher.submit(write("b"))
        await batcher.close()
        assert first.answer is ChunkAnswer.DONE
        assert second.answer is ChunkAnswer.DONE
        with pytest.raises(Unavailable, match="closed"):
            await batcher.submit(write("c"))

    run(main)


def test_a_loop_that_is_shut_down_leaves_nobody_waiting() -> None:
    replies: list[Reply[Answer]] = []

    async def main() -> None:
        batcher = Batcher(Database().apply, settings=EngineSettings(batch_writes=1))
        replies.extend(batcher.submit(write(name)) for name in "ab")
        await asyncio.sleep(0.5)

    run(main)
    for reply in replies:
        assert isinstance(reply.answer, Unavailable)


def test_a_caller_who_has_gone_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        database = Database()
        database.refuses = {"a": Conflict("taken")}
        batcher = Batcher(database.apply)
        batcher.submit(write("a"))
        await batcher.submit(write("b"))
        gc.collect()

    with caplog.at_level(logging.ERROR, "asyncio"):
        run(main)
    assert not caplog.records


def test_starts_and_chunks_share_batches() -> None:
    async def main() -> None:
        async def apply(writes: Sequence[Write]) -> Applied:
            return Applied(
                [Started(run_id=w.run_id) if isinstance(w, StartRun) else ChunkAnswer.DONE for w in writes], []
            )

        batcher = Batcher(apply)
        start = batcher.submit(StartRun(namespace="d", run_id="r", workflow_type="t", task_queue="q"))
        other = batcher.submit(write("a"))
        assert await start == Started(run_id="r")
        assert await other is ChunkAnswer.DONE

    run(main)


def test_the_chunks_of_one_call_are_a_batch_of_their_own() -> None:
    async def main() -> list[int]:
        async with new_engine() as engine:
            store: Any = engine.store
            apply, sizes = store.work.apply, []

            async def counted(writes: Sequence[Write]) -> Applied:
                sizes.append(len(writes))
                applied: Applied = await apply(writes)
                return applied

            store.work.apply = counted
            run_ids = [engine._ids.run_id() for _ in range(80)]
            chunks = [
                Chunk(namespace="default", run_id=run_id, token=run_id, operations=(HandBackRun(),))
                for run_id in run_ids
            ]
            calls = engine.workers.commit_together(chunks[:40]) + engine.workers.commit_together(chunks[40:])
            assert set(await asyncio.gather(*calls)) == {ChunkAnswer.LEASE_LOST}
            return sizes

    assert run(main) == [40, 40]

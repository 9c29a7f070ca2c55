"""Values: set under a lease, the last of a name counts, readable as long as the run is there."""

from __future__ import annotations

import pytest

from kagzi.api.operations import CancelRun, ChunkAnswer, CompleteRun, ParkRun, RepeatRun, RetryRun, SetValue, Started
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.run_value import RunValue
from kagzi.errors import InvalidRequest
from kagzi.store.postgres import values as postgres_values
from kagzi.store.sqlite import values as sqlite_values
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, Bench


def value(name: str, data: bytes, number: int = 0) -> SetValue:
    return SetValue(name=name, value=data, number=number)


async def read(bench: Bench, run_id: str, *names: str, after: str = "", namespace: str = NAMESPACE) -> dict[str, bytes]:
    return {each.name: each.value for each in await bench.store.runs.values(namespace, run_id, names, after)}


class TestValues:
    async def test_a_value_is_read_as_it_was_last_set(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        assert await bench.send(claim, value("stage", b'"one"', 1)) is ChunkAnswer.DONE
        bench.clock.advance(SECOND)
        chunk = (bench.completed("a", 1), value("stage", b'"two"', 2), value("n", b"1", 3), value("n", b"2", 4))
        assert await bench.send(claim, *chunk) is ChunkAnswer.DONE
        assert await bench.store.runs.values(NAMESPACE, run_id, (), "") == [
            RunValue(name="n", value=b"2", at=bench.now()),
            RunValue(name="stage", value=b'"two"', at=bench.now()),
        ]
        assert [step.completed_seq for step in await bench.store.runs.steps(NAMESPACE, run_id)] == [1]

    async def test_values_are_found_by_name_and_from_a_name_on(self, bench: Bench) -> None:
        run_id = await bench.start()
        names = ("Zoo", "a b", "ab", "é", "@progress")
        await bench.send(await bench.claim(), *(value(name, b"1") for name in names))
        assert list(await read(bench, run_id)) == sorted(names)
        assert list(await read(bench, run_id, after="a b")) == ["ab", "é"]
        assert list(await read(bench, run_id, "ab", "unknown", "Zoo")) == ["Zoo", "ab"]
        assert list(await read(bench, run_id, "ab", "Zoo", after="Zoo")) == ["ab"]

    @pytest.mark.parametrize("alone", [True, False])
    async def test_what_comes_late_does_not_bring_an_older_value_back(self, bench: Bench, alone: bool) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        early = (value("stage", b"1", 1),) if alone else (bench.completed("a", 1), value("stage", b"1", 1))
        for chunk in (early, (value("stage", b"2", 2),), early):
            assert await bench.send(claim, *chunk) is ChunkAnswer.DONE
        assert await read(bench, run_id) == {"stage": b"2"}

    async def test_each_lease_counts_anew(self, bench: Bench) -> None:
        run_id = await bench.start()
        await bench.send(await bench.claim(), value("stage", b"1", 7), ParkRun(available_at=bench.now(), inbox_seq=0))
        claim = await bench.claim()
        assert claim.executions == 2
        assert await bench.send(claim, value("stage", b"2", 1)) is ChunkAnswer.DONE
        assert await read(bench, run_id) == {"stage": b"2"}

    async def test_values_are_set_with_the_end_and_stay(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        end = (value("stage", b'"over"'), CompleteRun(output=b"1"))
        assert [await bench.send(claim, *end) for _ in range(2)] == [ChunkAnswer.DONE] * 2
        assert (await bench.run(run_id)).status is RunStatus.COMPLETED
        assert await bench.send(claim, value("stage", b'"again"', 9)) is ChunkAnswer.LEASE_LOST
        assert await read(bench, run_id) == {"stage": b'"over"'}

    async def test_values_are_set_although_there_is_news(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id))
        end = CompleteRun(output=b"1", unless_cancelled=True)
        assert await bench.send(claim, value("stage", b"1"), end) is ChunkAnswer.NEWS
        assert await read(bench, run_id) == {"stage": b"1"}

    async def test_a_stale_holder_sets_nothing(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        bench.clock.advance(LEASE + 1)
        await bench.store.duties.recover_runs(10, 9, lambda _: 0)
        assert await bench.send(claim, value("stage", b"1")) is ChunkAnswer.LEASE_LOST
        newer = await bench.claim()
        assert await bench.send(newer, value("stage", b"2")) is ChunkAnswer.DONE
        assert await bench.send(claim, bench.completed("a", 1), value("stage", b"1", 9)) is ChunkAnswer.LEASE_LOST
        assert await read(bench, run_id) == {"stage": b"2"}

    async def test_many_runs_set_values_in_one_batch(self, bench: Bench) -> None:
        run_ids = [await bench.start() for _ in range(3)]
        claims = await bench.claims()
        chunks = [bench.chunk(claim, value("n", str(place).encode())) for place, claim in enumerate(claims)]
        chunks.append(bench.chunk(claims[0], value("n", b"9", 1)))
        answers = (await bench.store.work.apply([*chunks, bench.chunk(claims[1], bench.completed("a", 1))])).answers
        assert answers == [ChunkAnswer.DONE] * 5
        found = {claims[place].run_id: data for place, data in enumerate((b"9", b"1", b"2"))}
        assert {run_id: (await read(bench, run_id))["n"] for run_id in run_ids} == found

    async def test_a_run_has_a_hundred_values_at_most(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (postgres_values, sqlite_values):
            monkeypatch.setattr(module, "MOST_VALUES", 2)
        run_id = await bench.start()
        other = await bench.start()
        claim, beside = await bench.claims()
        claim, beside = (claim, beside) if claim.run_id == run_id else (beside, claim)
        await bench.send(claim, value("a", b"1"), value("@progress", b"1"), value("b", b"1"))
        assert await bench.send(claim, value("b", b"2", 1)) is ChunkAnswer.DONE
        applied = await bench.store.work.apply(
            [
                bench.chunk(claim, bench.completed("x", 1), value("c", b"1", 2)),
                bench.chunk(beside, value("c", b"1")),
            ]
        )
        answers = applied.answers
        assert isinstance(answers[0], InvalidRequest)
        assert "more than 100 values" in str(answers[0])
        assert answers[1] is ChunkAnswer.DONE
        assert list(await read(bench, run_id)) == ["@progress", "a", "b"]
        assert list(await read(bench, other)) == ["c"]
        assert await bench.store.runs.steps(NAMESPACE, run_id) == []

    async def test_another_namespace_sees_none(self, bench: Bench) -> None:
        run_id = await bench.start()
        await bench.send(await bench.claim(), value("stage", b"1"))
        assert await read(bench, run_id, namespace="elsewhere") == {}
        assert await read(bench, "no id") == {}

    async def test_a_retry_of_the_run_keeps_values_and_a_repeated_run_begins_without(self, bench: Bench) -> None:
        run_id = await bench.start()
        retry = RetryRun(available_at=bench.now(), keep_seq=0, error=b"no")
        await bench.send(await bench.claim(), value("stage", b"1"), retry)
        assert await read(bench, run_id) == {"stage": b"1"}
        await bench.send(await bench.claim(), CompleteRun(output=b"1"))
        new = bench.new_id()
        repeat = RepeatRun(namespace=NAMESPACE, run_id=new, of_run_id=run_id, keep_steps=True)
        assert isinstance(await bench.answer(repeat), Started)
        assert await read(bench, new) == {}

    async def test_values_go_with_their_run(self, bench: Bench) -> None:
        run_id = await bench.start()
        await bench.send(await bench.claim(), value("stage", b"1"), CompleteRun(output=b"1"))
        bench.clock.advance(31 * 86400 * SECOND)
        await bench.store.duties.prune_runs(100, None)
        assert await read(bench, run_id) == {}

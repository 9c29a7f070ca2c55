"""Reads that share a query: each caller gets its own answer, and one that is no older than the question."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from kagzi.core.run import Run
from kagzi.engine.reads import Reads
from kagzi.errors import Unavailable
from kagzi.store.protocol.store import Store
from tests.engine.support import run


class Slow:
    """A store that answers when it is told to, with the number of the read."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.release = asyncio.Event()
        self.problem: Exception | None = None
        self.runs = self

    async def get(self, namespace: str, run_id: str) -> Run | None:
        found = await self.get_many([(namespace, run_id)])
        return found[0] if found else None

    async def get_many(self, runs: Sequence[tuple[str, str]]) -> list[Run]:
        self.asked.append([run_id for _, run_id in runs])
        number = len(self.asked)
        await self.release.wait()
        if self.problem is not None:
            raise self.problem
        return [_run(namespace, run_id, number) for namespace, run_id in runs if run_id != "nobody"]


def _run(namespace: str, run_id: str, priority: int) -> Run:
    nothing: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
    return Run(**{**nothing, "namespace": namespace, "run_id": run_id, "priority": priority})


def reads_of(store: Slow) -> Reads:
    return Reads(cast("Store", store))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_those_who_ask_together_share_a_read() -> None:
    async def main() -> None:
        store = Slow()
        reads = reads_of(store)
        asked = [reads.get("default", name) for name in ("a", "b", "nobody", "a")]
        store.release.set()
        found = [await reply for reply in asked]
        assert store.asked == [["a", "b", "nobody"]]
        assert [run and run.run_id for run in found] == ["a", "b", None, "a"]

    run(main)


def test_who_asks_while_a_read_is_under_way_gets_a_newer_one() -> None:
    """What was asked before may have been read before: a result that came in between would be missed."""

    async def main() -> None:
        store = Slow()
        reads = reads_of(store)
        first = reads.get("default", "a")
        await turns()
        second = reads.get("default", "a")
        await turns()
        assert store.asked == [["a"], ["a"]]
        store.release.set()
        assert [found.priority for found in (await first, await second) if found] == [1, 2]

    run(main)


def test_two_reads_are_under_way_and_the_rest_goes_together() -> None:
    async def main() -> None:
        store = Slow()
        reads = reads_of(store)
        asked = []
        for number in range(250):
            asked.append(reads.get("default", f"{number}"))
            await turns(2)
        assert store.asked == [["0"], ["1"]]
        store.release.set()
        found = [await reply for reply in asked]
        assert [run.run_id for run in found if run] == [f"{number}" for number in range(250)]
        assert [len(keys) for keys in store.asked] == [1, 1, 100, 100, 48]
        # And when all of that is over, the next one is read again.
        late = await reads.get("default", "late")
        assert late is not None
        assert late.run_id == "late"

    run(main)


def test_a_caller_that_gives_up_takes_nobody_along() -> None:
    async def main() -> None:
        store = Slow()
        reads = reads_of(store)

        async def ask() -> Run | None:
            return await reads.get("default", "a")

        tasks = [asyncio.create_task(ask()) for _ in range(2)]
        await turns()
        tasks[0].cancel()
        await turns()
        store.release.set()
        found = await tasks[1]
        assert found is not None
        assert tasks[0].cancelled()

    run(main)


def test_a_failed_read_fails_all_who_share_it_each_with_an_error_of_its_own() -> None:
    async def main() -> None:
        store = Slow()
        store.problem = Unavailable("the database is away")
        store.release.set()
        reads = reads_of(store)
        asked = [reads.get("default", "a"), reads.get("default", "b")]
        errors = []
        for reply in asked:
            with pytest.raises(Unavailable, match="the database is away") as caught:
                await reply
            errors.append(caught.value)
        assert errors[0] is not errors[1]
        store.problem = None
        assert await reads.get("default", "a") is not None

    run(main)

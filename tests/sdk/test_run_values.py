"""How what a run says about itself travels: along with what is stored anyway, seldom alone, never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi, Progress, WorkflowFailed
from kagzi.api.operations import Chunk, SetValue, Write
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest
from kagzi.store.protocol.changes import Applied
from kagzi.store.sqlite.work import Work
from kagzi.testing import run_virtually

Sent = list[tuple[float, list[str]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """What reaches the store: when, and the operations of each chunk. A commit takes 10 ms here."""
    chunks: Sent = []
    apply = Work.apply

    async def noted(self: Work, writes: Sequence[Write]) -> Applied:
        loop = asyncio.get_running_loop()
        for write in writes:
            if isinstance(write, Chunk):
                chunks.append((round(loop.time() - began[0], 2), [_name(each) for each in write.operations]))
            else:
                began[0] = loop.time()
        await asyncio.sleep(0.01)
        return await apply(self, writes)

    began = [0.0]
    monkeypatch.setattr(Work, "apply", noted)
    return chunks


def _name(operation: object) -> str:
    return operation.name if isinstance(operation, SetValue) else type(operation).__name__


def drive(app: Kagzi, flow: Any) -> None:
    async def main() -> None:
        await flow.run()

    run_virtually(app, main)


def test_values_ride_in_the_chunk_that_is_sent_anyway(sent: Sent) -> None:
    app = Kagzi("memory://")

    @app.step
    async def work() -> None:
        await asyncio.sleep(0.05)

    @app.workflow
    async def flow() -> None:
        kagzi.set_value("a", 1)
        await work()
        kagzi.set_value("a", 2)
        kagzi.set_value("b", 1)
        await work()
        kagzi.set_value("a", 3)

    drive(app, flow)
    assert [operations for _, operations in sent] == [
        ["CompleteStep", "a", "b"],
        ["CompleteStep", "a", "CompleteRun"],
    ]


def test_a_value_goes_alone_when_nothing_else_is_sent(sent: Sent) -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def flow() -> None:
        kagzi.set_value("a", 1)
        await asyncio.sleep(0.8)  # in memory

    drive(app, flow)
    (first, *_) = [(at, operations) for at, operations in sent if "a" in operations]
    assert first[0] <= 0.15
    assert sum("a" in operations for _, operations in sent) == 1


def test_no_body_waits_for_a_value(sent: Sent) -> None:
    """Ten steps with and without values take equally long, and as many commits."""
    app = Kagzi("memory://")

    @app.step
    async def work() -> None:
        await asyncio.sleep(0.005)

    @app.workflow
    async def flow(talks: bool) -> None:
        for number in range(10):
            if talks:
                kagzi.set_value("number", number)
                kagzi.progress(number / 10)
            await work()

    took: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for talks in (False, True):
            began = loop.time()
            await flow.run(talks)
            took.append(round(loop.time() - began, 3))

    run_virtually(app, main)
    assert took[0] == took[1]
    assert len(sent) == 20


@pytest.mark.parametrize("threads", [False, True])
def test_progress_is_stored_once_a_second_and_the_last_one_at_the_end(sent: Sent, threads: bool) -> None:
    app = Kagzi("memory://")

    @app.step
    async def work() -> None:
        for number in range(350):
            kagzi.progress(number / 350)
            await asyncio.sleep(0.01)

    @app.step
    def at_once() -> None:
        for number in range(1000):
            kagzi.progress(number / 1000, "at once")

    @app.workflow
    async def flow() -> None:
        await (at_once() if threads else work())

    seen: list[Any] = []

    async def main() -> None:
        run = await flow.start()
        await run.result()
        seen.append(await run.progress())

    run_virtually(app, main)
    moments = [at for at, operations in sent if "@progress" in operations]
    if threads:
        assert len(moments) == 1
        assert seen == [Progress(0.999, "at once")]
    else:
        assert 4 <= len(moments) <= 6
        gaps = [later - earlier for earlier, later in pairwise(moments)]
        assert all(gap >= 0.99 for gap in gaps[:-1])
        assert seen == [Progress(349 / 350)]


def test_a_value_that_is_refused_fails_the_run_and_is_not_sent_again(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def flow() -> None:
        kagzi.set_value("bad", 1)
        await kagzi.sleep("1h")

    apply = Work.apply

    async def refusing(self: Work, writes: Sequence[Write]) -> Applied:
        for write in writes:
            if isinstance(write, Chunk) and "bad" in map(_name, write.operations):
                return Applied([InvalidRequest("no such value")] * len(writes), [])
        return await apply(self, writes)

    monkeypatch.setattr(Work, "apply", refusing)

    async def main() -> None:
        with pytest.raises(WorkflowFailed, match="no such value"):
            await flow.run()

    run_virtually(app, main)
    assert [operations for _, operations in sent] == [["FailRun"]]


def test_what_a_crash_took_is_said_again_by_the_next_execution() -> None:
    app = Kagzi("memory://")

    @app.step
    async def work() -> None:
        await asyncio.sleep(0.05)

    @app.workflow
    async def flow() -> str:
        kagzi.set_value("old", 1)
        await work()
        kagzi.set_value("stage", "sleeps")
        await kagzi.sleep("1 day")
        kagzi.set_value("stage", "awake")
        return "done"

    async def main() -> None:
        run = await flow.start()
        await asyncio.sleep(5)
        store: Any = app.engine
        assert isinstance(store, LocalEngine)
        database: Any = store.store
        delete = "DELETE FROM run_values"
        await database._database.write(lambda connection: connection.execute(delete))
        await asyncio.sleep(25 * 3600)
        assert await run.result() == "done"
        # Of what was said before the last recorded event nothing is said again; behind it, everything.
        assert await run.values() == {"stage": "awake"}

    run_virtually(app, main)


def test_a_run_that_is_tried_again_says_again_what_it_had_come_to() -> None:
    """What the attempt before has said behind the events that are kept is not how it stands any more."""
    app = Kagzi("memory://")
    failed: list[int] = []

    @app.step
    async def charge() -> None: ...

    @app.step(retry=kagzi.Retry(attempts=1))
    async def ship() -> None:
        if not failed:
            failed.append(1)
            raise RuntimeError("no parcel")
        kagzi.progress(0.5)
        await asyncio.sleep(60)

    @app.workflow(retry=kagzi.Retry(attempts=2))
    async def flow() -> None:
        kagzi.set_value("stage", "shipping")
        await charge()
        try:
            await ship()
        except RuntimeError:
            kagzi.set_value("stage", "sorry")
            kagzi.set_value("sorry", 1)
            raise
        await kagzi.sleep("1h")

    async def main() -> None:
        run = await flow.start()
        await asyncio.sleep(30)
        assert await run.values() == {"stage": "shipping", "sorry": 1}
        await asyncio.sleep(3600)
        await run.result()
        assert (await run.values())["stage"] == "shipping"
        assert await run.progress() == Progress(0.5)

    run_virtually(app, main)


def test_numbers_rise_under_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Kagzi("memory://")
    numbers: list[int] = []
    apply = Work.apply

    async def noted(self: Work, writes: Sequence[Write]) -> Applied:
        for write in writes:
            if isinstance(write, Chunk):
                numbers.extend(each.number for each in write.operations if isinstance(each, SetValue))
        return await apply(self, writes)

    monkeypatch.setattr(Work, "apply", noted)

    @app.step
    async def work() -> None: ...

    @app.workflow
    async def flow() -> None:
        for number in range(3):
            kagzi.set_value("a", number)
            kagzi.set_value("b", number)
            await work()

    drive(app, flow)
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 4

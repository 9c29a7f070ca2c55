"""Values and progress: what a run says about itself, at every home."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from pydantic import SecretStr

import kagzi
from kagzi import InvalidRequest, Kagzi, NotFound, NotSerializable, PayloadTooLarge, Progress, RunStatus
from kagzi.testing import run_virtually
from tests.scenarios.conftest import Stage


class Reverse:
    """A layer that only this app can read."""

    def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return b"~" + data[::-1]

    def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return data[:0:-1]


class Works:
    """Workflows that tell what they are at."""

    def __init__(self, **options: Any) -> None:
        self.app = app = Kagzi("memory://", **options)
        self.loading = asyncio.Event()
        self.go_on = asyncio.Event()

        @app.step
        async def load() -> None:
            kagzi.progress(0.1, "first part")
            kagzi.progress(0.4, "loading")
            self.loading.set()
            await self.go_on.wait()

        @app.step
        def count() -> None:
            for number in range(10_000):
                kagzi.progress(number / 10_000, "counting")

        @app.workflow
        async def report() -> str:
            kagzi.set_value("stage", "loading")
            kagzi.set_value("of", {"parts": [1, 2]})
            await load()
            kagzi.set_value("stage", "counting")
            await count()
            kagzi.set_value("stage", "over")
            kagzi.progress(1)
            return "done"

        @app.workflow
        async def waiting() -> str:
            kagzi.set_value("stage", "waits")
            value: str = await kagzi.wait_signal("go", str)
            kagzi.set_value("stage", value)
            return value

        self.report, self.waiting = report, waiting


async def becomes(read: Any, expected: object) -> None:
    async with asyncio.timeout(60):
        while (found := await read()) != expected:
            await asyncio.sleep(0.01)
    assert found == expected


def test_a_run_tells_what_it_is_at_while_it_runs_and_after_its_end(stage: Stage) -> None:
    works = Works()

    async def main() -> None:
        run = await works.report.start()
        await works.loading.wait()
        await becomes(run.progress, Progress(0.4, "loading"))
        assert await run.values() == {"of": {"parts": [1, 2]}, "stage": "loading"}
        assert await run.value("stage", str) == "loading"
        assert await run.status() is RunStatus.RUNNING
        works.go_on.set()
        assert await run.result(timeout=60) == "done"
        assert await run.values() == {"of": {"parts": [1, 2]}, "stage": "over"}
        assert await run.progress() == Progress(1.0)
        assert {step.name for step in await run.steps()} == {"load", "count"}  # they are no steps

    stage.run(works.app, main)


def test_a_parked_run_has_its_values_and_replay_sets_none_of_the_old_ones(stage: Stage) -> None:
    works = Works()

    async def main() -> None:
        run = await works.waiting.start()
        async with asyncio.timeout(60):
            while await run.status() is not RunStatus.SLEEPING:
                await asyncio.sleep(0.01)
        assert await run.values() == {"stage": "waits"}
        await run.signal("go", "gone")
        assert await run.result(timeout=60) == "gone"
        assert await run.value("stage", str) == "gone"

    stage.run(works.app, main)


def test_a_value_has_a_type_a_default_or_is_missing(stage: Stage) -> None:
    works = Works()

    async def main() -> None:
        run = await works.waiting.start()
        await becomes(run.values, {"stage": "waits"})
        with pytest.raises(InvalidRequest, match=r"value 'stage' cannot be read as int"):
            await run.value("stage", int)
        with pytest.raises(NotFound, match="has set no value 'other'"):
            await run.value("other", str)
        assert await run.value("other", str, default=None) is None
        assert await run.progress() is None
        with pytest.raises(InvalidRequest, match="must not begin with '@'"):
            await run.value("@progress")
        with pytest.raises(InvalidRequest, match="value name"):
            await run.value("")
        await run.terminate()

    stage.run(works.app, main)


def test_only_the_app_can_read_what_its_codec_has_written(stage: Stage) -> None:
    works = Works(codec=Reverse())

    async def main() -> None:
        works.go_on.set()
        run = await works.report.start()
        assert await run.result(timeout=60) == "done"
        assert await run.value("stage", str) == "over"
        assert await run.values() == {"of": {"parts": [1, 2]}, "stage": "over"}
        assert await run.progress() == Progress(1.0)
        stored = await works.app.engine.workflows.values("default", run.id)
        assert all(value.value.startswith(b"~") for value in stored)

    stage.run(works.app, main)


def test_def_workflows_and_their_steps_tell_as_well() -> None:
    app = Kagzi("memory://")

    @app.step
    def half() -> None:
        kagzi.progress(0.5, "half")

    @app.workflow
    def plain() -> str:
        kagzi.set_value("stage", "begun")
        half()
        return "done"

    async def main() -> tuple[Any, ...]:
        run = await plain.start()
        await run.result(timeout=60)
        return await run.values(), await run.progress()

    assert run_virtually(app, main) == ({"stage": "begun"}, Progress(0.5, "half"))


def test_a_retried_run_says_again_what_it_said() -> None:
    app = Kagzi("memory://")
    broken = [True]

    @app.step(retry=kagzi.Retry.none)
    async def work(number: int) -> int:
        if number == 2 and broken:
            raise ValueError("not yet")
        return number

    @app.workflow
    async def order() -> str:
        kagzi.set_value("customer", "ann")
        await work(1)
        kagzi.set_value("stage", "second")
        await work(2)
        return "done"

    async def main() -> None:
        run = await order.start()
        with pytest.raises(kagzi.WorkflowFailed):
            await run.result(timeout=60)
        assert await run.values() == {"customer": "ann", "stage": "second"}
        broken.clear()
        again = await run.retry()
        await again.result(timeout=60)
        assert await again.values() == {"customer": "ann", "stage": "second"}

    run_virtually(app, main)


@pytest.mark.parametrize(
    ("say", "error", "words"),
    [
        (lambda: kagzi.set_value("", 1), InvalidRequest, "value name must not be empty"),
        (lambda: kagzi.set_value("x" * 256, 1), InvalidRequest, "at most 255"),
        (lambda: kagzi.set_value("a\0b", 1), InvalidRequest, "NUL"),
        (lambda: kagzi.set_value("@progress", 1), InvalidRequest, "must not begin with '@'"),
        (lambda: kagzi.set_value(1, 1), InvalidRequest, "value name must be text"),  # type: ignore[arg-type]
        (lambda: kagzi.set_value("x", object()), NotSerializable, "value 'x' cannot be written as JSON"),
        (lambda: kagzi.set_value("x", float("nan")), NotSerializable, "value 'x' holds nan"),
        (lambda: kagzi.set_value("x", SecretStr("s3")), NotSerializable, "value 'x' does not survive"),
        (lambda: kagzi.set_value("x", "x" * 65_535), PayloadTooLarge, "at most 65,536 are stored"),
        (lambda: [kagzi.set_value(f"v{n}", n) for n in range(101)], InvalidRequest, "at most 100 values"),
        (lambda: kagzi.progress(1.01), InvalidRequest, "a number from 0 to 1, not 1.01"),
        (lambda: kagzi.progress(float("nan")), InvalidRequest, "not nan"),
        (lambda: kagzi.progress("half"), InvalidRequest, "not 'half'"),  # type: ignore[arg-type]
        (lambda: kagzi.progress(0.5, None), InvalidRequest, "must be text"),  # type: ignore[arg-type]
        (lambda: kagzi.progress(0.5, "x" * 1001), InvalidRequest, "at most 1,000"),
    ],
)
def test_what_cannot_be_stored_is_refused_where_it_is_said(say: Any, error: type[Exception], words: str) -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def talkative() -> str:
        kagzi.set_value("before", 1)
        with pytest.raises(error, match=words):
            say()
        return "refused"

    async def main() -> None:
        run = await talkative.start()
        assert await run.result(timeout=60) == "refused"
        assert len(await run.values()) in (1, 100)

    run_virtually(app, main)


def test_the_largest_value_is_stored(stage: Stage) -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def large() -> int:
        for number in range(100):
            kagzi.set_value(f"v{number:02}", "x" * 65_534)
        return 1

    async def main() -> None:
        run = await large.start()
        assert await run.result(timeout=60) == 1
        values = await run.values()
        assert len(values) == 100
        assert {len(value) for value in values.values()} == {65_534}

    stage.run(app, main)


def test_values_are_for_workflows(stage: Stage) -> None:
    app = Kagzi("memory://")

    @app.step(retry=kagzi.Retry.none)
    async def body() -> str:
        with pytest.raises(InvalidRequest, match=r"called in a step, and is for workflows \(at .*test_run_values"):
            kagzi.set_value("x", 1)
        return "refused"

    @app.workflow
    async def flow() -> str:
        return await body()

    async def main() -> None:
        assert await flow.run() == "refused"

    stage.run(app, main)


def test_outside_of_kagzi_nothing_happens() -> None:
    kagzi.set_value("stage", "testing")
    kagzi.progress(0.5, "testing")
    with pytest.raises(NotSerializable):
        kagzi.set_value("x", object())


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_call_that_is_not_awaited_is_named() -> None:
    works = Works()

    @works.app.step
    async def number() -> int:
        return 1

    @works.app.workflow
    async def forgetful() -> str:
        with pytest.raises(NotSerializable, match="write `await` before the call"):
            kagzi.set_value("x", number())
        return "told"

    async def main() -> None:
        assert await forgetful.run() == "told"

    run_virtually(works.app, main)


def test_a_step_that_was_given_up_says_nothing_more(tmp_path: Any) -> None:
    """A thread that outlives its step's timeout goes on; what it says is about nothing."""
    app = Kagzi(f"sqlite:///{tmp_path / 'kagzi.db'}")
    ended: list[str] = []

    @app.step(timeout="200ms", retry=kagzi.Retry.none)
    def endless() -> None:
        while not kagzi.cancelled():
            time.sleep(0.01)
        kagzi.progress(0.9, "given up")
        ended.append("given up")

    @app.workflow
    async def flow() -> str:
        kagzi.progress(0.1, "begun")
        try:
            await endless()
        except kagzi.StepTimeout:
            pass
        await kagzi.sleep("1500ms")
        return "over"

    async def main() -> None:
        async with app, app.worker():
            run = await flow.start()
            assert await run.result(timeout=60) == "over"
            assert ended == ["given up"]
            assert await run.progress() == Progress(0.1, "begun")

    asyncio.run(main())

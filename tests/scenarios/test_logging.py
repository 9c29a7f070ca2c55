"""What workflow code says is said once, however often it is executed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

import kagzi
from kagzi import Kagzi, Retry
from tests.scenarios.conftest import Stage


class Ears(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@pytest.fixture
def ears() -> Iterator[Ears]:
    """At the root, where `logging.basicConfig` and commands put their handlers, and where replays are silenced."""
    handler = Ears()
    root, log = logging.getLogger(), logging.getLogger("kagzi")
    level = log.level
    root.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    log.setLevel(level)


def said(ears: Ears) -> list[str]:
    return [line for line in ears.heard if line.startswith("* ")]


# Two homes are enough for what takes more than two seconds: histories come from memory, or over a wire.
@pytest.mark.parametrize("stage", ["virtual", "sqlite-grpc"], indirect=True)
def test_code_before_the_first_await_is_heard_once(stage: Stage, ears: Ears) -> None:
    app = Kagzi("memory://")

    @app.step
    async def work() -> int:
        return 1

    @app.workflow
    async def talkative() -> None:
        kagzi.logger.info("* began")
        await kagzi.sleep("1100ms")
        kagzi.logger.info("* slept")
        await work()
        kagzi.logger.info("* worked")
        await kagzi.sleep("1100ms")
        kagzi.logger.info("* ended")

    async def scenario() -> int:
        run = await talkative.start()
        await run.result()
        return (await run.get()).executions

    assert stage.run(app, scenario) == 3
    assert said(ears) == ["* began", "* slept", "* worked", "* ended"]


def test_a_workflow_without_steps_is_heard(stage: Stage, ears: Ears) -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def short() -> None:
        kagzi.logger.info("* all there is")

    stage.run(app, lambda: short.run())
    assert said(ears) == ["* all there is"]


def test_a_long_retry_repeats_nothing(stage: Stage, ears: Ears) -> None:
    app = Kagzi("memory://")

    @app.step(retry=Retry(attempts=2, first="1200ms", jitter=0))
    async def flaky() -> int:
        if kagzi.attempt() < 2:
            raise ConnectionError("down")
        return kagzi.attempt()

    @app.workflow
    async def patient() -> int:
        kagzi.logger.info("* began")
        attempt, _ = await asyncio.gather(flaky(), asyncio.sleep(0.3))
        kagzi.logger.info("* ended")
        return attempt

    assert stage.run(app, lambda: patient.run()) == 2
    assert said(ears) == ["* began", "* ended"]


# Those that host a worker as programs do, with all that silences replays.
@pytest.mark.parametrize("stage", ["sqlite", "sqlite-grpc"], indirect=True)
def test_what_the_engine_says_of_a_replay_is_heard(stage: Stage, ears: Ears) -> None:
    app = Kagzi("memory://")
    executions: list[int] = []

    @app.step
    async def charge(cents: int) -> int:
        return cents

    @app.workflow
    async def changing() -> int:
        executions.append(1)
        logging.getLogger("shop").warning("* %d", len(executions))
        charged = await charge(len(executions))
        await asyncio.sleep(1.1)
        return charged

    async def scenario() -> str:
        run = await changing.start()
        assert await run.result() == 1
        return run.id

    run_id = stage.run(app, scenario)
    assert said(ears) == ["* 1"]
    (line,) = [line for line in ears.heard if "other arguments" in line]
    assert line.startswith(f"step charge of changing ({run_id}) was recorded with other arguments")


@pytest.mark.parametrize("stage", ["virtual", "sqlite-grpc"], indirect=True)
def test_a_step_that_runs_again_under_another_name_is_told_of(stage: Stage, ears: Ears) -> None:
    app = Kagzi("memory://")
    executions: list[int] = []

    @app.step
    async def charge() -> int:
        return 1

    @app.workflow
    async def renamed() -> None:
        executions.append(1)
        await charge.options(name="charge" if len(executions) == 1 else "charge_card")()
        await asyncio.sleep(1.1)

    async def scenario() -> str:
        run = await renamed.start()
        await run.result()
        return run.id

    run_id = stage.run(app, scenario)
    lines = [line for line in ears.heard if "not called" in line]
    assert lines == [
        f"step charge of renamed ({run_id}) is recorded and was not called; charge_card, not recorded, ran instead. "
        "If it was renamed, it has run a second time: keep the recorded name with name='charge'"
    ]


@pytest.mark.parametrize("stage", ["virtual"], indirect=True)
def test_a_step_that_is_put_before_a_recorded_one_is_not_told_of(stage: Stage, ears: Ears) -> None:
    app = Kagzi("memory://")
    executions: list[int] = []

    @app.step
    async def charge() -> int:
        return 1

    @app.step
    async def tell_warehouse() -> None: ...

    @app.workflow
    async def grown() -> int:
        executions.append(1)
        if len(executions) > 1:
            await tell_warehouse()
            await kagzi.run_step("weigh", lambda: None)
        paid = await charge()
        await asyncio.sleep(1.1)
        return paid

    async def scenario() -> int:
        return await (await grown.start()).result()

    assert stage.run(app, scenario) == 1
    assert len(executions) > 1
    assert [line for line in ears.heard if "not called" in line] == []

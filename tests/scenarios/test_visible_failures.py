"""Failures are seen where people look: in the log, in what `result()` raises, among the attempts of a run."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

import pytest

from kagzi import Kagzi, Retry, StepRecord, StepStatus, Workflow, WorkflowFailed
from kagzi.testing import run_virtually
from tests.scenarios.conftest import Stage

ERROR = "tests.scenarios.test_visible_failures.Declined: no cover"
LINE = 'raise Declined("no cover") from error  # the line they look for'
FAILED, COMPLETED = StepStatus.FAILED, StepStatus.COMPLETED


class Declined(Exception):
    pass


def make_app() -> tuple[Kagzi, Workflow[[], None]]:
    app = Kagzi("memory://")

    @app.step
    async def reserve() -> None:
        pass

    @app.step(retry=Retry(attempts=2, first="1100ms", jitter=0))
    async def charge() -> None:
        try:
            raise KeyError("purse")
        except KeyError as error:
            raise Declined("no cover") from error  # the line they look for

    @app.workflow(version="7")
    async def checkout() -> None:
        await reserve()
        await charge()

    return app, checkout


@pytest.fixture
def heard() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = records.append  # type: ignore[method-assign]
    root, log = logging.getLogger(), logging.getLogger("kagzi")
    level = log.level
    root.addHandler(handler)
    log.setLevel(logging.INFO)
    yield records
    root.removeHandler(handler)
    log.setLevel(level)


class Seen:
    """What there is to see of a run that failed, and of a second start with its id."""

    run_id: str
    executions: int
    ended: str
    steps: tuple[StepRecord, ...]
    raised: WorkflowFailed
    raised_again: WorkflowFailed


async def look(checkout: Workflow[[], None]) -> Seen:
    seen = Seen()
    run = await checkout.options(id="order-42").start()
    with pytest.raises(WorkflowFailed) as caught:
        await run.result()
    record = await run.get()
    seen.run_id, seen.executions, seen.ended = run.id, record.executions, f"{record.finished_at:%Y-%m-%d %H:%M:%S} UTC"
    seen.steps = await run.steps()
    seen.raised = caught.value
    with pytest.raises(WorkflowFailed) as caught:
        await checkout.options(id="order-42").run()
    seen.raised_again = caught.value
    return seen


def test_a_failure_is_seen_wherever_one_looks(stage: Stage, heard: list[logging.LogRecord]) -> None:
    app, checkout = make_app()
    seen = stage.run(app, lambda: look(checkout))
    assert seen.executions == 2  # the second one has replayed `reserve`
    the_log_tells_of_attempts_and_runs_once(heard, seen.run_id)
    a_plain_traceback_ends_in_the_users_own_line(seen.raised)
    attempts_are_in_the_order_they_happened(seen.steps)
    a_failed_run_that_was_found_by_its_id_says_so(seen)


def the_log_tells_of_attempts_and_runs_once(heard: list[logging.LogRecord], run_id: str) -> None:
    told = [line for line in heard if line.levelno >= logging.WARNING]
    assert [line.levelname for line in told] == ["WARNING", "WARNING", "ERROR"]
    assert {vars(line)["run_id"] for line in told} == {run_id}
    first, second, failed = [line.getMessage() for line in told]
    called = f"step charge of checkout ({run_id}) failed in attempt"
    assert first == f"{called} 1 of 2 and is tried again in 1.1s: {ERROR}"
    assert second == f"{called} 2 of 2 and is not tried again: {ERROR}"
    assert failed.startswith(f"run {run_id} (checkout) failed\nTraceback (most recent call last):\n")
    assert LINE in failed
    assert "KeyError: 'purse'" in failed
    assert "/src/kagzi/" not in failed
    assert failed.endswith(ERROR)
    (up,) = [line.getMessage() for line in heard if "is up" in line.getMessage()]
    assert "; workflows checkout (version 7);" in up


def a_plain_traceback_ends_in_the_users_own_line(raised: WorkflowFailed) -> None:
    lines = "".join(traceback.format_exception(raised)).splitlines()
    assert lines[-1].strip() == LINE
    assert "test_visible_failures.py" in lines[-2]


def attempts_are_in_the_order_they_happened(steps: tuple[StepRecord, ...]) -> None:
    told = [(step.name, step.attempt, step.status, step.error and step.error.message) for step in steps]
    assert told == [
        ("reserve", 1, COMPLETED, None),
        ("charge", 1, FAILED, "no cover"),
        ("charge", 2, FAILED, "no cover"),
    ]


def a_failed_run_that_was_found_by_its_id_says_so(seen: Seen) -> None:
    error = f"checkout {seen.run_id} failed: {ERROR}"
    assert str(seen.raised) == error
    assert str(seen.raised_again) == (
        f"{error}. This run, {seen.run_id}, was found by its id 'order-42', and ended {seen.ended}; nothing was "
        "started. Go on with it by `await run.retry()`, run it again from scratch by `await run.rerun()`, or start it "
        'with `.options(id=..., on_conflict="restart_failed")`, which makes a new run in its place'
    )


def test_a_run_that_is_tried_again_is_a_warning(heard: list[logging.LogRecord]) -> None:
    app = Kagzi("memory://")

    @app.workflow(retry=Retry(attempts=2, first="3s", jitter=0))
    async def flaky() -> None:
        raise Declined("not today")

    async def scenario() -> None:
        with pytest.raises(WorkflowFailed):
            await flaky.run()

    run_virtually(app, scenario)
    told = [line for line in heard if line.levelno >= logging.WARNING]
    assert [line.levelname for line in told] == ["WARNING", "ERROR"]
    assert "(flaky) failed and is tried again in 3s: " in told[0].getMessage()

from __future__ import annotations

import pytest

from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.workflow_report import (
    BARS,
    SLICES,
    Sample,
    SampledRun,
    SampledStep,
    lengths_of,
    make_report,
    place_of,
    spread_of,
)

NOON = 1_800_000_000 * SECOND
TRACEBACK = '  File "/home/me/shop/app/bank.py", line 7, in Bank.<locals>.charge\n    raise Declined()'


def run(number: int, status: RunStatus = RunStatus.COMPLETED, took: int = SECOND, version: str = "1") -> SampledRun:
    at = NOON - number * 60 * SECOND
    return SampledRun(
        run_id=f"run-{number}",
        version=version,
        status=status,
        created_at=at,
        started_at=at + SECOND // 10,
        finished_at=at + SECOND // 10 + took if status.finished else None,
    )


def error(type: str, message: str, traceback: str = TRACEBACK) -> bytes:
    return Failure(type, message, traceback=traceback).encode()


def test_percentiles_are_lengths_that_were_there() -> None:
    assert spread_of([]) is None
    spread = spread_of(range(1, 101))
    assert spread is not None
    assert (spread.count, spread.p50, spread.p95, spread.p99, spread.longest) == (100, 50, 95, 99, 100)
    alone = spread_of([7])
    assert alone is not None
    assert (alone.p50, alone.p95, alone.longest) == (7, 7, 7)


@pytest.mark.parametrize(
    "lengths",
    [[0], [1], [SECOND], [0, 10**16], [1000 * 3**n for n in range(24)], [5, 90 * SECOND, 91 * SECOND]],
)
def test_every_length_is_in_one_bar_of_few(lengths: list[int]) -> None:
    bars = lengths_of(lengths)
    assert 0 < len(bars) <= BARS
    assert sum(bar.count for bar in bars) == len(lengths)
    for bar in bars:
        assert bar.count == sum(bar.least <= each and (bar.below is None or each < bar.below) for each in lengths)


def test_slices_cover_the_time_since_the_oldest_run_and_hold_every_end() -> None:
    runs = [run(number, RunStatus.FAILED if number % 3 == 0 else RunStatus.COMPLETED) for number in range(100)]
    runs.append(run(100, RunStatus.CANCELLED))
    runs.append(run(101, RunStatus.RUNNING))
    report = make_report("checkout", Sample(now=NOON, runs=runs))
    assert len(report.slices) <= SLICES
    assert report.slices[0].begins_at <= report.since == NOON - 101 * 60 * SECOND
    assert report.slices[-1].begins_at <= NOON < report.slices[-1].begins_at + report.slice_width
    assert sum(each.failed for each in report.slices) == report.failed == 34
    assert sum(each.completed for each in report.slices) == report.completed == 66
    assert sum(each.cancelled for each in report.slices) == 1
    assert report.failure_rate == 0.34


def test_failures_of_one_class_from_one_place_are_one_group() -> None:
    runs = [run(number, RunStatus.FAILED) for number in range(5)] + [run(5, RunStatus.TIMED_OUT)]
    elsewhere = TRACEBACK.replace("line 7", "line 9")
    errors = {
        "run-0": error("app.Declined", "no money on 4242"),
        "run-1": error("app.Declined", "no money on 1111"),
        "run-2": error("app.Declined", "stolen", elsewhere),
        "run-3": error("builtins.ValueError", "no"),
        "run-4": error("app.Declined", "no money on 9999"),
    }
    report = make_report("checkout", Sample(now=NOON, runs=runs, errors=errors))
    assert [(each.error, each.place, each.count) for each in report.failures] == [
        ("app.Declined", "shop/app/bank.py:7 in charge", 3),
        ("app.Declined", "shop/app/bank.py:9 in charge", 1),
        ("builtins.ValueError", "shop/app/bank.py:7 in charge", 1),
        ("", "", 1),
    ]
    first = report.failures[0]
    assert (first.message, first.last_run_id) == ("no money on 4242", "run-0")
    assert (first.first_at, first.last_at) == (runs[4].finished_at, runs[0].finished_at)
    assert report.failures_read == 6


def test_a_failure_is_placed_where_its_cause_was_raised_if_it_was_raised_nowhere_itself() -> None:
    assert place_of(Failure("app.Lost", "gone")) == ""
    cause = Failure("builtins.OSError", "gone", traceback=TRACEBACK)
    assert place_of(Failure("app.Lost", "gone", cause=cause)) == "shop/app/bank.py:7 in charge"


def test_steps_and_versions() -> None:
    def step(name: str, *, failed: bool = False, took: int = SECOND) -> SampledStep:
        return SampledStep(
            run_id="run-0", step_id=name, failed=failed, retried=failed, started_at=NOON, finished_at=NOON + took
        )

    steps = [
        step("charge", failed=True),
        step("charge", took=3 * SECOND),
        step("all/pack#2"),
        step("broken", failed=True),
    ]
    runs = [run(0, version="2"), run(1, RunStatus.FAILED, version="2"), run(2)]
    report = make_report("checkout", Sample(now=NOON, runs=runs, steps=steps))
    assert [(each.name, each.attempts, each.failed, each.retried) for each in report.steps] == [
        ("charge", 2, 1, 1),
        ("pack", 1, 0, 0),
        ("broken", 1, 1, 1),
    ]
    assert report.steps[0].took is not None
    assert report.steps[0].took.p50 == 3 * SECOND
    assert [(each.version, each.runs, each.failed) for each in report.versions] == [("2", 2, 1), ("1", 1, 0)]
    assert make_report(None, Sample(now=NOON, runs=runs)).versions == ()
    assert make_report("none", Sample(now=NOON)).failure_rate is None

"""Reports how a workflow has done lately: a pure function of a bounded sample of its newest runs.

Nothing here is counted over a whole table. A report says how many runs it is about, since when, and whether they are
all there are, so that it is true at any size.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.run import RunStatus
from kagzi.core.step import step_name

SAMPLED_RUNS: Final = 1_000
LOOKED_AT: Final = 20_000  # runs of the namespace, of any workflow
READ_FAILURES: Final = 200
STEP_RUNS: Final = 50  # finished runs whose steps are looked at
STEP_ROWS: Final = 5_000
GROUPS: Final = 20
STEPS: Final = 30
VERSIONS: Final = 30
BARS: Final = 12
SLICES: Final = 24
MESSAGE_CHARACTERS: Final = 300

_MS, _MINUTE, _HOUR, _DAY = SECOND // 1000, 60 * SECOND, 3600 * SECOND, 24 * 3600 * SECOND
# Lengths of time that people think in.
_LENGTHS: Final[tuple[Span, ...]] = (
    *(n * _MS for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(n * SECOND for n in (1, 2, 5, 10, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 30)),
    *(n * _HOUR for n in (1, 2, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 30, 90, 365)),
)
_FRAME: Final = re.compile(r'^  File "(?P<file>[^\n]*)", line (?P<line>\d+), in (?P<function>[^\n]*)$', re.MULTILINE)
_PATH_PARTS: Final = 3
_FAILED: Final = (RunStatus.FAILED, RunStatus.TIMED_OUT)


class SampledRun(Struct, frozen=True, kw_only=True):
    run_id: str
    version: str
    status: RunStatus
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None


class SampledStep(Struct, frozen=True, kw_only=True):
    """One attempt of a step that was a function and has ended."""

    run_id: str
    step_id: str
    failed: bool
    retried: bool  # another attempt was to follow
    started_at: Instant
    finished_at: Instant


class Sample(Struct, frozen=True, kw_only=True):
    """The newest runs of a workflow, newest first; errors of the newest of those that failed; steps of the newest that
    have finished. `whole`: there are no other runs of it. `now` is the database's time."""

    now: Instant
    runs: Sequence[SampledRun] = ()
    errors: dict[str, bytes] = {}  # by run id
    steps: Sequence[SampledStep] = ()
    whole: bool = True


class Spread(Struct, frozen=True, kw_only=True):
    """How lengths of time spread: half of them are within `p50`, 95 of 100 within `p95`."""

    count: int
    p50: Span
    p95: Span
    p99: Span
    longest: Span


class LengthBar(Struct, frozen=True, kw_only=True):
    """A bar of a histogram: how many took at least `least` and less than `below`; None: without a bound."""

    least: Span
    below: Span | None
    count: int


class Slice(Struct, frozen=True, kw_only=True):
    """How the runs ended that ended within one `slice_width` from this instant on."""

    begins_at: Instant
    completed: int = 0
    failed: int = 0  # or timed out
    cancelled: int = 0

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.cancelled


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Failures of one class from one place in the code. `error` is empty for a run that has timed out without one,
    `place` if it is not known; `message` is what the newest said."""

    error: str
    place: str
    message: str
    count: int
    first_at: Instant
    last_at: Instant
    last_run_id: str


class StepReport(Struct, frozen=True, kw_only=True):
    """A step of the workflow: attempts, how many of them failed, how many were tried again, and how long those took
    that succeeded."""

    name: str
    attempts: int
    failed: int
    retried: int
    took: Spread | None


class VersionReport(Struct, frozen=True, kw_only=True):
    version: str
    runs: int
    failed: int


class WorkflowReport(Struct, frozen=True, kw_only=True):
    """How the newest runs of a workflow have done. `runs` is how many they are, `since` when the oldest of them was
    started, `whole` whether there are no others."""

    workflow_type: str | None  # None: all together
    runs: int
    whole: bool
    since: Instant | None = None
    by_status: dict[RunStatus, int] = {}
    waited: Spread | None = None  # from the start to a worker
    took: Spread | None = None  # of those that completed, without that
    lengths: tuple[LengthBar, ...] = ()  # of the same
    slices: tuple[Slice, ...] = ()
    slice_width: Span = 0
    failures: tuple[FailureGroup, ...] = ()  # the most frequent first
    failures_read: int = 0  # the newest ones, which are grouped
    steps: tuple[StepReport, ...] = ()  # those that took longest first
    step_runs: int = 0  # so many runs were looked at for that
    versions: tuple[VersionReport, ...] = ()

    def count(self, *statuses: RunStatus) -> int:
        return sum(self.by_status.get(status, 0) for status in statuses)

    @property
    def completed(self) -> int:
        return self.count(RunStatus.COMPLETED)

    @property
    def failed(self) -> int:
        return self.count(*_FAILED)

    @property
    def failure_rate(self) -> float | None:
        """Of those that completed, failed or timed out; None if none did."""
        ended = self.completed + self.failed
        return self.failed / ended if ended else None


def make_report(workflow_type: str | None, sample: Sample) -> WorkflowReport:
    runs, now = sample.runs, sample.now
    if not runs:
        return WorkflowReport(workflow_type=workflow_type, runs=0, whole=sample.whole)
    since = min(run.created_at for run in runs)
    took = [
        max(0, run.finished_at - run.started_at)
        for run in runs
        if run.status is RunStatus.COMPLETED and run.started_at is not None and run.finished_at is not None
    ]
    waited = [max(0, run.started_at - run.created_at) for run in runs if run.started_at is not None]
    width = _slice_width(since, now)
    groups = _failures(runs, sample.errors)
    return WorkflowReport(
        workflow_type=workflow_type,
        runs=len(runs),
        whole=sample.whole,
        since=since,
        by_status=dict(Counter(run.status for run in runs)),
        waited=spread_of(waited),
        took=spread_of(took),
        lengths=lengths_of(took),
        slices=_slices(runs, since, now, width),
        slice_width=width,
        failures=groups[:GROUPS],
        failures_read=sum(group.count for group in groups),
        steps=_steps(sample.steps),
        step_runs=len({step.run_id for step in sample.steps}),
        versions=() if workflow_type is None else _versions(runs),
    )


def step_runs_of(runs: Sequence[SampledRun]) -> list[str]:
    """Returns the runs whose steps are worth a look: the newest that have finished."""
    return [run.run_id for run in runs if run.status.finished and run.started_at is not None][:STEP_RUNS]


def failed_runs_of(runs: Sequence[SampledRun]) -> list[str]:
    """Returns the runs whose errors are worth a look: the newest that have failed."""
    return [run.run_id for run in runs if run.status in _FAILED][:READ_FAILURES]


def spread_of(lengths: Sequence[Span]) -> Spread | None:
    if not lengths:
        return None
    found = sorted(lengths)

    def rank(share: float) -> Span:
        return found[max(0, math.ceil(share * len(found)) - 1)]

    return Spread(count=len(found), p50=rank(0.5), p95=rank(0.95), p99=rank(0.99), longest=found[-1])


def lengths_of(lengths: Sequence[Span]) -> tuple[LengthBar, ...]:
    """Returns a histogram with at most `BARS` bars, whose bounds are lengths that people think in."""
    if not lengths:
        return ()
    low = max(0, bisect_right(_LENGTHS, min(lengths)) - 1)
    high = min(bisect_right(_LENGTHS, max(lengths)), len(_LENGTHS) - 1)
    between = _LENGTHS[low : high + 1]
    bounds = between[:: math.ceil(len(between) / (BARS - 1))]  # what lies beyond the last one has a bar, too
    edges: list[Span] = [0, *bounds] if min(lengths) < bounds[0] else list(bounds)
    counts = Counter(bisect_right(edges, length) - 1 for length in lengths)
    bars = [
        LengthBar(least=edge, below=edges[index + 1] if index + 1 < len(edges) else None, count=counts[index])
        for index, edge in enumerate(edges)
    ]
    while bars and not bars[-1].count:
        bars.pop()
    return tuple(bars)


def place_of(failure: Failure) -> str:
    """Returns the line of the user's code that raised it: `app/shop.py:42 in charge`. Empty if that is not known."""
    for each in failure.chain():
        frames = list(_FRAME.finditer(each.traceback))
        if frames:
            frame = frames[-1]
            file = "/".join(frame["file"].replace("\\", "/").lstrip("/").split("/")[-_PATH_PARTS:])
            return f"{file}:{frame['line']} in {frame['function'].rpartition('<locals>.')[2]}"
    return ""


def _slice_width(since: Instant, now: Instant) -> Span:
    need = max(SECOND, now - since) / (SLICES - 1)  # the first and the last one are but parts
    widths = [length for length in _LENGTHS if length >= SECOND]
    at = bisect_left(widths, need)
    return widths[at] if at < len(widths) else -(-int(need) // _DAY) * _DAY


def _slices(runs: Sequence[SampledRun], since: Instant, now: Instant, width: Span) -> tuple[Slice, ...]:
    first, last = since // width, max(since, now) // width
    counts: Counter[tuple[int, str]] = Counter()
    for run in runs:
        if run.finished_at is None:
            continue
        kind = {RunStatus.COMPLETED: "completed", RunStatus.CANCELLED: "cancelled"}.get(run.status, "failed")
        # What others' clocks have put beyond the end belongs to it.
        counts[min(max(run.finished_at // width, first), last), kind] += 1
    return tuple(
        [
            Slice(
                begins_at=at * width,
                completed=counts[at, "completed"],
                failed=counts[at, "failed"],
                cancelled=counts[at, "cancelled"],
            )
            for at in range(first, last + 1)
        ]
    )


def _failures(runs: Sequence[SampledRun], errors: dict[str, bytes]) -> tuple[FailureGroup, ...]:
    groups: dict[tuple[str, str], FailureGroup] = {}
    by_id = {run.run_id: run for run in runs}
    for run_id in failed_runs_of(runs):
        run = by_id[run_id]
        at = run.finished_at if run.finished_at is not None else run.created_at
        stored = errors.get(run_id)
        failure = None if stored is None else Failure.decode(stored)
        key = ("", "") if failure is None else (failure.type, place_of(failure))
        known = groups.get(key)
        newest = known is None or at >= known.last_at
        message = " ".join(failure.message.split())[:MESSAGE_CHARACTERS] if failure is not None else ""
        groups[key] = FailureGroup(
            error=key[0],
            place=key[1],
            message=message if known is None or newest else known.message,
            count=1 if known is None else known.count + 1,
            first_at=at if known is None else min(at, known.first_at),
            last_at=at if known is None else max(at, known.last_at),
            last_run_id=run_id if known is None or newest else known.last_run_id,
        )
    return tuple(sorted(groups.values(), key=lambda group: (-group.count, -group.last_at)))


def _steps(steps: Sequence[SampledStep]) -> tuple[StepReport, ...]:
    by_name: dict[str, list[SampledStep]] = {}
    for step in steps:
        by_name.setdefault(step_name(step.step_id), []).append(step)
    found = [
        StepReport(
            name=name,
            attempts=len(rows),
            failed=sum(row.failed for row in rows),
            retried=sum(row.retried for row in rows),
            took=spread_of([max(0, row.finished_at - row.started_at) for row in rows if not row.failed]),
        )
        for name, rows in by_name.items()
    ]
    found.sort(key=lambda step: (-step.took.p95 if step.took is not None else 0, step.name))
    return tuple(found[:STEPS])


def _versions(runs: Sequence[SampledRun]) -> tuple[VersionReport, ...]:
    total: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for run in runs:  # newest first, and so are the versions
        total[run.version] += 1
        failed[run.version] += run.status in _FAILED
    return tuple([VersionReport(version=each, runs=total[each], failed=failed[each]) for each in total][:VERSIONS])

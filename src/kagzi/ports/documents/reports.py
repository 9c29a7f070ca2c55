"""How a workflow has done lately, as people read it."""

from __future__ import annotations

from msgspec import Struct

from kagzi.core.instant import SECOND, Span
from kagzi.core.run import RunStatus
from kagzi.core.workflow_report import Spread, WorkflowReport
from kagzi.ports.documents.common import Count, Moment, _moment, moment


class SpreadDocument(Struct, frozen=True, kw_only=True):
    """How lengths of time spread, in seconds: half of them are within `p50`."""

    count: Count
    p50: float
    p95: float
    p99: float
    longest: float


class LengthDocument(Struct, frozen=True, kw_only=True):
    """How many took at least `least` seconds and less than `below`; null: without a bound."""

    least: float
    below: float | None
    count: Count


class SliceDocument(Struct, frozen=True, kw_only=True):
    """How runs ended that ended in one slice of time; `failed` includes those that timed out."""

    begins_at: Moment
    completed: Count
    failed: Count
    cancelled: Count


class FailureGroupDocument(Struct, frozen=True, kw_only=True):
    """Failures of one class from one place in the code; `message` is what the newest said. `error` is empty for a run
    that has timed out without one, `place` if it is not known."""

    error: str
    place: str
    message: str
    count: Count
    first_at: Moment
    last_at: Moment
    last_run_id: str


class StepReportDocument(Struct, frozen=True, kw_only=True):
    """A step: attempts that have ended, how many of them failed and how many were tried again, and how long those took
    that succeeded."""

    name: str
    attempts: Count
    failed: Count
    retried: Count
    took: SpreadDocument | None


class VersionReportDocument(Struct, frozen=True, kw_only=True):
    """How runs of one version have done."""

    version: str
    runs: Count
    failed: Count


class ReportDocument(Struct, frozen=True, kw_only=True):
    """How the newest `runs` of a workflow have done, about 1,000 at most, among the newest 20,000 of the namespace;
    `whole`: there are no others. `waited` is the time until a worker took them, `took` that from then on, of those that
    completed. `failure_rate` is of those that completed, failed or timed out. `failures` groups the newest
    `failures_read`; `steps` is about `step_runs` runs."""

    workflow: str
    runs: Count
    whole: bool
    since: Moment | None
    runs_by_status: dict[RunStatus, int]
    failure_rate: float | None
    waited: SpreadDocument | None
    took: SpreadDocument | None
    lengths: tuple[LengthDocument, ...]
    slice_seconds: float
    slices: tuple[SliceDocument, ...]
    failures: tuple[FailureGroupDocument, ...]
    failures_read: Count
    steps: tuple[StepReportDocument, ...]
    step_runs: Count
    versions: tuple[VersionReportDocument, ...]


def report_document(report: WorkflowReport) -> ReportDocument:
    return ReportDocument(
        workflow=report.workflow_type or "",
        runs=report.runs,
        whole=report.whole,
        since=moment(report.since),
        runs_by_status=report.by_status,
        failure_rate=report.failure_rate,
        waited=_spread(report.waited),
        took=_spread(report.took),
        lengths=tuple(
            [
                LengthDocument(
                    least=_seconds(each.least),
                    below=None if each.below is None else _seconds(each.below),
                    count=each.count,
                )
                for each in report.lengths
            ]
        ),
        slice_seconds=_seconds(report.slice_width),
        slices=tuple(
            [
                SliceDocument(
                    begins_at=_moment(each.begins_at),
                    completed=each.completed,
                    failed=each.failed,
                    cancelled=each.cancelled,
                )
                for each in report.slices
            ]
        ),
        failures=tuple(
            [
                FailureGroupDocument(
                    error=each.error,
                    place=each.place,
                    message=each.message,
                    count=each.count,
                    first_at=_moment(each.first_at),
                    last_at=_moment(each.last_at),
                    last_run_id=each.last_run_id,
                )
                for each in report.failures
            ]
        ),
        failures_read=report.failures_read,
        steps=tuple(
            [
                StepReportDocument(
                    name=each.name,
                    attempts=each.attempts,
                    failed=each.failed,
                    retried=each.retried,
                    took=_spread(each.took),
                )
                for each in report.steps
            ]
        ),
        step_runs=report.step_runs,
        versions=tuple(
            [
                VersionReportDocument(version=each.version, runs=each.runs, failed=each.failed)
                for each in report.versions
            ]
        ),
    )


def _seconds(span: Span) -> float:
    return span / SECOND


def _spread(spread: Spread | None) -> SpreadDocument | None:
    if spread is None:
        return None
    return SpreadDocument(
        count=spread.count,
        p50=_seconds(spread.p50),
        p95=_seconds(spread.p95),
        p99=_seconds(spread.p99),
        longest=_seconds(spread.longest),
    )

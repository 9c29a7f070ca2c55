"""Reports on how workflows have done lately."""

from __future__ import annotations

from google.protobuf.message import Message

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi.core.run import RunStatus
from kagzi.core.workflow_report import (
    FailureGroup,
    LengthBar,
    Slice,
    Spread,
    StepReport,
    VersionReport,
    WorkflowReport,
)
from kagzi.rpc.convert.common import instant, optional_instant, timestamp

_STATUSES = {status.value: status for status in RunStatus}


def report_to_wire(report: WorkflowReport) -> pb.GetWorkflowReportResponse:
    return pb.GetWorkflowReportResponse(
        runs=report.runs,
        whole=report.whole,
        since=timestamp(report.since),
        runs_by_status={status.value: count for status, count in report.by_status.items()},
        waited=_spread_to_wire(report.waited),
        took=_spread_to_wire(report.took),
        lengths=[pb.LengthBar(least_us=each.least, below_us=each.below, count=each.count) for each in report.lengths],
        slices=[
            pb.ReportSlice(
                begins_at=timestamp(each.begins_at),
                completed=each.completed,
                failed=each.failed,
                cancelled=each.cancelled,
            )
            for each in report.slices
        ],
        slice_width_us=report.slice_width,
        failures=[
            pb.FailureGroup(
                error=each.error,
                place=each.place,
                message=each.message,
                count=each.count,
                first_at=timestamp(each.first_at),
                last_at=timestamp(each.last_at),
                last_run_id=each.last_run_id,
            )
            for each in report.failures
        ],
        failures_read=report.failures_read,
        steps=[
            pb.StepReport(
                name=each.name,
                attempts=each.attempts,
                failed=each.failed,
                retried=each.retried,
                took=_spread_to_wire(each.took),
            )
            for each in report.steps
        ],
        step_runs=report.step_runs,
        versions=[
            pb.VersionReport(version=each.version, runs=each.runs, failed=each.failed) for each in report.versions
        ],
    )


def report_from_wire(workflow_type: str | None, report: pb.GetWorkflowReportResponse) -> WorkflowReport:
    return WorkflowReport(
        workflow_type=workflow_type,
        runs=report.runs,
        whole=report.whole,
        since=optional_instant(report, "since"),
        by_status={_STATUSES[name]: count for name, count in report.runs_by_status.items() if name in _STATUSES},
        waited=_spread_from_wire(report, "waited"),
        took=_spread_from_wire(report, "took"),
        lengths=tuple(
            [
                LengthBar(
                    least=each.least_us, below=each.below_us if each.HasField("below_us") else None, count=each.count
                )
                for each in report.lengths
            ]
        ),
        slices=tuple(
            [
                Slice(
                    begins_at=instant(each.begins_at, "begins_at"),
                    completed=each.completed,
                    failed=each.failed,
                    cancelled=each.cancelled,
                )
                for each in report.slices
            ]
        ),
        slice_width=report.slice_width_us,
        failures=tuple(
            [
                FailureGroup(
                    error=each.error,
                    place=each.place,
                    message=each.message,
                    count=each.count,
                    first_at=instant(each.first_at, "first_at"),
                    last_at=instant(each.last_at, "last_at"),
                    last_run_id=each.last_run_id,
                )
                for each in report.failures
            ]
        ),
        failures_read=report.failures_read,
        steps=tuple(
            [
                StepReport(
                    name=each.name,
                    attempts=each.attempts,
                    failed=each.failed,
                    retried=each.retried,
                    took=_spread_from_wire(each, "took"),
                )
                for each in report.steps
            ]
        ),
        step_runs=report.step_runs,
        versions=tuple(
            [VersionReport(version=each.version, runs=each.runs, failed=each.failed) for each in report.versions]
        ),
    )


def _spread_to_wire(spread: Spread | None) -> pb.Spread | None:
    if spread is None:
        return None
    return pb.Spread(
        count=spread.count, p50_us=spread.p50, p95_us=spread.p95, p99_us=spread.p99, longest_us=spread.longest
    )


def _spread_from_wire(message: Message, field: str) -> Spread | None:
    if not message.HasField(field):
        return None
    spread: pb.Spread = getattr(message, field)
    return Spread(
        count=spread.count, p50=spread.p50_us, p95=spread.p95_us, p99=spread.p99_us, longest=spread.longest_us
    )

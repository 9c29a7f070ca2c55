"""Recorded histories of runs, as files: what today's code is replayed against before it is deployed.

A history is JSON that people can read. Payloads are text where they are text, else base64; instants are microseconds
since 1970.
"""

from __future__ import annotations

import base64
from binascii import Error as Base64Error
from typing import Any, Final

import msgspec
from msgspec import Struct

from kagzi.api.engine import Engine
from kagzi.core.failed_run import FAILED_INPUT
from kagzi.core.instant import Instant
from kagzi.core.run import Run, RunStatus
from kagzi.core.step import Step, StepKind, StepStatus, in_order
from kagzi.errors import InvalidRequest
from kagzi.version import __version__

FORMAT: Final = 1


class Payload(Struct, frozen=True):
    """A payload that is no text, as base64."""

    base64: str


class RecordedStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of the history, as replay needs it."""

    step_id: str
    attempt: int = 1
    kind: StepKind = StepKind.FUNCTION
    status: StepStatus = StepStatus.COMPLETED
    completed_seq: int | None = None
    started_at: Instant
    finished_at: Instant | None = None
    retry_at: Instant | None = None
    input_hash: int = 0
    output: str | Payload | None = None
    error: str | Payload | None = None
    child_run_id: str | None = None


class History(Struct, frozen=True, kw_only=True):
    """What is recorded of one run; of one that has begun anew, of its present incarnation."""

    kagzi_history: int = FORMAT
    exported_by: str = __version__
    run_id: str
    workflow: str
    version: str
    status: RunStatus
    started_at: Instant | None
    input: str | Payload
    output: str | Payload | None = None
    namespace: str = "default"
    queue: str = "default"
    id: str | None = None
    incarnation: int = 0
    attempts: int = 0
    seed_run_id: str | None = None
    scheduled_for: Instant | None = None
    timezone: str | None = None
    failed_input: str | Payload | None = None
    lineage: str | None = None
    steps: tuple[RecordedStep, ...] = ()

    def rows(self) -> list[Step]:
        """Returns the history as replay takes it: events in their order, then the others."""
        rows = [_row(step) for step in self.steps]
        return sorted(rows, key=lambda row: (row.completed_seq is None, row.completed_seq or 0))

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def read_history(data: bytes | str) -> History:
    """Reads what `kagzi runs export` has written; InvalidRequest says what is wrong with it."""
    try:
        history = msgspec.json.decode(data, type=History)
        history.rows()
        unpacked(history.input)
    except (msgspec.DecodeError, UnicodeDecodeError, Base64Error, ValueError) as error:
        raise InvalidRequest(f"this is no history of a run, as `kagzi runs export` writes it: {error}") from None
    if history.kagzi_history != FORMAT:
        raise InvalidRequest(
            f"the history is of format {history.kagzi_history}; Kagzi {__version__} reads format {FORMAT}"
        )
    return history


async def export_history(engine: Engine, run: Run) -> History:
    """Reads the history of a run."""
    steps = await engine.workflows.steps(run.namespace, run.run_id, whole=True)
    failed_input = None
    if run.handles_run_id is not None and not run.incarnation:
        values = await engine.workflows.values(run.namespace, run.run_id)
        failed_input = next((packed(each.value) for each in values if each.name == FAILED_INPUT), None)
    return History(
        run_id=run.run_id,
        workflow=run.workflow_type,
        version=run.version,
        status=run.status,
        started_at=run.started_at,
        input=packed(run.input),
        output=None if run.output is None else packed(run.output),
        namespace=run.namespace,
        queue=run.task_queue,
        id=run.external_id or run.former_id,
        incarnation=run.incarnation,
        attempts=run.attempts,
        seed_run_id=run.seed_run_id,
        scheduled_for=run.fired_for,
        timezone=run.timezone,
        failed_input=failed_input,
        lineage=run.lineage,
        # What a retry of the run, or a beginning anew, has set aside is no part of it.
        steps=tuple([_recorded(step) for step in in_order(steps) if "~" not in step.step_id]),
    )


def packed(data: bytes) -> str | Payload:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Payload(base64.b64encode(data).decode())


def unpacked(payload: str | Payload) -> bytes:
    return payload.encode() if isinstance(payload, str) else base64.b64decode(payload.base64, validate=True)


def _recorded(step: Step) -> RecordedStep:
    return RecordedStep(
        step_id=step.step_id,
        attempt=step.attempt,
        kind=step.kind,
        status=step.status,
        completed_seq=step.completed_seq,
        started_at=step.started_at,
        finished_at=step.finished_at,
        retry_at=step.retry_at,
        input_hash=step.input_hash,
        output=None if step.output is None else packed(step.output),
        error=None if step.error is None else packed(step.error),
        child_run_id=step.child_run_id,
    )


def _row(step: RecordedStep) -> Step:
    fields: dict[str, Any] = {name: getattr(step, name) for name in step.__struct_fields__}
    fields["output"] = None if step.output is None else unpacked(step.output)
    fields["error"] = None if step.error is None else unpacked(step.error)
    return Step(**fields)

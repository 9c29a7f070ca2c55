"""Steps as people and the unary calls see them: one attempt each, named by an id of its own.

That id is opaque to clients. It holds the run, the attempt, the step's identity within the run and, if BeginStep gave
one, the retry policy, so that FailStep knows it on any server.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from msgspec import Struct

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi.core.step import Step, StepStatus
from kagzi.errors import NotFound
from kagzi.rpc.convert.common import payload_from_bytes, payload_to_bytes, timestamp
from kagzi.rpc.convert.errors import error_from_wire, failure_to_detail
from kagzi.rpc.convert.work import exact_status, kind_from, kind_to_wire, status_of

_MOST_ATTEMPTS: Final = 2**31 - 1


class StepName(Struct, frozen=True):
    run_id: str
    identity: str
    attempt: int
    policy: bytes | None = None

    def __str__(self) -> str:
        policy = "" if self.policy is None else base64.urlsafe_b64encode(self.policy).decode().rstrip("=")
        return f"{self.run_id}.{self.attempt}.{policy}.{self.identity}"


def step_name_of(text: str) -> StepName:
    """Reads a step id. One that is malformed names no step."""
    parts = text.split(".", 3)
    unknown = NotFound(f"there is no step {text[:100]!r}; step ids come from BeginStep and ListSteps")
    if len(parts) != 4 or not parts[3]:
        raise unknown
    run_id, attempt, policy, identity = parts
    if not (attempt.isascii() and attempt.isdigit() and len(attempt) <= 10 and 1 <= int(attempt) <= _MOST_ATTEMPTS):
        raise unknown
    try:
        decoded = base64.urlsafe_b64decode(policy + "=" * (-len(policy) % 4)) if policy else None
    except (binascii.Error, ValueError):
        raise unknown from None
    return StepName(run_id, identity, int(attempt), decoded)


def step_to_wire(step: Step, namespace: str, run_id: str, step_id: str | None = None) -> pb.Step:
    status = step.status
    return pb.Step(
        namespace=namespace,
        step_id=step_id or str(StepName(run_id, step.step_id, step.attempt)),
        run_id=run_id,
        name=step.name,
        kind=kind_to_wire(step.kind),
        status=exact_status(StepStatus.FAILED if status is StepStatus.CANCELLED else status),
        attempt_number=step.attempt,
        input=None if step.input is None else payload_from_bytes(step.input),
        output=None if step.output is None else payload_from_bytes(step.output),
        error=None if step.error is None else failure_to_detail(step.error),
        created_at=timestamp(step.started_at),
        started_at=timestamp(step.started_at),
        finished_at=timestamp(step.finished_at),
        exact_status=exact_status(status),
        identity=step.step_id,
        completed_seq=step.completed_seq,
        retry_at_us=step.retry_at,
        input_hash=step.input_hash,
        child_run_id=step.child_run_id,
    )


def step_from_wire(step: pb.Step) -> Step:
    has = step.HasField
    return Step(
        step_id=step.identity or step.name,
        attempt=step.attempt_number,
        kind=kind_from(step.kind),
        status=status_of(step.exact_status or step.status),
        completed_seq=step.completed_seq if has("completed_seq") else None,
        started_at=step.started_at.ToMicroseconds(),
        finished_at=step.finished_at.ToMicroseconds() if has("finished_at") else None,
        retry_at=step.retry_at_us if has("retry_at_us") else None,
        input_hash=step.input_hash,
        output=payload_to_bytes(step.output) if has("output") else None,
        error=error_from_wire(step.error, exact=bool(step.exact_status)),
        input=payload_to_bytes(step.input) if has("input") else None,
        child_run_id=step.child_run_id or None,
    )

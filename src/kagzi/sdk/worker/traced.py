"""An attempt that is traced: chosen by the worker instead of the plain one, which then need not ask."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from kagzi.api.operations import FailRun, RetryRun
from kagzi.api.workers import Claim
from kagzi.core.failure import Failure
from kagzi.core.instant import Span
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.waits import StepCall
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.engine_clock import Bounds
from kagzi.tracing import RunSpan

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from kagzi.sdk.worker.worker import Worker


class TracedAttempt(Attempt):
    trace: RunSpan

    def __init__(self, worker: Worker, claim: Claim, bounds: Bounds, leased_at: Span, tracer: Tracer) -> None:
        super().__init__(worker, claim, bounds, leased_at)
        self._reason: str | None = None  # why the run was let go of before its time
        self.trace = RunSpan(
            tracer,
            claim.workflow_type,
            claim.trace_context,
            {
                "kagzi.workflow": claim.workflow_type,
                "kagzi.version": claim.version,
                "kagzi.run_id": claim.run_id,
                "kagzi.namespace": claim.namespace,
                "kagzi.queue": claim.task_queue,
                "kagzi.execution": claim.executions,
                "kagzi.worker_id": worker.worker_id,
            },
        )

    def about(self) -> dict[str, object]:
        return super().about() | {"trace_id": self.trace.trace_id}

    def begin(
        self, execution: Execution, workflow: Coroutine[Any, Any, Any], encode_result: Callable[[Any], bytes]
    ) -> None:
        self.trace.inside(super().begin, execution, workflow, encode_result)

    def step_returned(self, call: StepCall, value: Any) -> None:
        self.trace.end_step(call, "completed")
        super().step_returned(call, value)

    def step_raised(self, call: StepCall, error: BaseException) -> None:
        self.trace.end_step(call, "failed", error)
        super().step_raised(call, error)

    def body_ended(self, call: StepCall) -> None:
        self.trace.end_step(call, "cancelled")
        super().body_ended(call)

    def abandon(self, reason: str) -> None:
        self._reason = self._reason or reason
        super().abandon(reason)

    def _leave(self) -> None:
        last = self._last
        super()._leave()
        if self._reason or last is None:
            self.trace.end("let go of", self._reason)
        else:
            self.trace.end(last.outcome, _words(last.error) if isinstance(last, FailRun | RetryRun) else None)


def _words(error: bytes) -> str:
    failure = Failure.decode(error)
    return f"{failure.type}: {failure.message}"

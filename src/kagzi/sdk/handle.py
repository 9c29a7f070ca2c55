"""A handle on a run: look at it, wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kagzi.api.engine import Engine
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.run import Run, RunStatus
from kagzi.errors import KagziError, Unavailable, WorkflowCancelled, WorkflowFailed, WorkflowTimedOut
from kagzi.sdk.records import RunRecord, StepRecord, run_record, step_record

R = TypeVar("R", covariant=True)

_WAIT = 3600 * SECOND  # an engine may answer earlier; then we ask again

_ENDS: dict[RunStatus, type[WorkflowFailed]] = {
    RunStatus.FAILED: WorkflowFailed,
    RunStatus.CANCELLED: WorkflowCancelled,
    RunStatus.TIMED_OUT: WorkflowTimedOut,
}


class Handle(Generic[R]):
    """A run that was started or found. `already_exists` says that a run with this id was there before the start."""

    __slots__ = ("_decode", "_engine", "_read", "already_exists", "id", "namespace")

    def __init__(
        self,
        engine: Engine,
        namespace: str,
        run_id: str,
        decode: Callable[[bytes], R],
        read: Callable[[bytes], Any],
        *,
        already_exists: bool = False,
    ) -> None:
        self._engine = engine
        self._decode = decode  # the result, to its type
        self._read = read  # any payload of the run, to plain data
        self.namespace = namespace
        self.id = run_id
        self.already_exists = already_exists

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    async def get(self) -> RunRecord:
        """Everything the engine knows about the run at this moment."""
        return run_record(await self._engine.workflows.get(self.namespace, self.id), self._read)

    async def status(self) -> RunStatus:
        return (await self._engine.workflows.get(self.namespace, self.id)).status

    async def steps(self) -> tuple[StepRecord, ...]:
        """Every recorded attempt of every step so far."""
        steps = await self._engine.workflows.steps(self.namespace, self.id)
        return tuple([step_record(step, self._read) for step in steps])

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the run and return what its workflow returned.

        Raises WorkflowFailed, WorkflowCancelled or WorkflowTimedOut if the run ended otherwise, and TimeoutError if it
        has not ended after `timeout` (the run goes on; waiting again is fine). An engine that is out of reach for a
        moment is waited for.
        """
        if timeout is None:
            return self._outcome(await self._wait())
        seconds = parse_duration(timeout, "timeout") / SECOND
        try:
            async with asyncio.timeout(seconds):
                return self._outcome(await self._wait())
        except TimeoutError:
            raise TimeoutError(f"run {self.id} has not finished within {seconds:g} s; it goes on") from None

    async def _wait(self) -> Run:
        delay = 0.05
        while True:
            try:
                run = await self._engine.workflows.wait(self.namespace, self.id, _WAIT)
            except Unavailable:
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)
                continue
            delay = 0.05
            if run.status.finished:
                return run

    def _outcome(self, run: Run) -> R:
        if run.status is RunStatus.COMPLETED:
            return self._decode(run.output or b"null")
        failure = Failure.decode(run.error) if run.error else None
        what = run.status.value.lower().replace("_", " ")
        detail = f": {failure}" if failure is not None else ""
        error: KagziError = _ENDS[run.status](
            f"{run.workflow_type} {run.run_id} {what}{detail}", run_id=run.run_id, failure=failure
        )
        if failure is not None:
            raise error from failure.to_exception()
        raise error

"""The contract for runs: start, get, list, wait, cancel, signal, repeat."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    RepeatRun,
    SendSignal,
    SignalAnswer,
    Started,
    StartRun,
    TerminateRun,
    WakeAnswer,
)
from kagzi.api.reply import Reply
from kagzi.core.instant import Instant, Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page
from kagzi.core.run import Run, RunStatus
from kagzi.core.run_value import RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step

SIGNALS_LISTED: Final = 1000  # in one answer


class RunFilter(Struct, frozen=True, kw_only=True):
    """Chooses the runs of a list, which has the newest first."""

    namespace: str = "default"
    status: RunStatus | None = None
    or_status: RunStatus | None = None  # beside `status`: that one or this one
    workflow_type: str | None = None
    task_queue: str | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None
    parent_run_id: str | None = None  # its children
    tags: dict[str, str] = {}  # all of them
    id_prefix: str | None = None  # what the id that callers give begins with
    error: str | None = None  # the class of the error that ended it, with its module or without
    schedule_id: str | None = None  # what this schedule has started


class WorkflowService(Protocol):
    def start(self, start: StartRun, *, awaited: bool = False) -> Awaitable[Started]:
        """Starts a run, which is durable when this answers. If the caller calls `wait` next (`awaited`), the answer may
        come a moment later and bring the end along."""
        ...

    async def get(self, namespace: str, run_id: str) -> Run: ...

    async def get_by_external_id(self, namespace: str, external_id: str) -> Run: ...

    async def list(
        self, filter: RunFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Run]: ...

    async def steps(
        self,
        namespace: str,
        run_id: str,
        *,
        whole: bool = False,
        payloads: bool = True,
        step_id: str | None = None,
    ) -> tuple[Step, ...]:
        """Returns every recorded attempt of every step, or of the step of this id, in the order they ended; those that
        are running come last. With `whole` also what the run has noted for its own replay. Without `payloads` inputs
        and outputs are None, whatever they are: of a long run they are many megabytes."""
        ...

    async def wait(self, namespace: str, run_id: str, timeout: Span) -> Run:
        """Returns the run when it has finished, or as it is once the timeout has passed."""
        ...

    async def cancel(self, cancel: CancelRun) -> CancelAnswer:
        """Asks a run to end; durable when this answers, see CancelRun. NotFound if there is no such run."""
        ...

    async def terminate(self, terminate: TerminateRun) -> CancelAnswer: ...

    async def wake(self, namespace: str, run_id: str) -> WakeAnswer:
        """Ends the sleep of a run, or its wait for the next attempt; see `core.wake`. NotFound if there is no such run.
        A run that waits for no moment in time is left as it is."""
        ...

    async def signal(self, signal: SendSignal) -> SignalAnswer:
        """Stores a signal for a run; durable when this answers, see SendSignal and SignalAnswer."""
        ...

    async def signals(self, namespace: str, run_id: str, *, after: int = 0) -> tuple[Signal, ...]:
        """Returns signals of a run in the order of arrival, taken ones too: at most SIGNALS_LISTED with a number above
        `after`."""
        ...

    async def values(
        self, namespace: str, run_id: str, names: Sequence[str] = (), *, after: str = ""
    ) -> tuple[RunValue, ...]:
        """Returns the values of a run in the order of their names, beyond `after`; with `names` only these."""
        ...

    async def repeat(self, repeat: RepeatRun) -> Started:
        """Starts a new run like a finished one; see RepeatRun. NotFound, or Conflict while that one has not
        finished."""
        ...


class HostedWorkflows(WorkflowService, Protocol):
    """The contract for a server, on which many callers wait for the ends of many runs."""

    async def admit(self, start: StartRun) -> StartRun:
        """Checks a start and returns it with its version; raises if it may not be made. Nothing is written."""
        ...

    def expect(self, namespace: str, run_id: str) -> Reply[Run | None] | None:
        """Returns a reply that is settled with the run when it ends; None if its end will not be noticed here. A reply
        that is settled with None tells to look for the end after all (`wait`)."""
        ...

    def unexpect(self, namespace: str, run_id: str, reply: Reply[Run | None]) -> None:
        """Takes back one `expect`: its caller no longer waits."""
        ...

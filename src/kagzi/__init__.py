"""Kagzi: durable workflows in plain Python.

The shape of a program:

    app = Kagzi()

    @app.step
    async def charge(order: Order) -> str: ...

    @app.workflow
    async def checkout(order: Order) -> str:
        return await charge(order)
"""

from kagzi.app import Kagzi
from kagzi.core.failed_run import FailedRun
from kagzi.core.failure import Failure
from kagzi.core.lineage import PayloadContext
from kagzi.core.page import Page
from kagzi.core.retry import Retry
from kagzi.core.run import RunStatus
from kagzi.core.run_value import Progress
from kagzi.core.step import StepKind, StepStatus
from kagzi.errors import (
    CannotDecode,
    Conflict,
    InvalidRequest,
    KagziError,
    LeaseLost,
    LimitExceeded,
    Locked,
    MissingDependency,
    NamespaceDisabled,
    NonDeterminismError,
    NonRetryable,
    NotAwaited,
    NotFound,
    NotSerializable,
    PayloadTooLarge,
    PermissionDenied,
    RetryAfter,
    SchemaMismatch,
    StepFailed,
    StepTimeout,
    Unauthenticated,
    Unavailable,
    VersionMismatch,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowTimedOut,
)
from kagzi.sdk.children import ChildRun
from kagzi.sdk.context import (
    Context,
    RunInfo,
    attempt,
    cancelled,
    current,
    events,
    logger,
    now,
    random,
    scheduled_for,
    sleep,
    sleep_until,
    uuid4,
)
from kagzi.sdk.cron import Cron
from kagzi.sdk.debounce import Debounce
from kagzi.sdk.definitions import Step, Workflow, run_step
from kagzi.sdk.groups import map, parallel, race
from kagzi.sdk.handle import Handle
from kagzi.sdk.jobs import JobHandle, JobPreviewRecord, JobRecord
from kagzi.sdk.limits import Limit, Rate
from kagzi.sdk.patches import patched
from kagzi.sdk.payload import Codec
from kagzi.sdk.queues import LimitRecord, PauseRecord, QueueRecord
from kagzi.sdk.records import (
    Cancellation,
    DebouncedRecord,
    MoveRecord,
    RefusedMove,
    RunRecord,
    SignalRecord,
    StepRecord,
    VersionRecord,
)
from kagzi.sdk.schedules import ScheduleHandle, ScheduleRecord, SkipRecord
from kagzi.sdk.search import Runs
from kagzi.sdk.signals import signals, wait_signal
from kagzi.sdk.start_signal import Signal
from kagzi.sdk.values import progress, set_value
from kagzi.sdk.worker.transactions import connection
from kagzi.version import __version__

__all__ = [
    "Cancellation",
    "CannotDecode",
    "ChildRun",
    "Codec",
    "Conflict",
    "Context",
    "Cron",
    "Debounce",
    "DebouncedRecord",
    "FailedRun",
    "Failure",
    "Handle",
    "InvalidRequest",
    "JobHandle",
    "JobPreviewRecord",
    "JobRecord",
    "Kagzi",
    "KagziError",
    "LeaseLost",
    "Limit",
    "LimitExceeded",
    "LimitRecord",
    "Locked",
    "MissingDependency",
    "MoveRecord",
    "NamespaceDisabled",
    "NonDeterminismError",
    "NonRetryable",
    "NotAwaited",
    "NotFound",
    "NotSerializable",
    "Page",
    "PauseRecord",
    "PayloadContext",
    "PayloadTooLarge",
    "PermissionDenied",
    "Progress",
    "QueueRecord",
    "Rate",
    "RefusedMove",
    "Retry",
    "RetryAfter",
    "RunInfo",
    "RunRecord",
    "RunStatus",
    "Runs",
    "ScheduleHandle",
    "ScheduleRecord",
    "SchemaMismatch",
    "Signal",
    "SignalRecord",
    "SkipRecord",
    "Step",
    "StepFailed",
    "StepKind",
    "StepRecord",
    "StepStatus",
    "StepTimeout",
    "Unauthenticated",
    "Unavailable",
    "VersionMismatch",
    "VersionRecord",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowTimedOut",
    "__version__",
    "attempt",
    "cancelled",
    "connection",
    "current",
    "events",
    "logger",
    "map",
    "now",
    "parallel",
    "patched",
    "progress",
    "race",
    "random",
    "run_step",
    "scheduled_for",
    "set_value",
    "signals",
    "sleep",
    "sleep_until",
    "uuid4",
    "wait_signal",
]

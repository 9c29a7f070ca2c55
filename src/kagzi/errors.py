"""Every error that Kagzi raises, in one tree.

    KagziError
    ├── InvalidRequest            bad input; nothing was written
    │   ├── PayloadTooLarge       a value is larger than the engine stores
    │   ├── NotSerializable       a value cannot be written as JSON
    │   └── CannotDecode          a stored payload has another key, or was changed
    ├── NotFound                  no such run, worker or workflow
    ├── Conflict                  the same id with another type or input
    ├── NamespaceDisabled         runs are not started in this namespace
    ├── Unauthenticated           a server asks for a key, and none that it knows was shown
    ├── PermissionDenied          the key is not for this, or not for this namespace
    ├── LeaseLost                 somebody else drives this run now
    ├── Unavailable               the database or server is out of reach; try again
    │   ├── LimitExceeded         too much at once; try again later
    │   ├── Locked                another transaction of the database has locked it; the message says which
    │   └── MissingDependency     an optional package is not installed
    ├── SchemaMismatch            the database was migrated by another version of Kagzi
    ├── VersionMismatch           client and server are of versions that do not understand each other
    ├── NonDeterminismError       workflow code does what only a step may do, or changed under a live run
    │   └── NotAwaited            a workflow called a step, or slept, without `await`
    ├── StepFailed                a step's error whose own class is not known in this process
    │   └── StepTimeout           a step ran longer than its timeout
    ├── WorkflowFailed            for those who await a run: it ended FAILED
    │   ├── WorkflowCancelled     … CANCELLED
    │   └── WorkflowTimedOut      … TIMED_OUT
    └── for authors to raise:
        NonRetryable              do not try this step again
        RetryAfter                try again, but only after this long

Each class has a stable `code`, which is what crosses the wire and what logs carry. Suspension of a run is not an
error and is not here: it derives from BaseException, so that `except Exception` in a workflow lets it pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from datetime import timedelta

    from kagzi.core.failure import Failure


class KagziError(Exception):
    """Base of everything Kagzi raises on purpose."""

    code: ClassVar[str] = "INTERNAL"


class InvalidRequest(KagziError):
    """Something passed in is not acceptable; the message names it. Nothing was written."""

    code = "INVALID_ARGUMENT"


class PayloadTooLarge(InvalidRequest):
    """A value is larger than the engine stores. Keep the data elsewhere and pass a reference to it."""

    code = "PAYLOAD_TOO_LARGE"


class NotSerializable(InvalidRequest):
    """A value cannot be written as JSON, or would come back as something else. Use plain data or a dataclass."""

    code = "NOT_SERIALIZABLE"


class CannotDecode(InvalidRequest):
    """A stored payload cannot be decoded: the key is wrong or missing, or it was changed or cut off."""

    code = "CANNOT_DECODE"


class NotFound(KagziError):
    """No such run, worker or workflow in this namespace."""

    code = "NOT_FOUND"


class Conflict(KagziError):
    """The id is taken by a run of another type or with another input."""

    code = "CONFLICT"


class NamespaceDisabled(KagziError):
    """The namespace is disabled: what runs in it goes on, and nothing new is started."""

    code = "NAMESPACE_DISABLED"


class Unauthenticated(KagziError):
    """The server asks for an API key, and the one shown (if any) is not known, has expired or was revoked."""

    code = "UNAUTHENTICATED"


class PermissionDenied(KagziError):
    """The key does not allow this: it has another role, or is for another namespace."""

    code = "PERMISSION_DENIED"


class LeaseLost(KagziError):
    """The lease on this run ended and somebody else may drive it now; the write was refused."""

    code = "LEASE_LOST"


class Unavailable(KagziError):
    """The database or server cannot be reached at the moment. Trying again is safe."""

    code = "UNAVAILABLE"


class LimitExceeded(Unavailable):
    """There is more of something than is allowed at once. Trying again later is safe.

    `passing`: it is over in moments, so a client tries again by itself; else something has to become less first.
    """

    code = "LIMIT_EXCEEDED"
    passing = True

    @classmethod
    def lasting(cls, message: str) -> LimitExceeded:
        """Makes one that stays until something has become less, such as what waits in an inbox."""
        error = cls(message)
        error.passing = False
        return error


class Locked(Unavailable):
    """Another transaction of the database has locked what is needed, and nothing was done; the message says which.
    Trying again is safe."""

    code = "LOCKED"


class MissingDependency(Unavailable):
    """An optional package is needed for this and is not installed."""

    code = "MISSING_DEPENDENCY"


class SchemaMismatch(KagziError):
    """The database's schema does not fit this version of Kagzi."""

    code = "SCHEMA_MISMATCH"


class VersionMismatch(KagziError):
    """Client and server are of versions that do not understand each other; the message says which to upgrade."""

    code = "VERSION_MISMATCH"


class NonDeterminismError(KagziError):
    """Workflow code did something that cannot be replayed. Move it into a step."""

    code = "NON_DETERMINISM"


class NotAwaited(NonDeterminismError):
    """Workflow code called a step, a sleep or another workflow and did not await it. Write `await` before the call."""

    code = "NOT_AWAITED"


class StepFailed(KagziError):
    """A step failed with an exception whose class cannot be found in this process."""

    code = "STEP_FAILED"

    def __init__(self, message: str = "", failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class StepTimeout(StepFailed, TimeoutError):
    """A step ran longer than its timeout."""

    code = "STEP_TIMEOUT"


class WorkflowFailed(KagziError):
    """The awaited run ended without a result; `failure` holds the stored error."""

    code = "WORKFLOW_FAILED"

    def __init__(self, message: str = "", *, run_id: str = "", failure: Failure | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.failure = failure


class WorkflowCancelled(WorkflowFailed):
    """The awaited run was cancelled."""

    code = "WORKFLOW_CANCELLED"


class WorkflowTimedOut(WorkflowFailed):
    """The awaited run passed its deadline."""

    code = "WORKFLOW_TIMED_OUT"


class NonRetryable(KagziError):
    """Raise this (or a subclass) in a step: trying again would not help."""

    code = "NON_RETRYABLE"


class RetryAfter(KagziError):
    """Raise this in a step to choose the delay before the next attempt.

    >>> raise RetryAfter("warehouse busy", "30s")
    """

    code = "RETRY_AFTER"

    def __init__(self, message: str = "", delay: float | str | timedelta = 0.0, *args: Any) -> None:
        super().__init__(message, *args)
        self.delay = delay

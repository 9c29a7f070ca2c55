"""What the loop of a workflow runs: callbacks, timers and tasks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.sdk.replay.scope import Scope

if TYPE_CHECKING:
    from kagzi.sdk.replay.loop import WorkflowLoop

# TaskGroup of these versions forgets to call uncancel() in one case.
_FORGETFUL_GROUPS: Final = sys.version_info < (3, 13)


class Handle(Struct, eq=False):
    """A callback that is ready to run."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    _cancelled: bool = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Timer(Handle, eq=False, kw_only=True):
    """A callback that is due at an instant. Costs nothing unless the run has nothing else to do."""

    loop: WorkflowLoop
    _when: float
    # Due times are compared in whole microseconds: floats near 2e9 are that coarse, and the store counts so too.
    due_at: Instant
    number: int
    step_id: str
    created_at: Instant

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self.callback, self.args = do_nothing, ()
            self.loop.timer_cancelled()

    def __lt__(self, other: Timer) -> bool:
        return (self.due_at, self.number) < (other.due_at, other.number)


class WorkflowTask(asyncio.Task[Any]):
    """A task of a workflow: hashed by its creation number, with the scope its steps are counted in."""

    call: Any = None  # what it was made of, if that is a single call (`unawaited.py`)
    waited_for = False  # by something that leaves no trace when it goes on
    cut_at = -1  # the newest task or timer there was when it was cancelled last, perhaps by a timeout

    def __init__(
        self, coro: Coroutine[Any, Any, Any], loop: WorkflowLoop, scope: Scope, number: int, context: Context | None
    ) -> None:
        # Before super().__init__, which puts the task into a WeakSet and so hashes it.
        self._hash = number
        self.scope = scope
        super().__init__(coro, loop=loop, name=scope.prefix[:-1] or "workflow", context=context)

    def __hash__(self) -> int:
        return self._hash

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancels the task, and makes up for what TaskGroup forgets up to 3.12.

        When a child fails while its group waits for the others in __aexit__, the group cancels its own task to wake it,
        swallows the CancelledError, and leaves the request counted. An `asyncio.timeout` around it would later take its
        own expiry for a cancellation from outside. The request is taken back at once instead.
        """
        cancelled = super().cancel(msg)
        if cancelled:
            loop: Any = self.get_loop()
            self.cut_at = loop.newest
            if _FORGETFUL_GROUPS:
                caller = sys._getframe(1)
                if caller.f_code is asyncio.TaskGroup._on_task_done.__code__ and caller.f_locals["self"]._exiting:
                    self.uncancel()
        return cancelled

    def set_name(self, value: object) -> None:
        self.scope.rename(str(value))
        super().set_name(value)


def do_nothing() -> None:
    pass

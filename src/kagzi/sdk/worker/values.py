"""Values of one run on their way to the engine.

They ride in the next chunk that the run sends anyway. If none comes for a moment they go in one of their own: sooner,
and it would be in flight when a short step ends, whose record then had to wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from kagzi.api.operations import Operation, RunOperation, SetValue
from kagzi.core.instant import SECOND, Span
from kagzi.core.run_value import PROGRESS, Progress
from kagzi.sdk.values import encode_value
from kagzi.sdk.worker.bodies import SHOW_AFTER

if TYPE_CHECKING:
    from kagzi.sdk.worker.attempt import Attempt

logger = logging.getLogger("kagzi.worker")

ALONE_AFTER: Final = SHOW_AFTER / SECOND
PROGRESS_EVERY: Final[Span] = SECOND


class Values:
    """What a run has said about itself and nobody has sent yet: the last of each name."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._loop = attempt.loop
        self._unsent: dict[str, bytes] = {}
        self._progress: bytes | None = None  # waits until a second has passed since the one before it
        self._progress_due: Span = 0
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._said: Progress | None = None  # in a step, perhaps on a thread
        self._listening = False

    def set(self, name: str, value: bytes) -> None:
        if name == PROGRESS:
            self._progress = value
        else:
            if not self._unsent:
                self.stop()  # it does not wait as long as a progress may
            self._unsent[name] = value
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds(), self._go_alone)

    def hear_progress(self, said: Progress) -> None:
        """Takes note of how far the run has come, as a step says; from any thread, and as often as it likes."""
        self._said = said
        if not self._listening:
            self._listening = True
            if asyncio._get_running_loop() is self._loop:
                self._loop.call_soon(self._take_progress)
                return
            try:
                self._loop.call_soon_threadsafe(self._take_progress)
            except RuntimeError:
                logger.debug("a step told its progress after the end of its worker")

    def _take_progress(self) -> None:
        # In this order: what a thread says from now on is looked at once more.
        self._listening = False
        said, execution = self._said, self._attempt.execution
        if said is None or execution is None:
            return
        try:
            self.set(PROGRESS, encode_value(PROGRESS, said, execution))
        except Exception as error:  # of the app's codec
            logger.warning("the progress of run %s cannot be written: %s", self._attempt.run_id, error)

    def join(self, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        """Returns what is to be sent, with the values that go along: behind the steps, before an end."""
        ends = bool(operations) and isinstance(operations[-1], RunOperation)
        if self._progress is not None and (ends or self._attempt.monotonic() >= self._progress_due):
            self._unsent[PROGRESS], self._progress = self._progress, None
            self._progress_due = self._attempt.monotonic() + PROGRESS_EVERY
        if not self._unsent:
            return operations
        values = tuple([self._numbered(name, value) for name, value in self._unsent.items()])
        self._unsent.clear()
        if self._progress is None:
            self.stop()
        return (*operations[:-1], *values, operations[-1]) if ends else operations + values

    def _numbered(self, name: str, value: bytes) -> SetValue:
        self._number += 1
        return SetValue(name=name, value=value, number=self._number)

    def forget(self) -> None:
        self._unsent.clear()
        self._progress = None
        self.stop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_alone(self) -> None:
        self._timer = None
        self._attempt.flush_values()
        if self._unsent or self._progress is not None:
            self._timer = self._loop.call_later(self._seconds(), self._go_alone)

    def _seconds(self) -> float:
        """Returns how long to wait for a chunk to go along with."""
        if self._unsent:
            return ALONE_AFTER
        return max(ALONE_AFTER, (self._progress_due - self._attempt.monotonic()) / SECOND)


def count_values(operations: tuple[Operation, ...]) -> int:
    return sum(type(operation) is SetValue for operation in operations)

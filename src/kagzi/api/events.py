"""A stream of what happens to runs and schedules, for those who watch.

Like every wake-up it is a hint: what is told did happen, but not everything that happens is told. A reader that must
not miss anything looks again at what it is interested in whenever it gets `Resync`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus


class Change(StrEnum):
    STARTED = "started"
    CLAIMED = "claimed"  # by a worker
    PROGRESSED = "progressed"  # steps were recorded; told to those who watch this one run only
    PARKED = "parked"  # until something is due
    RETURNED = "returned"  # to its queue: handed back, to be tried again, or its worker was lost
    CANCELLING = "cancelling"  # it was told to end
    FINISHED = "finished"


class RunChanged(Struct, frozen=True, kw_only=True):
    """Something happened to a run. A field is None if its value was not known where the change was noticed."""

    namespace: str
    run_id: str
    change: Change
    status: RunStatus | None = None
    workflow: str | None = None
    queue: str | None = None
    at: Instant  # by the database's clock, as well as it is known here


class ScheduleChange(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    PAUSED = "paused"
    RESUMED = "resumed"
    DELETED = "deleted"
    FIRED = "fired"  # by the clock, by hand or for a time that has passed: runs were started
    SKIPPED = "skipped"  # firings did not become runs


class ScheduleChanged(Struct, frozen=True, kw_only=True):
    """Something happened to a schedule."""

    namespace: str
    schedule_id: str
    change: ScheduleChange
    count: int | None = None  # so many runs were started, or firings skipped
    at: Instant


class QueueChanged(Struct, frozen=True, kw_only=True):
    """Another process made work available in this queue."""

    namespace: str
    queue: str
    at: Instant


class Resync(Struct, frozen=True, kw_only=True):
    """Something may have been missed: look again."""

    at: Instant


Event = RunChanged | ScheduleChanged | QueueChanged | Resync


class Numbered(Struct, frozen=True):
    event_id: str  # `after` of a later subscription
    event: Event


class Subscription(Protocol):
    async def next(self, seconds: float) -> Sequence[Numbered]:
        """Returns what has happened since the last call: at once if there is something, else as soon as something
        happens, and an empty list after this time."""
        ...

    def close(self) -> None: ...


class EventService(Protocol):
    def subscribe(self, *, namespace: str, run_id: str | None = None, after: str | None = None) -> Subscription:
        """Begins to read changes in one namespace, or of one run in it. With `after`, what was told since that event
        comes first if it is still known, else a Resync."""
        ...

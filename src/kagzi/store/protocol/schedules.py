"""Schedules: their rows, their firings, and what code declares of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from kagzi.api.operations import CancelAnswer
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.core.declaration import Verdict
from kagzi.core.instant import Instant, Span
from kagzi.core.page import Cursor
from kagzi.core.run import Run
from kagzi.core.schedule import Schedule, ScheduleCounts, Skip
from kagzi.errors import Conflict, InvalidRequest, LimitExceeded
from kagzi.store.protocol.changes import Recovered, Told


class Turned(Struct, frozen=True, kw_only=True):
    """What a turn made of one schedule."""

    namespace: str
    schedule_id: str
    started: int  # runs
    skipped: int  # firings


class Fired(Struct, frozen=True, kw_only=True):
    """What a turn of the schedules came to."""

    looked: int  # at so many schedules
    runs: list[Recovered]  # that were started
    told: list[tuple[str, CancelAnswer]]  # with their namespace: runs that were told to end for them
    late: Span | None = None  # how late the latest of them is; None if none is on time (see `core.schedule.ON_TIME`)
    errors: list[tuple[str, str, str]] = []  # namespace, schedule and why it could not fire
    woken: list[Told] = []  # runs that were told of their ends
    turns: list[Turned] = []  # of those that have fired or skipped something


class Schedules(Protocol):
    """The schedules of a database.

    Each change of one locks its template first: once it is acknowledged, nothing fires by what was there before."""

    async def create(self, create: CreateSchedule) -> Schedule | Conflict | LimitExceeded:
        """Inserts a schedule; Conflict if its id or name is taken. A repeat of the same request gets the answer of the
        first."""
        ...

    async def get(self, namespace: str, schedule_id: str) -> Schedule | None: ...

    async def find(self, namespace: str, name: str) -> str | None:
        """Returns the id of the schedule that has this name."""
        ...

    async def page(self, namespace: str, task_queue: str | None, cursor: Cursor | None, limit: int) -> list[Schedule]:
        """Returns schedules, the newest first, beyond the cursor. Going backward: the `limit` nearest newer ones,
        nearest first."""
        ...

    async def declare(self, declare: DeclareSchedule) -> Verdict:
        """Make what code declares so, if its word counts (see `core.declaration`). What is due by the same times stays
        due; with other times nothing that was due before is fired any more."""
        ...

    async def update(self, update: UpdateSchedule) -> Schedule | InvalidRequest | None:
        """Changes a schedule; None if there is none. InvalidRequest if it is to fire next at an instant that has
        fired."""
        ...

    async def delete(self, namespace: str, schedule_id: str) -> bool:
        """Deletes a schedule; returns whether there was one. Its runs stay."""
        ...

    async def trigger(self, namespace: str, schedule_id: str, run_id: str) -> Recovered | Conflict | None:
        """Insert a run by the template, whatever the schedule's state. None if there is none, Conflict if the run id is
        another run's. Harmless to repeat with the same run id."""
        ...

    async def backfill(self, schedule: Schedule, instants: Sequence[tuple[Instant, str]]) -> list[Recovered] | None:
        """Insert a run for each instant, with this run id, unless it has one. None if the schedule is gone or fires at
        other times than this one by now."""
        ...

    async def count(self, namespace: str | None) -> ScheduleCounts:
        """Counts schedules; None counts those of all namespaces."""
        ...

    async def page_of_runs(self, namespace: str, schedule_id: str, cursor: Cursor | None, limit: int) -> list[Run]:
        """Returns a page of the runs of a schedule, in the order of `Runs.search`."""
        ...

    async def skips(self, namespace: str, schedule_id: str, limit: int) -> list[Skip]:
        """Returns the newest firings that did not become runs."""
        ...

    async def fire(self, limit: int, new_run_id: Callable[[], str]) -> Fired:
        """Insert the runs of due firings, or put on record that they were skipped, and move the watermark: one
        transaction (see `core.schedule.decide`). One that cannot fire keeps its state, and is looked at again later."""
        ...

    async def fold_ends(self, limit: int) -> int:
        """Add the ends of runs to the counters of at most `limit` schedules; where a firing waits for such an end, it
        is due. Returns how many schedules."""
        ...

    async def prune_skips(self, limit: int) -> int:
        """Delete records of skipped firings past their namespace's retention, looking at the oldest `limit` only;
        returns how many."""
        ...

"""What must hold of schedules: each due instant fired, recorded as skipped, or not yet reached; never twice, ever."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kagzi.core.cron import parse_times
from kagzi.core.instant import SECOND, Instant
from kagzi.core.run import RunStatus
from kagzi.core.schedule import FIRED_AT_ONCE, Overlap
from kagzi.testing.simulation.checks.rows import RunRow, Violation, wrong

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World

_BIRTHS = frozenset({"schedules.fire", "schedules.trigger", "schedules.backfill"})
_CHANGES = frozenset({*_BIRTHS, "schedules.create", "schedules.update", "schedules.delete", "schedules.fold_ends"})
_LATE = 6 * SECOND  # where an engine has lived undisturbed for some time


class ScheduleRow(Struct, frozen=True):
    schedule_id: str
    status: str
    cron_expr: str
    timezone: str
    overlap: str
    max_catchup: int
    next_fire_at: Instant | None
    available_at: Instant | None
    fired_until: Instant
    buffered_for: Instant | None
    total_runs: int
    skipped_runs: int
    successful_runs: int
    failed_runs: int


_READ = """
SELECT t.run_id, t.status, t.cron_expr, t.timezone, s.overlap, t.max_catchup, t.next_fire_at, t.available_at,
       s.fired_until, s.buffered_for, s.total_runs, s.skipped_runs,
       s.successful_runs + (SELECT count(*) FROM schedule_ends AS e
                            WHERE e.schedule_id = s.schedule_id AND e.status = 'COMPLETED'),
       s.failed_runs + (SELECT count(*) FROM schedule_ends AS e
                        WHERE e.schedule_id = s.schedule_id AND e.status IN ('FAILED', 'TIMED_OUT'))
FROM schedules AS s JOIN workflow_runs AS t ON t.namespace = s.namespace AND t.run_id = s.schedule_id
"""


class Schedules:
    def __init__(self, world: World, connection: sqlite3.Connection, runs: dict[str, RunRow]) -> None:
        self._world = world
        self._connection = connection
        self._runs = runs  # as they are after the transaction
        self._read: list[tuple[Any, ...]] = []
        self._rows: dict[str, ScheduleRow] = {}
        self._fired: dict[tuple[str, Instant], str] = {}  # ever, also of what was deleted since
        self._of_schedule: dict[str, list[str]] = {}  # its runs
        # Whoever has not heard of making a schedule makes it again, also when somebody has deleted it meanwhile. It
        # counts from 0 then, and those ends of runs of the first one that come later.
        self._made_again: set[str] = set()

    def check(
        self, before: dict[str, RunRow], touched: list[RunRow], now: Instant, method: str, args: tuple[Any, ...]
    ) -> None:
        born = [row for row in touched if row.schedule_group_id is not None and row.run_id not in before]
        if not born and method not in _CHANGES and not self._rows:
            return
        read = self._connection.execute(_READ).fetchall()
        if read == self._read and not touched and method not in _CHANGES:
            return
        old = self._rows
        self._read = read
        self._rows = {row[0]: ScheduleRow(*row) for row in read}
        for row in born:
            self._check_birth(row, old.get(row.schedule_group_id or ""), now, method)
        for schedule_id, new in self._rows.items():
            fired = [row for row in born if row.schedule_group_id == schedule_id]
            if schedule_id in old:
                self._check_turn(old[schedule_id], new, fired, before, method)
            elif self._of_schedule.get(schedule_id):
                self._made_again.add(schedule_id)
            if schedule_id not in self._made_again:
                self._check_counters(new)
            pauses = method == "schedules.update" and args[0].schedule_id == schedule_id and args[0].enabled is False
            if pauses and (new.status != "PAUSED" or new.next_fire_at is not None):
                raise Violation(f"{new} was paused")
            if method == "schedules.fold_ends":
                self._check_hurried(new, now)
        for row in touched:
            if method == "schedules.fire" and row.run_id in before:
                self._world.operation("run cancelled by the next firing")

    def check_lateness(self) -> None:
        """All faults were over some time ago."""
        now = self._world.clock.now()
        for row in self._rows.values():
            if row.status == "SCHEDULED" and (row.next_fire_at or now) < now - _LATE:
                raise self._world.violation(f"nobody fires the schedule {row} at {now}")
            ends = [self._runs[run_id].finished_at or now for run_id in self._of_schedule.get(row.schedule_id, ())]
            if row.status == "SCHEDULED" and row.buffered_for is not None and max(ends, default=0) < now - _LATE:
                raise self._world.violation(f"the firing that waits for the run before it is forgotten: {row} at {now}")

    def _check_hurried(self, row: ScheduleRow, now: Instant) -> None:
        """What waits for the run before it does not wait longer than that."""
        live = any(not self._runs[run_id].status.finished for run_id in self._of_schedule.get(row.schedule_id, ()))
        waits = row.status == "SCHEDULED" and row.buffered_for is not None and (row.available_at or 0) > now
        if waits and not live:
            raise Violation(f"{row} waits for a run that has ended")

    def _check_birth(self, run: RunRow, schedule: ScheduleRow | None, now: Instant, method: str) -> None:
        schedule_id, at = run.schedule_group_id or "", run.scheduled_for
        if method not in _BIRTHS or schedule is None or (at is None) is not (method == "schedules.trigger"):
            raise wrong(run.run_id, f"was fired by {method} for {at}, and its schedule is {schedule}")
        self._of_schedule.setdefault(schedule_id, []).append(run.run_id)
        self._world.operation(f"firing by {method}")
        if at is None:
            return
        if (schedule_id, at) in self._fired:
            raise wrong(run.run_id, f"is the second one that was fired for {at}, after {self._fired[schedule_id, at]}")
        self._fired[schedule_id, at] = run.run_id
        if at > now or parse_times(schedule.cron_expr, schedule.timezone).until(at) != at:
            raise wrong(run.run_id, f"was fired for {at} at {now}, and its schedule is {schedule}")
        if method == "schedules.fire":
            if schedule.status != "SCHEDULED":
                raise wrong(run.run_id, f"was fired by a schedule that is paused: {schedule}")
            if at <= schedule.fired_until and at != schedule.buffered_for:
                raise wrong(run.run_id, f"was fired for {at}, and all was up to {schedule.fired_until}")

    def _check_turn(
        self, old: ScheduleRow, new: ScheduleRow, fired: list[RunRow], before: dict[str, RunRow], method: str
    ) -> None:
        what = f"{method} made {new} of {old}"
        if new.fired_until < old.fired_until:
            raise Violation(f"{what}: what was fired is to be fired again")
        if method != "schedules.fire":
            if old.buffered_for not in (None, new.buffered_for) and not self._is_skipped(old, old.buffered_for or 0):
                raise Violation(f"{what}: {old.buffered_for} is forgotten")
            return
        for at in (*_between(old, new.fired_until), *((old.buffered_for,) if old.buffered_for is not None else ())):
            done = (old.schedule_id, at) in self._fired or at == new.buffered_for or self._is_skipped(old, at)
            if not done:
                raise Violation(f"{what}: {at} was neither fired nor skipped")
        instants = [row.scheduled_for or 0 for row in fired]
        if max(instants, default=0) > new.fired_until:
            raise Violation(f"{what}: fired for {instants}, and the watermark stays")
        if len(fired) > min(FIRED_AT_ONCE, max(old.max_catchup, 1)):
            raise Violation(f"{what}: {len(fired)} were caught up on")
        if instants and instants != sorted(_between(old, max(instants)))[-len(instants) :] and not old.buffered_for:
            raise Violation(f"{what}: fired for {instants}, and not for the newest")
        self._check_overlap(old, fired, before)
        if method == "schedules.fire" and new.skipped_runs > old.skipped_runs:
            self._world.operation("firing that was skipped")

    def _check_overlap(self, schedule: ScheduleRow, fired: list[RunRow], before: dict[str, RunRow]) -> None:
        ours = [run_id for run_id in self._of_schedule.get(schedule.schedule_id, ()) if run_id not in _ids(fired)]
        live = [run_id for run_id in ours if not before.get(run_id, self._runs[run_id]).status.finished]
        overlap = Overlap(schedule.overlap)
        now = self._world.clock.now()
        if (
            not live
            and overlap is Overlap.SKIP
            and any(at == now and reason == "overlap" for _, _, _, reason, at in self._skips(schedule.schedule_id))
        ):
            raise Violation(f"{schedule} has skipped a firing because of a run before it, and none is live")
        if not fired or not live:
            if not fired and live and overlap in (Overlap.SKIP, Overlap.BUFFER):
                self._world.operation(f"{overlap} while a run is live")
            return
        if overlap in (Overlap.SKIP, Overlap.BUFFER):
            raise Violation(f"{schedule} has fired {fired} while {live} are live")
        if overlap is Overlap.CANCEL_PREVIOUS:
            untold = [run_id for run_id in live if not self._runs[run_id].cancel_requested]
            if [run_id for run_id in untold if self._runs[run_id].status is not RunStatus.CANCELLED]:
                raise Violation(f"{schedule} has fired {fired}, and {untold} were not cancelled")

    def _check_counters(self, row: ScheduleRow) -> None:
        runs = [self._runs[run_id] for run_id in self._of_schedule.get(row.schedule_id, ())]
        ended = [run.status for run in runs if run.status.finished]
        well = ended.count(RunStatus.COMPLETED)
        badly = ended.count(RunStatus.FAILED) + ended.count(RunStatus.TIMED_OUT)
        skipped = sum(count for _, _, count, *_ in self._skips(row.schedule_id))
        counted = (row.total_runs, row.successful_runs, row.failed_runs, row.skipped_runs)
        if counted != (len(runs), well, badly, skipped):
            raise Violation(f"{row} has counted wrongly: runs {len(runs)}, {well}, {badly}, skipped {skipped}")

    def _is_skipped(self, row: ScheduleRow, at: Instant) -> bool:
        return any(first <= at <= last for first, last, *_ in self._skips(row.schedule_id))

    def _skips(self, schedule_id: str) -> list[Any]:
        return self._connection.execute(
            "SELECT first_at, last_at, count, reason, at FROM schedule_skips WHERE schedule_id = ?", (schedule_id,)
        ).fetchall()


def _between(row: ScheduleRow, until: Instant) -> Iterator[Instant]:
    """The instants of a schedule from its watermark to this moment."""
    times = parse_times(row.cron_expr, row.timezone)
    at = times.after(row.fired_until)
    while at is not None and at <= until:
        yield at
        at = times.after(at)


def _ids(runs: list[RunRow]) -> set[str]:
    return {run.run_id for run in runs}

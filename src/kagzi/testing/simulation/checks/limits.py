"""What limits promise, said a second time: counted from the rows, independent of the store.

(19) never more run at once than a limit says, at any claim; nothing of what is paused is claimed or born
(20) in any period no more runs begin for the first time than a rate and its burst say
(21) only a claim holds a run, and only room, a cancellation or an end lets it go; news never moves it
(22) whoever is held although there is room is found soon
(23) a cancelled run that waits for a slot loses no time to clean up, and has enough of it when it is claimed
(31) what counts as declared is what live workers declare
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from kagzi.api.operations import CancelRun, StartRun, TerminateRun
from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.instant import SECOND, Instant
from kagzi.core.rate import RateLimit
from kagzi.core.run import CANCEL_GRACE, CLAIMABLE, RunStatus
from kagzi.store.lines import HELD
from kagzi.store.sqlite.limit_rows import limit_of
from kagzi.testing.simulation.checks.rows import RunRow, Violation, difference, wrong
from kagzi.testing.simulation.limited import has_limits

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World

_READ = """
SELECT namespace, scope, name, paused_at, paused_by, pause_reason, concurrency, declared, key_concurrency, key_declared,
    shares, rate, rate_declared, key_rate, key_rate_declared, fair
FROM limits
"""
_LIVE = "SELECT labels FROM workers WHERE status <> 'OFFLINE' AND labels IS NOT NULL"
# What makes a claimable run a held one: a claim, and whoever changes a rate for which it was told when to come.
_HOLDING = ("claim", "limits.change", "limits.declare", "workers.register", "workers.deregister", "workers.expire")
_SOON = 5 * SECOND  # in which the engine that is left frees what there is room for
_Line = tuple[str, str, str, str, str]


class Limits:
    def __init__(self, world: World, connection: sqlite3.Connection, runs: dict[str, RunRow]) -> None:
        self._world = world
        self._connection = connection
        self._runs = runs  # as they are after the transaction
        self._on = has_limits(world.seed)
        self._rows: list[tuple[Any, ...]] = []  # what they are made of
        self._limits: dict[tuple[Scope, str], FlowLimit] = {}
        self._begun: dict[tuple[str, ...], list[Instant]] = defaultdict(list)
        self._stuck: dict[_Line, Instant] = {}

    def check(self, before: dict[str, RunRow], touched: list[RunRow], now: Instant, method: str, args: Any) -> None:
        if not self._on:
            return
        rows = self._connection.execute(_READ).fetchall()
        if rows != self._rows:
            self._rows = rows
            self._limits = {(limit.scope, limit.name): limit for limit in map(limit_of, rows)}
        if method == "limits.declare":
            self._check_declared()
        for row in touched:
            old = before.get(row.run_id)
            self._check_holding(old, row, method, args)
            if old is not None and old.cancel_deadline is not None and old.held_key is not None:
                self._check_grace(old, row, now, method)
            if row.status is RunStatus.RUNNING and (old is None or old.status is not RunStatus.RUNNING):
                self._check_begun(old, row, now)
        if method == "duties.end_cancelled_runs":
            for row in touched:
                self._check_queue(before[row.run_id], row, now)
        if self._world.calm and method in ("overview.horizon", "workers.heartbeats", "claim"):
            self._check_stuck(now)

    # (31)

    def _check_declared(self) -> None:
        live = [msgspec.json.decode(labels) for (labels,) in self._connection.execute(_LIVE)]
        said = {limit["name"] for extras in live for limit in extras.get("limits", ())}
        counts = {
            name for (scope, name), limit in self._limits.items() if scope is Scope.WORKFLOW and limit.is_declared
        }
        if counts != said:
            raise Violation(f"{len(live)} live workers declare {said}, and what counts is {counts}")

    # (19), (20)

    def _check_begun(self, old: RunRow | None, row: RunRow, now: Instant) -> None:
        paused = [limit for limit in self._concerning(row) if limit.paused_at is not None]
        if paused:
            raise wrong(row.run_id, f"was handed out although {paused[0]} is paused")
        if old is None and self._concerning(row):
            raise wrong(row.run_id, f"was born, and not claimed, although there is {self._concerning(row)[0]}")
        for what, running, most in self._slots(row):
            self._world.operation("claim under a limit")
            if running > most:
                raise wrong(row.run_id, f"was claimed, and now {running} run for {what}, of which {most} may")
        if old is not None and old.executions == 0:
            for turn, rate in self._rates(row):
                times = self._begun[(*turn, rate.text, str(rate.burst))]
                times.append(now)
                if sum(at > now - rate.period for at in times) > rate.count + rate.burst:
                    raise wrong(row.run_id, f"is one too many of {turn} to begin by {rate}: {times[-10:]}")
                self._world.operation("first claim under a rate")

    def _concerning(self, row: RunRow) -> list[FlowLimit]:
        names = {row.workflow_type, row.limit_name or row.workflow_type, self._name(row)}
        wanted = [(Scope.NAMESPACE, ""), (Scope.QUEUE, row.task_queue), *[(Scope.WORKFLOW, name) for name in names]]
        return [self._limits[key] for key in wanted if key in self._limits]

    def _name(self, row: RunRow) -> str:
        """Whose limits count for a run: those of its name, or of the name that its workflow shares."""
        own = self._limits.get((Scope.WORKFLOW, row.workflow_type))
        if row.limit_name in (None, row.workflow_type) and own is not None and own.shares is not None:
            return own.shares
        return row.limit_name or row.workflow_type

    def _slots(self, row: RunRow) -> Iterator[tuple[str, int, int]]:
        """What the run counts for, how many run for it, and how many may."""
        running = [each for each in self._runs.values() if each.status is RunStatus.RUNNING]
        queue = self._limits.get((Scope.QUEUE, row.task_queue))
        if queue is not None and queue.most is not None:
            yield f"queue {queue.name}", sum(each.task_queue == row.task_queue for each in running), queue.most
        name = self._name(row)
        for whose in {row.workflow_type, name}:
            limit = self._limits.get((Scope.WORKFLOW, whose))
            if limit is not None and limit.most is not None:
                count = sum(whose in (each.workflow_type, self._name(each)) for each in running)
                yield f"workflow {whose}", count, limit.most
        limit = self._limits.get((Scope.WORKFLOW, name))
        if limit is not None and limit.key_most is not None and row.limit_key:
            count = sum((self._name(each), each.limit_key) == (name, row.limit_key) for each in running)
            yield f"{name}/{row.limit_key}", count, limit.key_most

    def _rates(self, row: RunRow) -> Iterator[tuple[tuple[str, ...], RateLimit]]:
        name = self._name(row)
        for scope, whose in ((Scope.QUEUE, row.task_queue), *[(Scope.WORKFLOW, w) for w in {row.workflow_type, name}]):
            limit = self._limits.get((scope, whose))
            if limit is not None and (rate := limit.effective_rate) is not None:
                yield (scope.value, whose), rate
        limit = self._limits.get((Scope.WORKFLOW, name))
        if limit is not None and row.limit_key and (rate := limit.effective_key_rate) is not None:
            yield ("key", name, row.limit_key), rate

    # (21)

    def _check_holding(self, old: RunRow | None, row: RunRow, method: str, args: Any) -> None:
        held, was_held = row.claim_key == HELD, old is not None and old.claim_key == HELD
        if held and (row.held_key is None or row.status not in CLAIMABLE):
            raise wrong(row.run_id, f"is held and has no place in its line: {row}")
        if old is None:
            if held:
                raise wrong(row.run_id, f"came into the world held, by {method}")
            return
        joined = _is_joined(row, method, args)  # it counts for what its last start says
        for was, field, value in (
            (old.limit_name, row.limit_name, row.workflow_type),
            (old.limit_key, row.limit_key, ""),
        ):
            if was != field and (was is not None or field != value) and not joined:
                raise wrong(row.run_id, f"counts for another limit than before: {difference(old, row)}")
        if held and not was_held:
            if method not in _HOLDING:
                raise wrong(row.run_id, f"was held by {method}: {difference(old, row)}")
            self._world.operation("run held")
        elif was_held and not held:
            self._check_let_go(old, row, method, args)
        elif was_held and old.inbox_seq < row.inbox_seq:
            self._world.operation("news for a held run")

    def _check_let_go(self, old: RunRow, row: RunRow, method: str, args: Any) -> None:
        asked = method == "apply" and any(
            isinstance(write, CancelRun | TerminateRun) and write.run_id == row.run_id for write in args[0]
        )
        if _is_joined(row, method, args) and not asked:
            self._world.operation("held run that a start joined")
        elif row.status.finished or asked or method in ("schedules.fire", "jobs.run_batch"):
            self._world.operation("held run that was cancelled or ended")
        elif method == "limits.unhold" and row.status is old.status:
            self._world.operation("run let go")
        else:
            raise wrong(row.run_id, f"was held, and let go by {method}: {difference(old, row)}")

    # (23)

    def _check_grace(self, old: RunRow, row: RunRow, now: Instant, method: str) -> None:
        if old.claim_key == HELD and method == "duties.end_cancelled_runs":
            raise wrong(row.run_id, "was ended uncleaned while it waited for a slot")
        if old.claim_key == HELD or row.status is RunStatus.RUNNING:
            if not row.status.finished and (row.cancel_deadline or 0) < now + CANCEL_GRACE:
                raise wrong(row.run_id, f"is let in and has no time to clean up: {difference(old, row)}")
            self._world.operation("cancelled run that was held")

    def _check_queue(self, old: RunRow, row: RunRow, now: Instant) -> None:
        """It was full before, if it is full after others have ended."""
        queue = self._limits.get((Scope.QUEUE, row.task_queue))
        if old.status not in CLAIMABLE or (old.claim_key or 0) > now or queue is None or queue.most is None:
            return
        running = [each for each in self._runs.values() if each.status is RunStatus.RUNNING]
        if queue.paused_at is not None or sum(each.task_queue == row.task_queue for each in running) < queue.most:
            return
        if row.status.finished:
            raise wrong(row.run_id, f"was ended uncleaned while it waited for a slot of {queue}")
        self._world.operation("cancelled run whose queue is full")

    # (22)

    def _check_stuck(self, now: Instant) -> None:
        lines: dict[_Line, RunRow] = {}
        found: set[_Line] = set()
        for row in self._runs.values():
            if row.status in CLAIMABLE:
                name = row.limit_name or row.workflow_type
                line = (name, row.limit_key or "", row.task_queue, row.workflow_type, row.version)
                if row.claim_key == HELD:
                    lines[line] = row
                else:
                    found.add(line)
        stuck = {line for line, row in lines.items() if line not in found and self._has_room(row)}
        self._stuck = {line: self._stuck.get(line, now) for line in stuck}
        # While nobody comes for what is claimable, one line after the other is freed, one in each turn.
        soon = _SOON + 2 * SECOND * len(lines)
        for line, since in self._stuck.items():
            if now - since > soon:
                raise Violation(f"there is room for {line}, and for {(now - since) / SECOND:g} s nobody lets it go")

    def _has_room(self, row: RunRow) -> bool:
        if any(limit.paused_at is not None for limit in self._concerning(row)):
            return False
        return all(running < most for _, running, most in self._slots(row))


def _is_joined(row: RunRow, method: str, args: Any) -> bool:
    """Whether a debounced start may have joined the run, which leaves its line then."""
    return (
        method == "apply"
        and row.started_at is None
        and any(
            isinstance(write, StartRun) and write.debounce is not None and write.workflow_type == row.workflow_type
            for write in args[0]
        )
    )

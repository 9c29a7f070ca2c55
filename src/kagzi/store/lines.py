"""Which of the runs that are due may be claimed under the limits of their namespace. For both databases.

Only RUNNING rows count, and they are counted anew each time: there is no counter that a crash could leave wrong. A run
for which there is no room is *held* (`HELD` in place of its claim key), so that what is behind it in its queue is found
at once however many are held. Runs of one limit name, key, queue, workflow and version are a line, because a worker
that can take one of them can take each of them. When there is room, the first of a line become claimable again.

    due ──claim: room──▶ RUNNING          counted and decided under the lock of the namespace's limits
     │ ▲
     │ └── unhold: room again ──┐
     └── claim: no room ──▶ HELD

Whoever holds a run or frees one has locked the limits first, and counts in a statement that begins after that. A claim
that has counted a run which ends meanwhile holds the next one and commits; the unhold that follows from the end waits
for that lock, and finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.instant import NEVER, Instant

HELD: Final[Instant] = NEVER + 1
LOOKED_AT: Final = 1000  # due runs of a queue that a claim holds or takes at once
LINES: Final = 500  # lines that are looked at in one turn
FREED: Final = 100  # runs of a line that become claimable in one turn

Running = Iterable[tuple[str, str, str, str, int]]  # queue, workflow, limit name, limit key, how many


class Due(Struct, frozen=True):
    """A run that is due."""

    run_id: str
    task_queue: str
    workflow_type: str
    limit_name: str  # that of its workflow if it has none of its own
    limit_key: str  # empty: none
    claim_key: Instant


class Line(Struct, frozen=True):
    """A line of runs: how many of them are claimable now, how many are held (both counted up to FREED), and the place
    of the first that is held."""

    limit_name: str
    limit_key: str
    task_queue: str
    workflow_type: str
    version: str
    ready: int
    held: int
    first: Instant | None


class Room:
    """What the limits of a namespace leave room for."""

    def __init__(self, limits: Iterable[FlowLimit], running: Running) -> None:
        self._limits = {(limit.scope, limit.name): limit for limit in limits}
        self._shares = {limit.name: limit.shares for limit in self._limits.values() if limit.shares is not None}
        self._queues: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        self._keys: Counter[tuple[str, str]] = Counter()
        for task_queue, workflow_type, name, key, count in running:
            self._count(task_queue, workflow_type, name, key, count)

    def copy(self) -> Room:
        other = Room((), ())
        other._limits, other._shares = self._limits, self._shares
        other._queues, other._names, other._keys = self._queues.copy(), self._names.copy(), self._keys.copy()
        return other

    def full(self, task_queue: str) -> bool:
        """Whether nothing of the queue may be claimed."""
        limit = self._limits.get((Scope.QUEUE, task_queue))
        return limit is not None and limit.most is not None and self._queues[task_queue] >= limit.most

    def holds(self, run: Due | Line) -> bool:
        """Whether the run has to wait for others of its workflow, its limit name or its key."""
        own = self._limits.get((Scope.WORKFLOW, run.workflow_type))
        return (own is not None and own.paused_at is not None) or self._reached(run) is not None

    def waits(self, run: Due) -> tuple[str, int, int] | None:
        """Returns whose slots the run waits for, how many of them are taken, and how many there are."""
        if self.full(run.task_queue):
            limit = self._limits[Scope.QUEUE, run.task_queue]
            return limit.about, self._queues[run.task_queue], limit.most or 0
        return self._reached(run)

    def _reached(self, run: Due | Line) -> tuple[str, int, int] | None:
        counted_for = self._name(run.workflow_type, run.limit_name)
        limit = self._limits.get((Scope.WORKFLOW, counted_for))
        if limit is not None and limit.key_most is not None and run.limit_key:
            running = self._keys[counted_for, run.limit_key]
            if running >= limit.key_most:
                return f"{counted_for}/{run.limit_key}", running, limit.key_most
        for name in {run.workflow_type, counted_for}:
            limit = self._limits.get((Scope.WORKFLOW, name))
            if limit is not None and limit.most is not None and self._names[name] >= limit.most:
                return limit.about, self._names[name], limit.most
        return None

    def _name(self, workflow_type: str, limit_name: str) -> str:
        """Whose limits count for a run. One that was started without a name counts for that which its workflow
        shares."""
        return self._shares.get(workflow_type, limit_name) if limit_name == workflow_type else limit_name

    def take(self, run: Due | Line) -> None:
        self._count(run.task_queue, run.workflow_type, run.limit_name, run.limit_key, 1)

    def _count(self, task_queue: str, workflow_type: str, name: str, key: str, count: int) -> None:
        name = self._name(workflow_type, name)
        self._queues[task_queue] += count
        for each in {workflow_type, name}:
            self._names[each] += count
        self._keys[name, key] += count


def decide(room: Room, due: Iterable[Due], most: int) -> tuple[list[Due], list[Due]]:
    """Returns the runs to claim, at most so many, and those to hold. What has room and no claimer stays as it is."""
    taken: list[Due] = []
    held: list[Due] = []
    for run in due:
        if room.holds(run):
            held.append(run)
        elif len(taken) < most and not room.full(run.task_queue):
            room.take(run)
            taken.append(run)
    return taken, held


def free(room: Room, lines: Iterable[Line]) -> list[tuple[Line, int]]:
    """Returns how many of each line become claimable: one of each, then the second of each, while there is room. The
    line whose first has waited longest comes first."""
    lines = sorted(lines, key=_waiting_since)
    bare = room.copy()
    left = lines
    for line in left:
        for _ in range(min(line.ready, FREED)):
            if room.holds(line):
                break
            room.take(line)  # somebody else will claim it
    wanted: Counter[Line] = Counter()
    while left:
        open_lines = []
        for line in left:
            if wanted[line] < line.held and not room.holds(line):
                room.take(line)
                bare.take(line)
                wanted[line] += 1
                open_lines.append(line)
        left = open_lines
    # What became claimable in a queue or version without workers stays so. It must not keep a slot from others for
    # ever: a line of which nothing is claimable gets one run if those that run leave room for it. If that is too many,
    # the next claim holds them again.
    for line in lines:
        if not line.ready and not wanted[line] and line.held and not bare.holds(line):
            bare.take(line)
            wanted[line] += 1
    return list(wanted.items())


def _waiting_since(line: Line) -> tuple[Instant, str]:
    return HELD if line.first is None else line.first, line.limit_key

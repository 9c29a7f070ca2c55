"""Which of the runs that are due may be claimed under the limits of their namespace. For both databases.

Only RUNNING rows count, and they are counted anew each time: there is no counter that a crash could leave wrong. A run
for which there is no room is *held* (`HELD` in place of its claim key), so that what is behind it in its queue is found
at once however many are held. Runs of one limit name, key, queue, workflow and version are a line, because a worker
that can take one of them can take each of them. When there is room, the first of a line become claimable again.

    due ──claim: room──▶ RUNNING          counted and decided under the lock of the namespace's limits
     │ ▲
     │ └── unhold: room again ──┐
     └── claim: no room ──▶ HELD

A rate holds runs that have never been claimed. The first of their line is told when to come: its claim key is that
moment (`unhold`), the others are held. Where keys take turns, a claim takes one of each key, then the second of each,
first of those that had no turn for longest; of each key a few are claimable, the others are held.

What holds a run or frees one has locked the limits first, and counts in a statement that begins after that. A claim
that has counted a run which ends meanwhile holds the next one and commits; the unhold that follows from the end waits
for that lock, and finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.core.instant import NEVER, Instant
from kagzi.core.rate import RateLimit

HELD: Final[Instant] = NEVER + 1
LOOKED_AT: Final = 1000  # due runs of a queue that a claim holds or takes at once
LINES: Final = 500  # lines that are looked at in one turn
FREED: Final = 100  # runs of a line that become claimable in one turn
READY: Final = 10  # runs of a key that are claimable where keys take turns
BEGUN: Final[Instant] = 2**50  # less than this is the place of a run that has begun, where there are rates

Turn = tuple[str, str, str]  # scope (queue, workflow, key or fair), name, limit key

_KEY: Final = "key"
_FAIR: Final = "fair"

Running = Iterable[tuple[str, str, str, str, int]]  # queue, workflow, limit name, limit key, how many


class Due(Struct, frozen=True):
    """A run that is due."""

    run_id: str
    task_queue: str
    workflow_type: str
    limit_name: str  # that of its workflow if it has none of its own
    limit_key: str  # empty: none
    claim_key: Instant
    first: bool = True  # it was never claimed
    version: str = ""


class Line(Struct, frozen=True):
    """A line of runs: how many of them are claimable now, how many are held (both counted up to FREED), the place of
    the first that is held, and whether one is told to come later."""

    limit_name: str
    limit_key: str
    task_queue: str
    workflow_type: str
    version: str
    ready: int
    held: int
    held_since: Instant | None
    later: bool = False

    @property
    def first(self) -> bool:
        """Whether the first run that is held was never claimed."""
        return self.held_since is None or self.held_since >= BEGUN


class Freed(NamedTuple):
    """How many of a line become claimable, and when; None: now."""

    line: Line
    runs: int
    at: Instant | None = None


class Room:
    """The room that the limits of a namespace leave."""

    def __init__(
        self,
        limits: Iterable[FlowLimit],
        running: Running,
        now: Instant = 0,
        turns: Mapping[Turn, Instant] | None = None,
    ) -> None:
        self._limits = {(limit.scope, limit.name): limit for limit in limits}
        self._shares = {limit.name: limit.shares for limit in self._limits.values() if limit.shares is not None}
        self._now = now
        self._turns = dict(turns or {})
        self.moved: set[Turn] = set()  # turns that were taken
        self.rated = any(limit.effective_rate or limit.effective_key_rate for limit in self._limits.values())
        self._queues: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        self._keys: Counter[tuple[str, str]] = Counter()
        for task_queue, workflow_type, name, key, count in running:
            self._count(task_queue, workflow_type, name, key, count)

    def copy(self) -> Room:
        other = Room((), ())
        other._limits, other._shares = self._limits, self._shares
        other._now, other._turns, other.rated = self._now, dict(self._turns), self.rated
        other._queues, other._names, other._keys = self._queues.copy(), self._names.copy(), self._keys.copy()
        return other

    def full(self, task_queue: str) -> bool:
        """Returns whether nothing of the queue may be claimed."""
        limit = self._limits.get((Scope.QUEUE, task_queue))
        return limit is not None and limit.most is not None and self._queues[task_queue] >= limit.most

    def holds(self, run: Due | Line) -> bool:
        """Returns whether the run has to wait for others of its workflow, its limit name or its key."""
        own = self._limits.get((Scope.WORKFLOW, run.workflow_type))
        return (own is not None and own.paused_at is not None) or self._reached(run) is not None

    def waits(self, run: Due, before: int) -> SlotWait | None:
        """Returns what the run waits for: a slot, or its turn by a rate."""
        if self.full(run.task_queue):
            limit = self._limits[Scope.QUEUE, run.task_queue]
            running = self._queues[run.task_queue]
            return SlotWait(slots=limit.about, running=running, most=limit.most or 0, before=before)
        if (reached := self._reached(run)) is not None:
            return SlotWait(slots=reached[0], running=reached[1], most=reached[2], before=before)
        later = [
            (at, rate.text, turn)
            for turn, rate in self._rates(run)
            if run.first and (at := rate.next_at(self._turns.get(turn, 0), self._now)) > self._now
        ]
        if not later:
            return None
        at, text, (scope, name, key) = max(later)
        whose = f"{name}/{key}" if scope == _KEY else f"{scope} {name}"
        return SlotWait(slots=whose, before=before, rate=text, next_at=at)

    def turns_of(self, runs: Iterable[Due | Line]) -> set[Turn]:
        """Returns the turns that have to be known to decide about these runs."""
        wanted: set[Turn] = set()
        for run in runs:
            wanted.update([turn for turn, _ in self._rates(run)])
            if (fair := self.fair_turn(run)) is not None:
                wanted.add(fair)
        return wanted

    def know(self, turns: Mapping[Turn, Instant]) -> None:
        self._turns.update(turns)

    def turn(self, turn: Turn) -> Instant:
        return self._turns.get(turn, 0)

    def begins_at(self, run: Due | Line) -> Instant:
        """Returns when the run may begin by its rates, which count a run once, when it is claimed for the first
        time."""
        if not run.first or not self.rated:
            return self._now
        times = [rate.next_at(self._turns.get(turn, 0), self._now) for turn, rate in self._rates(run)]
        return max(times, default=self._now)

    def fair_turn(self, run: Due | Line) -> Turn | None:
        """Returns the turn of the run's key, if keys take turns."""
        name = self._name(run.workflow_type, run.limit_name)
        limit = self._limits.get((Scope.WORKFLOW, name))
        return (_FAIR, name, run.limit_key) if limit is not None and limit.fair else None

    def _rates(self, run: Due | Line) -> Iterator[tuple[Turn, RateLimit]]:
        if not self.rated:
            return
        name = self._name(run.workflow_type, run.limit_name)
        names = [(Scope.WORKFLOW, each) for each in dict.fromkeys((run.workflow_type, name))]
        for scope, whose in ((Scope.QUEUE, run.task_queue), *names):
            limit = self._limits.get((scope, whose))
            if limit is not None and (rate := limit.effective_rate) is not None:
                yield (scope.value, whose, ""), rate
        limit = self._limits.get((Scope.WORKFLOW, name))
        if limit is not None and run.limit_key and (rate := limit.effective_key_rate) is not None:
            yield (_KEY, name, run.limit_key), rate

    def begin(self, run: Due | Line) -> None:
        """Takes the turns of a run that begins now, or when its turn comes."""
        if run.first:
            for turn, rate in self._rates(run):
                self._turns[turn] = rate.taken(self._turns.get(turn, 0), self._now)
                self.moved.add(turn)
        if (fair := self.fair_turn(run)) is not None:
            # One more than any before it, so that turns taken in one moment are told apart.
            self._turns[fair] = max(self._now, self._turns.get(fair, 0) + 1)
            self.moved.add(fair)

    def _reached(self, run: Due | Line) -> tuple[str, int, int] | None:
        counted_for = self._name(run.workflow_type, run.limit_name)
        limit = self._limits.get((Scope.WORKFLOW, counted_for))
        if limit is not None and limit.key_most is not None and run.limit_key:
            running = self._keys[counted_for, run.limit_key]
            if running >= limit.key_most:
                return f"{counted_for}/{run.limit_key}", running, limit.key_most
        for name in dict.fromkeys((run.workflow_type, counted_for)):  # of two that are reached its own is named
            limit = self._limits.get((Scope.WORKFLOW, name))
            if limit is not None and limit.most is not None and self._names[name] >= limit.most:
                return limit.about, self._names[name], limit.most
        return None

    def _name(self, workflow_type: str, limit_name: str) -> str:
        """Returns the name whose limits count for a run. One that was started without a name counts for that which its
        workflow shares."""
        return self._shares.get(workflow_type, limit_name) if limit_name == workflow_type else limit_name

    def take(self, run: Due | Line) -> None:
        self._count(run.task_queue, run.workflow_type, run.limit_name, run.limit_key, 1)

    def _count(self, task_queue: str, workflow_type: str, name: str, key: str, count: int) -> None:
        name = self._name(workflow_type, name)
        self._queues[task_queue] += count
        for each in {workflow_type, name}:
            self._names[each] += count
        self._keys[name, key] += count


def decide(room: Room, due: Sequence[Due], most: int, now: Instant) -> tuple[list[Due], list[Due], bool]:
    """Returns the runs to claim, at most so many, those to hold, and whether some of these wait for their turn, and for
    no other run. What has room and no claimer stays as it is."""
    taken: list[Due] = []
    held: list[Due] = []
    waiting = False
    ready: Counter[Turn] = Counter()
    for run in _in_turn(room, due):
        if room.holds(run):
            held.append(run)
        elif room.begins_at(run) > now:
            held.append(run)
            waiting = True
        elif len(taken) < most and not room.full(run.task_queue):
            room.take(run)
            room.begin(run)
            taken.append(run)
        elif (fair := room.fair_turn(run)) is not None:
            ready[fair] += 1
            if ready[fair] > READY:
                held.append(run)
                waiting = True
    return taken, held, waiting


def _in_turn(room: Room, due: Sequence[Due]) -> list[Due]:
    """Returns the runs in order. Runs whose keys take turns keep their places as a group, and take them in turn among
    themselves: one of each key, then the second of each; of two keys the one first that had its turn before the
    other."""
    keys: Counter[Turn] = Counter()
    order: list[tuple[int, Instant, int]] = []
    for place, run in enumerate(due):
        if (fair := room.fair_turn(run)) is not None:
            order.append((keys[fair], room.turn(fair), place))
            keys[fair] += 1
    if not order:
        return list(due)
    places = [place for _, _, place in order]
    sorted_runs = list(due)
    for place, (_, _, origin) in zip(places, sorted(order), strict=True):
        sorted_runs[place] = due[origin]
    return sorted_runs


def free(room: Room, lines: Iterable[Line], now: Instant) -> list[Freed]:
    """Returns how many of each line become claimable: one of each, then the second of each, while there is room. The
    line whose first has waited longest comes first."""
    lines = sorted(lines, key=_waiting_since)
    bare = room.copy()
    for line in lines:
        for _ in range(min(line.ready, FREED)):
            if room.holds(line):
                break
            room.take(line)  # somebody else will claim it
            room.begin(line)
        if line.later:
            room.begin(line)
    wanted: Counter[Line] = Counter()
    later: dict[Line, Instant] = {}
    left = lines
    while left:
        open_lines = []
        for line in left:
            if wanted[line] >= _most_ready(room, line) or room.holds(line):
                continue
            at = room.begins_at(line)
            if at > now and (line.ready or line.later or wanted[line]):
                continue  # the next one is told when that one is claimed
            room.take(line)
            room.begin(line)
            if at > now:
                later[line] = at
                continue
            bare.take(line)
            bare.begin(line)
            wanted[line] += 1
            open_lines.append(line)
        left = open_lines
    # What became claimable in a queue or version without workers stays so. It must not keep a slot from others for
    # ever: a line of which nothing is claimable gets one run if those that run leave room for it. If that is too many,
    # the next claim holds them again.
    for line in lines:
        if line.ready or line.later or wanted[line] or not line.held or bare.holds(line):
            continue
        at = bare.begins_at(line)
        bare.take(line)
        bare.begin(line)
        later.pop(line, None)
        if at > now:
            later[line] = at
        else:
            wanted[line] += 1
    turned = [
        Freed(line, runs, now if room.fair_turn(line) is not None else None) for line, runs in wanted.items() if runs
    ]
    return turned + [Freed(line, 1, at) for line, at in later.items()]


def _most_ready(room: Room, line: Line) -> int:
    """Returns how many of the line may be claimable at once. Those that have begun are let go one by one, because how
    many there are before the others is not known."""
    if room.rated and not line.first:
        return min(line.held, 1)
    return min(line.held, READY - line.ready) if room.fair_turn(line) is not None else line.held


def _waiting_since(line: Line) -> tuple[Instant, str]:
    return HELD if line.held_since is None else line.held_since, line.limit_key

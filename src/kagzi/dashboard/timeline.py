"""The timeline of a run: a row for each step, with a bar for each attempt and for each wait between them.

Bars lie on a scale of SCALE units from when the run was created to its end, or to now. Pure: rows in, rows out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.core.run import Run, RunStatus
from kagzi.core.step import BEGIN, Step, StepKind, StepStatus, is_patch
from kagzi.dashboard import text

SCALE: Final = 1000.0
_THINNEST: Final = 2.0  # of a bar, so that it can be seen

_KINDS: Final = {
    StepStatus.RUNNING: "running",
    StepStatus.COMPLETED: "completed",
    StepStatus.FAILED: "failed",
    StepStatus.CANCELLED: "cancelled",
}


class Bar(Struct, frozen=True, kw_only=True):
    """`kind` is a class of the style sheet; `title` says in words what the bar shows."""

    kind: str
    x: float
    width: float
    title: str


class Row(Struct, frozen=True, kw_only=True):
    """A step with its attempts, or a group of steps, which has none. `mark` changes when something happens to it."""

    key: str
    name: str
    note: str
    depth: int
    status: StepStatus | None
    bars: tuple[Bar, ...]
    attempts: tuple[Step, ...] = ()
    took: str = ""
    mark: str = ""

    @property
    def is_group(self) -> bool:
        return not self.attempts

    @property
    def drawn(self) -> list[Bar]:
        """Returns the bars in the order of drawing: waits first, so that a short attempt beside a long wait can be
        seen."""
        return sorted(self.bars, key=lambda bar: bar.kind != "wait")

    @property
    def spoken(self) -> str:
        """The row for those who hear it."""
        return "; ".join(bar.title for bar in self.bars)


class Scale:
    def __init__(self, begin: Instant, end: Instant, *, over: bool = False) -> None:
        self.begin = begin
        self.end = max(end, begin + 1)
        self.over = over  # the run has finished: nothing of it goes on

    def bar(self, kind: str, begin: Instant, end: Instant, title: str) -> Bar:
        whole = self.end - self.begin
        x = min(max(0.0, (begin - self.begin) / whole), 1.0) * SCALE
        right = min(max(0.0, (end - self.begin) / whole), 1.0) * SCALE
        width = max(_THINNEST, right - x)
        return Bar(kind=kind, x=round(min(x, SCALE - width), 2), width=round(width, 2), title=title)


def scale_of(run: Run, now: Instant) -> Scale:
    return Scale(run.created_at, run.finished_at or now, over=run.status.finished)


def whole_run(run: Run, steps: Sequence[Step], now: Instant) -> Row:
    """Returns the first row: how long the run waited in its queue, and how it has gone since."""
    scale = scale_of(run, now)
    begun = run.started_at
    bars = []
    queued_until = min(begun if begun is not None else scale.end, scale.end)
    if queued_until > run.created_at:
        before = "before it began anew" if run.incarnation else "in the queue"
        bars.append(
            scale.bar("queued", run.created_at, queued_until, f"{before}, {text.length(queued_until - run.created_at)}")
        )
    if begun is not None:
        parked_at = max((step.finished_at or 0 for step in steps), default=begun)
        end = max(begun, parked_at) if run.status is RunStatus.SLEEPING else scale.end
        kind = "live" if not run.status.finished else run.status.value.lower()
        bars.append(scale.bar(f"run-{kind}", begun, end, f"under way, {text.length(end - begun)}"))
        if run.status is RunStatus.SLEEPING:
            bars.append(scale.bar("wait", end, now, f"parked, {text.length(now - end)} so far"))
    return Row(key="", name="The run", note="", depth=0, status=None, bars=tuple(bars))


class ChildRow(Struct, frozen=True, kw_only=True):
    """A child, below the step that has started it: its time in the queue, and its own."""

    run: Run
    drawn: tuple[Bar, ...]

    @property
    def spoken(self) -> str:
        return "; ".join(bar.title for bar in self.drawn)


def child_rows(run: Run, children: Sequence[Run], now: Instant) -> dict[str, ChildRow]:
    """Returns the children of a run on its own scale, by their run ids."""
    scale = scale_of(run, now)
    rows = {}
    for child in children:
        begun, end = child.started_at, child.finished_at or now
        queued_until = end if begun is None else begun
        waited = f"in the queue, {text.length(max(0, queued_until - child.created_at))}"
        bars = [scale.bar("queued", child.created_at, queued_until, waited)]
        if begun is not None:
            kind = "live" if not child.status.finished else child.status.value.lower()
            bars.append(scale.bar(f"run-{kind}", begun, end, f"under way, {text.length(end - begun)}"))
        rows[child.run_id] = ChildRow(run=child, drawn=tuple(bars))
    return rows


class Entry(Struct, frozen=True):
    """A line of the timeline that nobody has drawn yet: a step with its attempts, or the name of a group."""

    key: str
    name: str
    depth: int
    attempts: tuple[Step, ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].status is StepStatus.FAILED


def entries_of(steps: Sequence[Step]) -> list[Entry]:
    """Returns steps as they began, those of a group below its name."""
    by_step: dict[str, list[Step]] = {}
    for step in steps:
        if step.step_id.partition("~")[0] != BEGIN:
            by_step.setdefault(step.step_id, []).append(step)
    tree = _Group("", "")
    for step_id, attempts in sorted(by_step.items(), key=lambda each: min(step.started_at for step in each[1])):
        attempts.sort(key=lambda step: step.attempt)
        tree.find(attempts[0].scope).members.append((step_id, tuple(attempts)))
    return tree.entries(-1)


def rows_of(run: Run, entries: Sequence[Entry], now: Instant) -> list[Row]:
    """Returns the lines that are shown, with their bars."""
    scale = scale_of(run, now)
    if scale.over:
        now = scale.end
    return [_row(entry, scale, now) if entry.attempts else _group_row(entry) for entry in entries]


class _Group:
    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self.members: list[tuple[str, tuple[Step, ...]] | _Group] = []
        self._groups: dict[str, _Group] = {}

    def find(self, scope: str) -> _Group:
        group = self
        for part in scope.split("/") if scope else ():
            if part not in group._groups:
                path = f"{group.path}/{part}" if group.path else part
                group._groups[part] = made = _Group(path, part)
                group.members.append(made)
            group = group._groups[part]
        return group

    def entries(self, depth: int) -> list[Entry]:
        found = [Entry(f"{self.path}/", _plain(self.name), depth)] if depth >= 0 else []
        for member in self.members:
            if isinstance(member, _Group):
                found += member.entries(depth + 1)
            else:
                step_id, attempts = member
                found.append(Entry(step_id, _shown_name(step_id, attempts[-1]), depth + 1, attempts))
        return found


def _group_row(entry: Entry) -> Row:
    return Row(key=entry.key, name=entry.name, note="group", depth=entry.depth, status=None, bars=())


def _row(entry: Entry, scale: Scale, now: Instant) -> Row:
    step_id, attempts = entry.key, entry.attempts
    last = attempts[-1]
    bars = [bar for step in attempts for bar in _bars(step, attempts, scale, now)]
    _, _, generation = step_id.partition("~")
    notes = []
    match last.kind:
        case StepKind.FUNCTION | StepKind.CANCEL:
            pass
        case StepKind.SLEEP:
            if last.name != "sleep":
                notes.append("sleep")
        case StepKind.SIGNAL:
            notes.append("patch" if is_patch(step_id) else "signal")
        case StepKind.CHILD_WORKFLOW:
            notes.append("child")
        case kind:
            assert_never(kind)
    if len(attempts) > 1:
        notes.append(f"{len(attempts)} attempts")
    if generation:
        notes.append("before the run began anew" if generation[0] == "i" else "set aside by a retry of the run")
    end = last.finished_at or now
    return Row(
        key=step_id,
        name=entry.name,
        note=", ".join(notes),
        depth=entry.depth,
        status=last.status,
        bars=tuple(bars),
        attempts=attempts,
        took=text.length(end - attempts[0].started_at),
        mark=f"{len(attempts)} {last.status}",
    )


def _bars(step: Step, attempts: Sequence[Step], scale: Scale, now: Instant) -> list[Bar]:
    end = step.finished_at or now
    took = text.length(max(0, end - step.started_at))
    match step.kind:
        case StepKind.SLEEP:
            return [scale.bar("wait", step.started_at, end, f"slept {took}")]
        case StepKind.SIGNAL:
            return [scale.bar("wait", step.started_at, end, f"waited {took}")]
        case StepKind.CANCEL:
            return [scale.bar("cancelled", step.started_at, end, "told to end")]
        case StepKind.FUNCTION | StepKind.CHILD_WORKFLOW:
            return _bars_of_attempt(step, attempts, scale, end, took)
        case kind:
            assert_never(kind)


def _bars_of_attempt(step: Step, attempts: Sequence[Step], scale: Scale, end: Instant, took: str) -> list[Bar]:
    """Returns the bar of an attempt, and that of the wait for the next one."""
    left = scale.over and step.status is StepStatus.RUNNING
    kind, word = ("cancelled", "left when the run ended") if left else (_KINDS[step.status], step.status.value.lower())
    bars = [scale.bar(kind, step.started_at, end, f"attempt {step.attempt} {word}, {took}")]
    if step.status is StepStatus.FAILED and step.retry_at is not None:
        later = [each.started_at for each in attempts if each.attempt == step.attempt + 1]
        until = later[0] if later else min(step.retry_at, scale.end)
        if until > end:
            bars.append(
                scale.bar("wait", end, until, f"waited {text.length(until - end)} for attempt {step.attempt + 1}")
            )
    return bars


def _shown_name(step_id: str, step: Step) -> str:
    if step.kind is StepKind.CANCEL:
        return "cancellation"
    number = step_id.rpartition("/")[2].partition("~")[0].partition("#")[2]
    return f"{step.name} #{number}" if number else step.name


def _plain(part: str) -> str:
    """Returns a part of a scope without the signs of a step id."""
    name, _, number = part.partition("#")
    for mark in "~@#/%":
        name = name.replace(f"%{ord(mark):02X}", mark)
    return f"{name.lstrip('@')} #{number}" if number else name.lstrip("@")

"""Signals that the runs of a world are sent, the programs that wait for them, and what an inbox must look like."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.signal import awaits_signal
from kagzi.core.step import BEGIN, StepKind
from kagzi.store.lines import HELD
from kagzi.testing.simulation.programs import Node

if TYPE_CHECKING:
    from kagzi.testing.simulation.checks.rows import RunRow
    from kagzi.testing.simulation.orders import Order

_FIRST_NUMBER = 500_001  # of nodes that wait for signals: far from those of other nodes


class Telling(Struct, frozen=True, kw_only=True):
    """A signal somebody sends to a run: its key is its value."""

    key: str
    name: str
    after: tuple[float, ...]  # seconds after the birth of the run; each a sending of its own
    by_id: bool


class SignalRow(Struct, frozen=True):
    key: str
    seq: int
    name: str
    value: bytes
    sent_at: Instant
    taken_seq: int | None


def draw_signals(random: Random, orders: list[Order]) -> None:
    """Some of the runs wait for signals, and are sent as many as they need, or more."""
    for order in orders:
        if order.poison or order.expected is RunStatus.TIMED_OUT or random.random() > 0.3:
            continue
        name = f"order {order.number}"
        part, tellings = _draw_part(random, name)
        for telling, (of_name, needed) in enumerate(tellings):
            after = tuple(random.choice((0.0, 0.02, 0.3, 1.0, 2.5, 6.0)) for _ in range(random.choice((1, 1, 2, 3))))
            if needed or random.random() < 0.6:
                by_id = order.id is not None and random.random() < 0.5
                order.tellings.append(Telling(key=f"{of_name}-{telling}", name=of_name, after=after, by_id=by_id))
        parts = [part, order.program] if random.random() < 0.6 else [order.program, part]
        order.program = [random.choice(("seq", "gather")), _FIRST_NUMBER, parts]
        order.args = (order.program, *order.args[1:])


def _draw_part(random: Random, name: str) -> tuple[Node, list[tuple[str, bool]]]:
    """Returns a node, and the names of signals for it: whether its end depends on each."""
    number, milliseconds = _FIRST_NUMBER + 1, random.choice((30, 400, 1500, 4000))
    match random.choice(("told", "crowd", "heed", "either", "stream")):
        case "told":
            count = random.choice((1, 2, 3))
            return ["told", number, name, count], [(name, True)] * count + [(name, False)]
        case "crowd":
            crowd = [["told", number + 1 + place, name, 1 + place] for place in range(2)]
            return ["gather", number, crowd], [(name, True)] * 3
        case "heed":
            return ["heed", number, name, milliseconds], [(name, False)]
        case "either":
            names = [f"{name} a", f"{name} b"]
            return ["either", number, names], [(names[0], True), (names[1], False)]
        case _:
            return ["stream", number, name, milliseconds], [(name, False)] * 3


def inbox_problem(old: RunRow | None, new: RunRow, now: Instant) -> str | None:
    """Returns what is wrong with the inbox of a run after a transaction."""
    before = {} if old is None else old.signals
    for key, row in before.items():
        kept = new.signals.get(key)
        if kept is None or msgspec.structs.replace(kept, taken_seq=row.taken_seq) != row:
            return f"had the signal {row}, and has {kept}"
    if before and max(row.seq for row in before.values()) >= min(
        (row.seq for key, row in new.signals.items() if key not in before), default=new.inbox_seq + 1
    ):
        return f"got signals whose numbers do not rise: {new.signals}"
    if any(row.seq > new.inbox_seq for row in new.signals.values()):
        return f"has an inbox up to {new.inbox_seq}, and in it {new.signals}"
    return _taking_problem(new) or _sleeping_problem(new, now)


def _taking_problem(run: RunRow) -> str | None:
    events = {
        step.completed_seq: step.output
        for step in run.events.values()
        if step.kind is StepKind.SIGNAL and step.step_id != BEGIN
    }
    taken = [(row.taken_seq, row.value) for row in run.signals.values() if row.taken_seq]  # 0: in a life before
    if len(taken) != len(events) or dict(taken) != events:
        return f"has the events {events}, and taken are {taken}"
    for name in {row.name for row in run.signals.values()}:
        rows = sorted((row for row in run.signals.values() if row.name == name), key=lambda row: row.seq)
        order = [run.last_seq + 1 if row.taken_seq is None else row.taken_seq for row in rows]
        if order != sorted(order):
            return f"took signals of one name in another order than that of their arrival: {rows}"
    return None


def _sleeping_problem(run: RunRow, now: Instant) -> str | None:
    # One that is held is due already, and waits for others.
    if run.status is RunStatus.SLEEPING and (run.claim_key or 0) > now and run.claim_key != HELD:
        for row in run.signals.values():
            if row.taken_seq is None and waits_for(run, row.name):
                return f"sleeps although it waits for {row}"
    return None


def waits_for(run: RunRow, name: str) -> bool:
    """Whether the run was parked so that a signal of this name wakes it."""
    awaited = [] if run.waiting_for is None else msgspec.json.decode(run.waiting_for)
    return awaits_signal(name) in awaited or awaits_signal("*") in awaited

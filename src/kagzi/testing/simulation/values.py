"""What the runs of a world say about themselves, and what of that must be stored."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct

from kagzi.core.failed_run import FAILED_INPUT
from kagzi.core.instant import Instant
from kagzi.testing.simulation.programs import Node

if TYPE_CHECKING:
    from kagzi.testing.simulation.checks.rows import RunRow
    from kagzi.testing.simulation.orders import Order

_FIRST_NUMBER = 700_001  # of nodes that say something: far from those of other nodes
FIRST_INPUT = "@first_input"
_ONE_OF = 3  # worlds in which runs talk: the others are as they were


class ValueRow(Struct, frozen=True):
    name: str
    value: bytes
    at: Instant
    seq: int


def draw_values(seed: int, random: Random, orders: list[Order]) -> None:
    """Some of the runs say how far they are: before, between and after what they do."""
    if seed % _ONE_OF:
        return
    for place, order in enumerate(orders):
        if order.poison or random.random() > 0.7:
            continue
        number = _FIRST_NUMBER + 100 * place
        parts: list[Node] = [["say", number, random.choice("ab")], order.program]
        for each in range(random.choice((1, 2, 3))):
            parts += [["step", number + 1 + 2 * each, random.choice((0, 20, 150, 2500))]]
            parts += [["say", number + 2 + 2 * each, random.choice("ab")]]
        order.program = ["seq", number + 99, parts]
        order.args = (order.program, *order.args[1:])


def values_problem(old: RunRow | None, new: RunRow, method: str, now: Instant) -> str | None:
    """Returns what is wrong with the values of a run after a transaction."""
    before = {} if old is None else old.values
    for name, row in before.items():
        kept = new.values.get(name)
        if kept is None or kept.seq < row.seq or (kept.seq == row.seq and kept.value != row.value):
            return f"said {row}, and now {kept}"
    fresh = [row for name, row in new.values.items() if row != before.get(name)]
    if old is None and new.handles_run_id is not None and [row.name for row in fresh] == [FAILED_INPUT]:
        return None
    fresh = [row for row in fresh if row.name != FIRST_INPUT]  # kept when the run begins anew
    # Without a token afterwards: the run was terminated by a later write of the same batch.
    if fresh and (method != "apply" or old is None or old.token is None or new.token not in (old.token, None)):
        return f"said {fresh} by {method}, under no lease"
    if any(row.seq >> 32 != new.executions or row.at != now for row in fresh):
        return f"said {fresh} in execution {new.executions} at {now}"
    return None

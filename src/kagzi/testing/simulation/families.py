"""Children that the runs of a world have: which programs start them, and what those must answer."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from kagzi.testing.simulation.programs import CRASH_ALWAYS, FAMILY_KINDS, Node

if TYPE_CHECKING:
    from kagzi.testing.simulation.orders import Order

_FIRST_NUMBER = 800_001  # of nodes that have children: far from those of other nodes
_LONG = 2_000_000  # milliseconds, longer than any world waits for its end: only its parent's end can be the child's


def has_families(seed: int) -> bool:
    """A world of four: the others are as they were."""
    return seed % 4 == 1


def draw_families(seed: int, random: Random, orders: list[Order]) -> None:
    """Most of the runs start others: wait for them, leave them behind, end them, or are refused."""
    if not has_families(seed):
        return
    for place, order in enumerate(orders):
        if order.poison or random.random() > 0.75:
            continue
        drawer = Drawer(random, _FIRST_NUMBER + 200 * place, f"order-{order.number}", named=order.id is not None)
        part = drawer.part(depth=2)
        if random.random() < 0.2:
            part = ["timeout", drawer.next(), random.choice((20, 300, 1200)), part, "either"]
        parts = [part, order.program] if random.random() < 0.6 else [order.program, part]
        order.program = [random.choice(("seq", "seq", "gather")), drawer.next(), parts]
        order.args = (order.program, *order.args[1:])


class Drawer:
    def __init__(
        self, random: Random, first: int, name: str, *, named: bool, kinds: tuple[str, ...] = FAMILY_KINDS
    ) -> None:
        # Whoever orders a run without an id and does not hear of it orders it again: its child's id would be taken.
        self._named = named
        self._kinds = kinds
        self._random = random
        self._number = first
        self._name = name

    def next(self) -> int:
        self._number += 1
        return self._number

    def part(self, depth: int) -> Node:
        number, choice = self.next(), self._random.choice
        match choice(("child", "child", "child", *self._kinds)):
            case "fan":
                return ["fan", number, [self._work(0) for _ in range(choice((3, 3, 6, 25)))]]
            case "leave":
                policy = choice(("cancel", "terminate", "abandon"))
                length = choice((0, 300, 2500)) if policy == "abandon" else choice((300, _LONG, _LONG))
                return ["leave", number, ["sleep", self.next(), length], policy]
            case "hurry":
                return ["hurry", number, ["sleep", self.next(), choice((0, _LONG, _LONG))]]
            case "brief":
                return ["brief", number, ["sleep", self.next(), choice((0, 400, _LONG))], choice((30, 500, 1500))]
            case "greet":
                name = f"{self._name} {number}"
                return ["greet", number, ["told", self.next(), name, 1], name]
            case "clash":
                return ["clash", number, f"{self._name} clash {number}"]
            case "fail":
                return ["fail", number, self._work(depth - 1)]
            case "expire":
                return ["expire", number, ["sleep", self.next(), _LONG], choice((0.05, 1.0))]
            case _:
                how = choice(("run", "run", "late", "named" if self._named else "run"))
                return ["child", number, self._work(depth - 1), how, f"{self._name} child {number}"]

    def _work(self, depth: int) -> Node:
        """What a child does."""
        chance = self._random.random()
        if depth > 0 and chance < 0.4:
            return self.part(depth)
        number = self.next()
        if chance < 0.75:
            return ["step", number, self._random.choice((0, 0, 20, 600))]
        if chance < 0.78:
            return ["poison", number, CRASH_ALWAYS]
        if chance < 0.86:
            return ["flaky", number, 1, 0]
        return ["sleep", number, self._random.choice((1, 400, 1500, 3000))]

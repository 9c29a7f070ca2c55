"""Worlds of another kind, in which runs kill their workers and nothing else goes wrong: no other run may fail for it.

Everything is started within a moment, so that killers and others are claimed together, and three crashes are the end.
"""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec.structs import replace

from kagzi.core.run import RunStatus
from kagzi.testing.simulation.faults import CALM
from kagzi.testing.simulation.orders import Order
from kagzi.testing.simulation.programs import CRASH_ALWAYS, Author
from kagzi.testing.simulation.world import World

_ORDERS: Final = 14
_KILLERS: Final = 2
_MOMENT: Final = 0.2  # seconds, within which all are started
_LENGTH: Final = 800  # milliseconds of a step, so long that all are killed in it


class PoisonedWorld(World):
    def _draw_orders(self, random: Random) -> list[Order]:
        self.settings = replace(self.settings, max_crashes=3, claim_limit=1000)
        self.weather = CALM
        author = Author(random)
        orders = [
            Order(
                number=number,
                at=random.uniform(0.0, _MOMENT),
                workflow="program",
                program=["seq", number, [["step", 2 * number, _LENGTH], ["step", 2 * number + 1, 0]]],
                args=(),
                expected=RunStatus.COMPLETED,
                id=f"order-{number}",
                wait=True,
            )
            for number in range(_ORDERS)
        ]
        for order in random.sample(orders, _KILLERS):
            order.poison, order.expected = True, RunStatus.FAILED
            order.program = author.poison(CRASH_ALWAYS)
        for order in orders:
            order.args = (order.program,)
        return orders

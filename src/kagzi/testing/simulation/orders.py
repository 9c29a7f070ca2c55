"""What the clients of a world ask for: runs of all kinds, with ids, delays, priorities and deadlines."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct

from kagzi.core.run import RunStatus
from kagzi.sdk.debounce import Debounce
from kagzi.testing.simulation.programs import CRASH_ALWAYS, Author, Node
from kagzi.testing.simulation.signals import Telling
from kagzi.testing.simulation.steps import RUN_ATTEMPTS


class Order(Struct, kw_only=True):
    """One run somebody wants, and how it must end."""

    number: int
    at: float  # seconds after the beginning
    workflow: str
    program: Node
    args: tuple[Any, ...]
    expected: RunStatus
    poison: bool = False
    id: str | None = None
    delay: float | None = None
    timeout: float | None = None
    priority: int = 0
    queue: str = "default"
    wait: bool = False
    cancel: float | None = None  # somebody asks for the run to end, so many seconds after its start
    grace: float = 30.0  # what it has to clean up then
    cancel_at_end: bool = False  # somebody asks just before its end is stored
    terminate: float | None = None  # somebody ends it
    tellings: list[Telling] = []  # signals it is sent
    limit_key: str | None = None  # whose share of limits it takes
    changes: int = 0  # how often somebody wants it otherwise: repeats, restarts or forks it
    handled: bool = False  # a workflow is started if it fails
    debounce: Debounce | None = None  # it may join the run of another one
    run_id: str | None = None  # once a start was acknowledged


def draw_orders(random: Random, seconds: float) -> list[Order]:
    return [_draw(random, number, seconds) for number in range(1, random.choice((5, 7, 9, 12)) + 1)]


def draw_endings(random: Random, orders: list[Order]) -> None:
    """Some of the runs are not left alone."""
    for order in orders:
        chance = random.random()
        after = random.choice((0.0, 0.05, 0.3, 1.0, 3.0, 8.0))
        if chance < 0.16:
            order.cancel, order.grace = after, random.choice((1.0, 5.0, 30.0))
        elif chance < 0.2:
            order.terminate = after
        elif chance < 0.26:
            order.cancel_at_end = True


def patience_with(order: Order) -> int:
    """Returns how often the run of this order may spawn a child that takes its process down until it is given up."""
    return 1 + order.args[1] if order.workflow == "stubborn" and _has_poison(order.program) else 1


def _has_poison(node: Any) -> bool:
    return isinstance(node, list) and (node[:1] == ["poison"] or any(_has_poison(inner) for inner in node))


def _draw(random: Random, number: int, seconds: float) -> Order:
    author = Author(random)
    order = Order(
        number=number,
        at=random.uniform(0.0, seconds * 0.6),
        workflow="program",
        program=["step", 0, 0],
        args=(),
        expected=RunStatus.COMPLETED,
        id=f"order-{number}" if random.random() < 0.6 else None,
        delay=random.choice((0.2, 2.0, 6.0)) if random.random() < 0.2 else None,
        priority=random.choice((0, 0, 0, 1, 5, 30)),
        queue=random.choice(("default", "default", "other")),
        wait=random.random() < 0.5,
    )
    chance = random.random()
    if chance < 0.06:
        order.poison = True
        crashes = random.choice((1, 2, CRASH_ALWAYS))
        order.program = author.poison(crashes)
        if crashes == CRASH_ALWAYS:
            order.expected = RunStatus.FAILED
    elif chance < 0.14:
        order.expected = RunStatus.TIMED_OUT
        order.timeout = random.choice((0.5, 3.0))
        order.delay = random.choice((None, 30.0))
        order.program = ["seq", 1, [author.node(1), ["sleep", 1_000_001, 100_000]]]
    else:
        order.program = author.program()
    order.args = (order.program,)
    if order.expected is RunStatus.COMPLETED and not order.poison:
        chance = random.random()
        if chance < 0.1:
            order.workflow, order.expected = "failing", RunStatus.FAILED
        elif chance < 0.25:
            refusals = random.choice((1, 1, 2, RUN_ATTEMPTS))
            order.workflow, order.args = "stubborn", (order.program, refusals)
            if refusals >= RUN_ATTEMPTS:
                order.expected = RunStatus.FAILED
    return order

"""Limits in a world: workflows that declare them, runs that meet them, and people who set, pause and clear them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.rate import RateLimit
from kagzi.core.run import RunStatus
from kagzi.engine.local import LocalEngine
from kagzi.sdk.limits import Limit, Rate
from kagzi.testing.simulation.programs import Node
from kagzi.testing.simulation.steps import App
from kagzi.testing.simulation.workload import Interpreter

if TYPE_CHECKING:
    from kagzi.testing.simulation.orders import Order

NAMESPACE = "default"
TENANTS = ("a", "b", "c")
_FIRST_NUMBER = 600_001  # of nodes of runs that are there to meet limits: far from those of other nodes
_FIRST_ORDER = 101

Ask = Callable[[LocalEngine], Awaitable[Any]]
Held = tuple[Scope, str]  # what is limited or paused

app = App("memory://", namespace=NAMESPACE)


def has_limits(seed: int) -> bool:
    """A world of six: the others are as they were."""
    return seed % 17 in (9, 14, 15)


async def _execute(node: Node) -> Any:
    interpreter = Interpreter()
    return [await interpreter.run(node), interpreter.checksum()]


@app.workflow(concurrency=[Limit(3), Limit(1, key="tenant")])
async def narrow(node: Any, tenant: str) -> Any:  # noqa: ARG001
    """At most three at once, and one of each tenant."""
    return await _execute(node)


@app.workflow(concurrency=Limit(2, name="shared", key="tenant"))
async def sharing(node: Any, tenant: str) -> Any:  # noqa: ARG001
    """Two of each tenant at once, together with another workflow."""
    return await _execute(node)


@app.workflow(concurrency=Limit(2, name="shared", key="tenant"))
async def sharing_too(node: Any, tenant: str) -> Any:  # noqa: ARG001
    """The other one."""
    return await _execute(node)


@app.workflow(rate=Rate(2, "2s", burst=2, key="tenant"))
async def paced(node: Any, tenant: str) -> Any:  # noqa: ARG001
    """Begins so often for each tenant, and no more often."""
    return await _execute(node)


@app.workflow(fair="tenant")
async def fairly(node: Any, tenant: str) -> Any:  # noqa: ARG001
    """Its tenants take turns."""
    return await _execute(node)


WORKFLOWS = {each.name: each for each in (narrow, sharing, sharing_too, paced, fairly)}


def draw_limited(seed: int, random: Random, seconds: float) -> list[Order]:
    """Bursts of small runs, most of them of one tenant."""
    if not has_limits(seed):
        return []
    from kagzi.testing.simulation.orders import Order

    orders = []
    for place in range(random.choice((8, 12, 16))):
        number = _FIRST_NUMBER + 10 * place
        parts: list[Node] = [["step", number + 1, random.choice((0, 150, 600, 2500))]]
        if random.random() < 0.5:
            parts += [["sleep", number + 2, random.choice((50, 400, 1500))], ["step", number + 3, 0]]
        program = ["seq", number, parts]
        tenant = random.choice((*TENANTS, "a", "a", "a"))
        orders.append(
            Order(
                number=_FIRST_ORDER + place,
                at=random.choice((0.05, 0.3, 0.5)) * seconds + random.uniform(0.0, 0.3),
                workflow=random.choice(tuple(WORKFLOWS)),
                program=program,
                args=(program, tenant),
                expected=RunStatus.COMPLETED,
                id=f"limited-{place}" if random.random() < 0.5 else None,
                priority=random.choice((0, 0, 0, 5)),
                queue=random.choice(("default", "default", "other")),
            )
        )
    return orders


def draw_keys(seed: int, random: Random, orders: list[Order]) -> None:
    """Others take their share of a limit, should somebody set one."""
    if has_limits(seed):
        for order in orders:
            order.limit_key = random.choice((None, *TENANTS))


def draw_changes(random: Random, seconds: float) -> list[tuple[float, Held, Ask]]:
    """What people do about limits, and when."""
    changes: list[tuple[float, Held, Ask]] = []
    for _ in range(random.choice((3, 6, 9))):
        scope, name = random.choice(
            (
                *[(Scope.WORKFLOW, workflow) for workflow in ("program", "program", *WORKFLOWS)],
                *[(Scope.QUEUE, queue) for queue in ("default", "other")],
                (Scope.NAMESPACE, ""),
            )
        )
        changes.append((random.uniform(0.0, seconds * 0.9), (scope, name), _draw_change(random, scope, name)))
    return changes


def _draw_change(random: Random, scope: Scope, name: str) -> Ask:
    keyed = scope is Scope.WORKFLOW
    kinds = ["pause", "resume", "resume"]
    if scope is not Scope.NAMESPACE:
        kinds += ["set", "set", "set", "clear"]
    match random.choice(kinds):
        case "pause":
            return lambda engine: engine.limits.pause(NAMESPACE, scope, name, by="ops")
        case "resume":
            return lambda engine: engine.limits.resume(NAMESPACE, scope, name)
        case "clear":
            return lambda engine: engine.limits.clear(NAMESPACE, scope, name)
    rate = RateLimit(random.choice((1, 3, 5)), random.choice((1, 2)) * SECOND, random.choice((1, 2)))
    most = random.choice((1, 2, 3))
    choices: list[dict[str, Any]] = [{"concurrency": most}, {"concurrency": most}, {"rate": rate}]
    if keyed:
        choices += [{"key_concurrency": most}, {"key_rate": rate}]
    said = random.choice(choices)
    return lambda engine: partial(engine.limits.set, NAMESPACE, scope, name, **said)()

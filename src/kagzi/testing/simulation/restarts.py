"""Runs that change: begun anew in place, moved to another version, restarted, repeated and forked.

Such a world has workflows of its own for it, and one client more, which places their orders and then starts, repeats
and forks what has ended or still goes on. What became of that is judged here (`judge_changed`).
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind
from kagzi.engine.local import LocalEngine
from kagzi.errors import Conflict, KagziError, NotFound
from kagzi.sdk.handle import Handle
from kagzi.sdk.patches import patched
from kagzi.testing.simulation.families import Drawer
from kagzi.testing.simulation.programs import Node, Wrong, judge
from kagzi.testing.simulation.signals import Telling
from kagzi.testing.simulation.steps import App, Broken, position, step
from kagzi.testing.simulation.workload import Interpreter

if TYPE_CHECKING:
    from kagzi.testing.simulation.node import Node as SimulatedNode
    from kagzi.testing.simulation.orders import Order

NAMESPACE = "default"
_FIRST_NUMBER = 900_001  # of nodes of runs that change: far from those of other nodes
_FIRST_PARENT = 970_001  # of nodes that these have for their children
_FIRST_ORDER = 201
# Children that a run may have which is repeated and forked while they live: those that have an id would meet that of
# the run before, and those that wait to be told something are not told it again.
_CHILDREN = ("child", "child", "fan", "leave", "brief", "fail", "hurry")
_ROUNDS = 5  # of the workflow that is moved to another version

app = App("memory://", namespace=NAMESPACE)


def has_restarts(seed: int) -> bool:
    """A world of eight: the others are as they were."""
    return seed % 17 in (9, 16)


def reconsiders(seed: int) -> bool:
    """Some of these worlds: in them runs are repeated more often, also twice, and have signals that nobody takes."""
    return has_restarts(seed) and seed % 5 == 0


def has_parents(seed: int) -> bool:
    """A few others of these worlds: in them the runs that are repeated and forked have children."""
    return seed % 85 == 67


@app.workflow
async def again(node: Any, fails: bool) -> Any:
    """Executes a program, and then fails or not."""
    interpreter = Interpreter()
    answer = await interpreter.run(node)
    if fails:
        raise Broken(f"on purpose, {interpreter.checksum()}")
    return [answer, interpreter.checksum()]


@app.workflow
async def eternal(node: Any, left: int, taken: list[Any]) -> Any:
    """Executes a program, begins anew so often, and returns what it has seen in each of its lives."""
    interpreter = Interpreter()
    taken = [*taken, await interpreter.run(node)]
    if left:
        eternal.continue_as_new(node, left - 1, taken)
    return [taken, interpreter.checksum()]


async def _round(number: int, new: bool) -> bool:
    await step(number + (100 if new else 0), 0, position())
    return new


@app.workflow(name="moving", version="1")
async def moving_before(number: int) -> Any:
    """Goes round and round as the old code does."""
    interpreter = Interpreter()
    rounds = []
    for turn in range(_ROUNDS):
        await interpreter.run(["sleep", number + 10 + turn, 1500])
        rounds.append(await _round(number + turn, new=False))
    return [rounds, interpreter.checksum()]


@app.workflow(name="moving", version="2")
async def moving_after(number: int) -> Any:
    """Goes on where the old code was, and turns to the new way with its next round."""
    interpreter = Interpreter()
    rounds = []
    for turn in range(_ROUNDS):
        new = patched("new way")
        await interpreter.run(["sleep", number + 10 + turn, 1500])
        rounds.append(await _round(number + turn, new))
    return [rounds, interpreter.checksum()]


CHANGING = frozenset(name for name, _ in app._workflows)


def draw_changed(seed: int, random: Random, seconds: float) -> list[Order]:
    """Orders of runs that will change."""
    if not has_restarts(seed):
        return []
    from kagzi.testing.simulation.orders import Order

    orders = []
    often = (3, 4, 5) if has_parents(seed) else (2, 3, 4) if reconsiders(seed) else (0, 1, 2, 3)
    for place in range(random.choice((4, 6, 8))):
        number, order_number = _FIRST_NUMBER + 40 * place, _FIRST_ORDER + place
        kind = random.choice(("again", "again", "again", "eternal", "moving"))
        kind = "again" if has_parents(seed) else kind
        expected, tellings = RunStatus.COMPLETED, []
        program: Node = _draw_program(random, number)
        args: tuple[Any, ...] = (program, False)
        fails = kind == "again" and random.random() < 0.5
        if kind == "again" and reconsiders(seed):
            name = f"order {order_number}"
            program[2].insert(random.randrange(len(program[2]) + 1), ["told", number + 30, name, 1])
            tellings = [
                Telling(key=f"{name}-{each}", name=name, after=(random.choice((0.0, 0.3, 1.0)),), by_id=False)
                for each in range(random.choice((1, 2, 3)))
            ]
        if kind == "again" and has_parents(seed):
            drawer = Drawer(random, _FIRST_PARENT + 200 * place, f"order {order_number}", named=False, kinds=_CHILDREN)
            for _ in range(random.choice((1, 2))):
                part = drawer.part(depth=1)
                if part[0] == "hurry":
                    part[2][2] = 1500  # nor is a child told to end once more: it ends by itself then
                program[2].insert(random.randrange(len(program[2]) + 1), part)
        if fails:
            args, expected = (program, True), RunStatus.FAILED
        elif kind == "eternal":
            left, name = random.choice((1, 2, 4)), f"order {order_number}"
            program = ["seq", number, [["told", number + 30, name, 1], *program[2]]]
            args = (program, left, [])
            tellings = [
                Telling(key=f"{name}-{each}", name=name, after=(random.choice((0.0, 0.3, 2.0)),), by_id=False)
                for each in range(left + 1)
            ]
        elif kind == "moving":
            args = (number,)
        orders.append(
            Order(
                number=order_number,
                at=random.uniform(0.0, seconds * 0.5),
                workflow=kind,
                program=program,
                args=args,
                expected=expected,
                id=f"changing-{place}",
                tellings=tellings,
                changes=random.choice(often) if kind == "again" else 0,
                limit_key=random.choice((None, "a")),
            )
        )
    return orders


def _draw_program(random: Random, number: int) -> Node:
    parts: list[Node] = [["step", number + 1, random.choice((0, 150, 600))], ["chance", number + 2]]
    for each in range(random.choice((1, 2, 3))):
        parts.append(["sleep", number + 3 + 3 * each, random.choice((50, 400, 1500))])
        parts.append(["step", number + 4 + 3 * each, random.choice((0, 0, 150))])
        parts.append(["chance", number + 5 + 3 * each])
    return ["seq", number, parts]


class Changer:
    """Somebody who has started a run and wants it otherwise."""

    def __init__(self, node: SimulatedNode, random: Random) -> None:
        self._node = node
        self._random = random

    async def change(self, order: Order, workflow: Any, handle: Handle[Any]) -> None:
        """Repeats, restarts and forks the run of an order, one after the other. What fails may have happened."""
        for _ in range(order.changes):
            await asyncio.sleep(self._random.choice((0.1, 1.0, 3.0, 6.0)))
            try:
                handle = await self._once(order, workflow, handle)
            except Conflict:
                pass  # it has not ended, or its id has gone to another run, which has ended badly
            except NotFound:
                pass  # the step has not ended
            except KagziError as error:
                self._node.world.log(self._node.process.name, "does not know what became of it", repr(error))

    async def _once(self, order: Order, workflow: Any, handle: Handle[Any]) -> Handle[Any]:
        world, random = self._node.world, self._random
        kind = random.choice(("retry", "retry", "rerun", "fork", "fork", "finished", "failed"))
        if kind == "fork":
            events = world.checker.runs[handle.id].events.values()
            kinds = (StepKind.FUNCTION, StepKind.CHILD_WORKFLOW) if has_parents(world.seed) else (StepKind.FUNCTION,)
            steps = [event.step_id for event in events if event.kind in kinds]
            await handle.fork(random.choice(steps) if steps else None)
            world.log(self._node.process.name, "forked", handle.id)
            return handle
        if kind in ("retry", "rerun"):
            repeat = handle.retry if kind == "retry" else handle.rerun
            repeated = await repeat(keep_id=random.random() < 0.7)
            if reconsiders(world.seed) and world.checker.runs[handle.id].superseded_by == repeated.id:
                await self._repeat_once_more(handle, repeated)
            return repeated
        restarted: Handle[Any] = await workflow.options(on_conflict=f"restart_{kind}").start(*order.args)
        return restarted

    async def _repeat_once_more(self, handle: Handle[Any], successor: Handle[Any]) -> None:
        """Repeats a run that has given its id up: that gives the run that has it, unless that has ended badly."""
        world, random = self._node.world, self._random
        await asyncio.sleep(random.choice((0.0, 0.3, 3.0)))
        try:
            await random.choice((handle.retry, handle.rerun))()
        except Conflict as error:
            status = world.checker.runs[successor.id].status
            if not status.finished or status is RunStatus.COMPLETED:
                raise world.violation(f"run {successor.id} is {status}, and repeating {handle.id} is {error}") from None


def judge_changed(order: Order, answer: Any, moved: int | None) -> None:
    """Raises Wrong unless a run of this order can have answered this; it was moved after so many events."""
    if order.workflow == "again":
        judge(order.program, answer[0])
    elif order.workflow == "eternal":
        lives = answer[0]
        if len(lives) != order.args[1] + 1:
            raise Wrong(f"{order.program} was lived {len(lives)} times")
        for life in lives:
            judge(order.program, life)
        heard = [life[0][2][0] for life in lives]
        if len(set(heard)) != len(heard):
            raise Wrong(f"heard {heard} in its lives")
    elif answer[0] != sorted(answer[0]) or len(answer[0]) != _ROUNDS:
        raise Wrong(f"went back to the old way: {answer[0]}")
    # Two events a round. What it was in when it was moved it ends in the old way, and perhaps the round after that.
    elif moved is not None and moved <= 2 * (_ROUNDS - 2) and not answer[0][-1]:
        raise Wrong(f"was moved after {moved} events, and never turned to the new way: {answer[0]}")


async def move(engine: LocalEngine) -> Any:
    """Somebody has all runs that wait or sleep go on in the new code."""
    return await engine.versions.move(NAMESPACE, "moving", "1", "2", force=True)

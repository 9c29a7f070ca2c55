"""Runs that come in numbers: debounced starts, of which many become one run, and jobs over many runs.

They are in worlds of their own (`World(seed, bulk=True)`), all of whose chance comes from streams of their own: the
other worlds are as they were. Jobs are over the workflows of this file only, and what may become of their runs is
judged here (`judge_bulk`): most of them may be ended, woken, repeated and deleted by jobs at any time.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kagzi.api.jobs import StartJob
from kagzi.api.workflows import RunFilter
from kagzi.core.job import JobAction, JobOptions
from kagzi.core.run import RunStatus
from kagzi.engine.local import LocalEngine
from kagzi.errors import WorkflowCancelled, WorkflowFailed
from kagzi.sdk import context
from kagzi.sdk.debounce import Debounce
from kagzi.testing.simulation.programs import Node, Wrong, judge
from kagzi.testing.simulation.steps import App, Broken, position, step
from kagzi.testing.simulation.workload import Interpreter

if TYPE_CHECKING:
    from kagzi.testing.simulation.operators import Ask
    from kagzi.testing.simulation.orders import Order

NAMESPACE = "default"
KEYS = ("a", "b", "c")
PLAIN_ORDERS = 4  # of other workflows, that a world with jobs has at most
_FIRST_NUMBER = 950_001  # of nodes of these runs: far from those of other nodes
_FIRST_ORDER = 301
_LARGE = 3000  # bytes of an input that is kept apart from its run

app = App("memory://", namespace=NAMESPACE)


@app.workflow(name="item", version="1")
async def item(node: Any, naps: list[int], children: list[Any], fails: bool) -> Any:
    """Executes a program, has children, sleeps, and then fails or not."""
    return await _item(node, naps, children, fails)


@app.workflow(name="item", version="2")
async def later_item(node: Any, naps: list[int], children: list[Any], fails: bool) -> Any:
    """Does the same: what jobs have moved or forked into it goes on as before."""
    return await _item(node, naps, children, fails)


async def _item(node: Any, naps: list[int], children: list[Any], fails: bool) -> Any:
    interpreter = Interpreter()
    answer = await interpreter.run(node)
    number, seen = node[1], []
    for place, (program, policy) in enumerate(children):
        if policy is None:
            seen.append(await _outcome(part.run(program)))
        else:
            await part.options(on_parent_end=policy).spawn(program)
            seen.append("left")
        await step(number + 50 + place, 0, position())
    for place, length in enumerate(naps):  # a job may wake it: how long that took is not judged
        await context.sleep(f"nap {place}", length / 1000)
        seen.append((await step(number + 70 + place, 0, position()))[0])
    if fails:
        raise Broken(f"on purpose, {interpreter.checksum()}")
    return [answer, seen, interpreter.checksum()]


@app.workflow
async def part(node: Any) -> Any:
    """Executes a program, as a child."""
    interpreter = Interpreter()
    answer = await interpreter.run(node)
    await context.sleep("nap", 0.4)
    return [answer, await step(node[1] + 5, 0, position()), interpreter.checksum()]


@app.workflow
async def gathered(number: int, padding: str) -> Any:
    """Is started many times, and begins once."""
    await step(number, 0, position())
    return [number, len(padding)]


BULK = frozenset(name for name, _ in app._workflows)
_CHOSEN = ("item", "item", "item", "part", "gathered")
_REPEATED = ("item", "part", "part", "gathered")
_WORKFLOWS = {
    JobAction.RETRY: _REPEATED,
    JobAction.RERUN: _REPEATED,
    JobAction.FORK: ("item", "item", "item", "part"),
    JobAction.MOVE: ("item",),
}
_ANY: tuple[RunStatus | None, ...] = (None,)
_BADLY = (None, RunStatus.FAILED, RunStatus.FAILED, RunStatus.CANCELLED)
# By name or id: some runs have none, some have several of the name, and of some it has not ended.
_STEPS = (None, "nap 0", "nap 0", "@nap 1", "step", "step#2", "step#3")
_STATUSES: dict[JobAction, tuple[RunStatus | None, ...]] = {
    JobAction.RETRY: _BADLY,
    JobAction.RERUN: _BADLY,
    JobAction.FORK: (*_BADLY, RunStatus.COMPLETED),
    JobAction.DELETE: (None, RunStatus.COMPLETED, RunStatus.FAILED),
    JobAction.WAKE: (None, RunStatus.SLEEPING),
}


async def _outcome(result: Any) -> Any:
    try:
        await result
    except (WorkflowFailed, WorkflowCancelled):
        return "lost"
    return "done"


def judge_bulk(workflow_type: str, args: tuple[Any, ...], answer: Any) -> None:
    """Raises Wrong unless a run that was started so can have answered this."""
    if workflow_type == "gathered":
        if answer != [args[0], len(args[1])]:
            raise Wrong(f"was started with {args[0]}, and answers {answer}")
        return
    judge(args[0], answer[0])
    if workflow_type == "item":
        node, naps, children, _ = args
        right = [("left",) if policy is not None else ("done", "lost") for _, policy in children]
        right += [(node[1] + 70 + place,) for place in range(len(naps))]
        if len(right) != len(answer[1]) or any(seen not in may for seen, may in zip(answer[1], right, strict=True)):
            raise Wrong(f"{args} answers {answer[1]}")


def draw_bulk(random: Random, seconds: float) -> list[Order]:
    """Runs for jobs, and bursts of debounced starts."""
    orders = [_draw_item(random, place, seconds) for place in range(random.choice((8, 12, 18)))]
    waits = {
        key: Debounce(f"{(wait := random.choice((300, 1000, 2500)))}ms", most=_most(random, wait), key=key)
        for key in KEYS
    }
    queues = {key: random.choice(("default", "default", "other")) for key in KEYS}
    for _ in range(random.choice((2, 3, 4))):
        at, key = random.uniform(0.2, seconds * 0.8), random.choice(KEYS)
        for _ in range(random.choice((2, 4, 8))):
            at += random.choice((0.0, 0.05, 0.2, 0.8, 2.0))
            orders.append(_draw_gathered(len(orders), at, waits[key], queues[key], random.random() < 0.2))
    return orders


def _most(random: Random, wait: int) -> str | None:
    return random.choice((None, f"{wait}ms", f"{2 * wait}ms", f"{5 * wait}ms"))


def _draw_item(random: Random, place: int, seconds: float) -> Order:
    from kagzi.testing.simulation.orders import Order

    number = _FIRST_NUMBER + 100 * place
    parts: list[Node] = [["step", number + 1, random.choice((0, 0, 150, 600))], ["chance", number + 2]]
    node: Node = ["seq", number, parts]
    children = []
    for each in range(random.choice((0, 1, 1, 2))):
        child = ["step", number + 10 + 10 * each, random.choice((0, 150, 900))]
        children.append([child, random.choice((None, None, "cancel", "terminate", "abandon"))])
    naps = [random.choice((50, 900, 4000, 15_000)) for _ in range(random.choice((0, 1, 2)))]
    fails = random.random() < 0.5
    return Order(
        number=_FIRST_ORDER + place,
        at=random.choice((0.0, 0.1, 0.4)) * seconds + random.uniform(0.0, 1.5),
        workflow="item",
        program=node,
        args=(node, naps, children, fails),
        expected=RunStatus.FAILED if fails else RunStatus.COMPLETED,
        delay=random.choice((None, None, None, 3.0, 12.0)),
        priority=random.choice((0, 0, 5)),
        queue=random.choice(("default", "default", "other")),
    )


def _draw_gathered(place: int, at: float, debounce: Debounce, queue: str, large: bool) -> Order:
    from kagzi.testing.simulation.orders import Order

    number = _FIRST_NUMBER + 100 * place
    return Order(
        number=_FIRST_ORDER + place,
        at=at,
        workflow="gathered",
        program=["step", number, 0],
        args=(number, "x" * _LARGE if large else ""),
        expected=RunStatus.COMPLETED,
        queue=queue,
        debounce=debounce,
    )


def draw_jobs(random: Random, seconds: float) -> list[tuple[float, Ask, bool]]:
    """What people ask of many runs at once, when, and whether they ask until they hear an answer."""
    asked: list[tuple[float, Ask, bool]] = []
    for _ in range(random.choice((2, 4, 6))):
        at = random.uniform(0.15, 0.95) * seconds
        start = _draw_job(random)
        asked.append((at, _starting(start), True))
        if random.random() < 0.2:
            asked.append((at + random.choice((0.3, 1.5, 4.0)), _cancelling(start.job_id), False))
    return asked


def _draw_job(random: Random) -> StartJob:
    action = random.choice((*JobAction, JobAction.RETRY, JobAction.RERUN, JobAction.FORK, JobAction.FORK))
    workflow = random.choice(_WORKFLOWS.get(action, _CHOSEN))
    # Nearly all parts end well.
    statuses = _ANY if workflow == "part" else _STATUSES.get(action, _ANY)
    return StartJob(
        namespace=NAMESPACE,
        job_id=_uuid7(random),
        action=action,
        filter=RunFilter(
            namespace=NAMESPACE,
            workflow_type=workflow,
            status=random.choice(statuses),
        ),
        rate=random.choice((1, 2, 3, 5, None)),
        children=random.random() < 0.4,
        options=_draw_options(random, action, workflow),
        created_by="ops",
    )


def _draw_options(random: Random, action: JobAction, workflow: str) -> JobOptions:
    if action is JobAction.MOVE:
        there, here = random.choice((("1", "2"), ("1", "2"), ("2", "1")))
        return JobOptions(from_version=there, version=here)
    if action is not JobAction.FORK:
        return JobOptions()
    version = "2" if workflow == "item" and random.random() < 0.5 else None
    return JobOptions(from_step=random.choice(_STEPS), version=version)


def _starting(start: StartJob) -> Ask:
    async def ask(engine: LocalEngine) -> Any:
        return await engine.jobs.start(start)

    return ask


def _cancelling(job_id: str) -> Ask:
    async def ask(engine: LocalEngine) -> Any:
        return await engine.jobs.cancel(NAMESPACE, job_id)

    return ask


def _uuid7(random: Random) -> str:
    return str(UUID(int=random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | (7 << 76) | (2 << 62)))

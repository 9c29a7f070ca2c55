"""The workflows of the simulated application, which execute the programs of `programs`.

They note everything they see in a trace, in the order in which they see it, and return a checksum of that: a replay
that sees anything else gives another result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

import msgspec

from kagzi.core.failed_run import FailedRun
from kagzi.core.instant import SECOND, from_datetime
from kagzi.core.retry import Retry
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, StepTimeout, WorkflowCancelled, WorkflowFailed, WorkflowTimedOut
from kagzi.sdk import context as kagzi
from kagzi.sdk.groups import race
from kagzi.sdk.signals import signals, wait_signal
from kagzi.sdk.values import set_value
from kagzi.testing.simulation.process import ProcessLoop
from kagzi.testing.simulation.programs import FAMILY_KINDS, Node
from kagzi.testing.simulation.steps import (
    RUN_ATTEMPTS,
    Broken,
    app,
    broken,
    flaky,
    gatekeeper,
    patient,
    poison,
    position,
    spoil,
    step,
    stuck,
)

__all__ = ["Interpreter", "app", "program"]


@app.workflow
async def program(node: Any) -> Any:
    """Executes a program."""
    interpreter = Interpreter()
    value = await interpreter.run(node)
    return [value, interpreter.checksum()]


@app.workflow
async def failing(node: Any) -> Any:
    """Executes a program and then fails."""
    interpreter = Interpreter()
    await interpreter.run(node)
    raise Broken(f"on purpose, {interpreter.checksum()}")


@app.workflow(retry=Retry(attempts=RUN_ATTEMPTS, first="300ms", factor=2))
async def stubborn(node: Any, refusals: int) -> Any:
    """Executes a program and is tried again as a whole until the gatekeeper is content."""
    interpreter = Interpreter()
    value = await interpreter.run(node)
    await gatekeeper(refusals, position())
    await interpreter.run(["step", 0, 0])
    return [value, interpreter.checksum()]


@app.workflow
async def handler(failed: FailedRun) -> list[str]:
    """Is told of runs that have failed, and fails for some of them, too: nobody is told of that."""
    await kagzi.sleep(0.05)
    if failed.parent_run_id is not None:
        with suppress(WorkflowFailed):
            await failing.run(["step", 0, 0])  # it handles the same failure, so nobody is told of its own
    if failed.crashes % 2 and failed.status is RunStatus.FAILED:
        raise Broken("on purpose, in the handler")
    return [failed.run_id, failed.status.value]


@app.workflow
async def tick(length: int) -> Any:
    """Is started by the clock, and fails now and then."""
    interpreter = Interpreter()
    due = kagzi.scheduled_for()
    if length:
        await interpreter.run(["sleep", 1, length])
    await interpreter.run(["step", 2, 0])
    seconds = 0 if due is None else from_datetime(due) // SECOND
    if seconds % 11 == 0:
        raise Broken("on purpose, by the clock")
    return [seconds, interpreter.checksum()]


@app.workflow
async def watchman(failed: FailedRun) -> list[str]:
    """Is told of all failures, and fails for some of them."""
    if failed.attempts % 2:
        raise Broken("on purpose, in the handler of the namespace")
    return [failed.run_id, failed.status.value]


def _begin_wait(node: Node) -> Callable[[int], None]:
    """The workflow begins to wait here; it calls what is returned with how many milliseconds that should have taken."""
    execution = asyncio.get_running_loop().execution  # type: ignore[attr-defined]
    loop = getattr(execution._effects, "loop", None)
    if not isinstance(loop, ProcessLoop):
        return lambda _: None  # the history is replayed when all is over
    over: Callable[[int], None] = loop.process.world.ledger.begin_wait(loop.process, execution.run_id, node[0], node[1])
    return over


@contextmanager
def _waiting_for(*awaited: str) -> Iterator[None]:
    """The workflow waits for these within: told apart from what the product knows of that."""
    execution = asyncio.get_running_loop().execution  # type: ignore[attr-defined]
    loop = getattr(execution._effects, "loop", None)
    if not isinstance(loop, ProcessLoop):
        yield
        return
    waits = loop.process.world.ledger.waits_of(execution)
    waits.update(awaited)
    try:
        yield
    finally:
        if not execution.loop.evicting:  # the run is let go of, and waits on
            waits.subtract(awaited)


def _end_heeding(node: Node, due: int, heard: str | None) -> None:
    """The wait for a signal is over that was to end at this time at the latest."""
    execution = asyncio.get_running_loop().execution  # type: ignore[attr-defined]
    loop = getattr(execution._effects, "loop", None)
    if isinstance(loop, ProcessLoop):
        loop.process.world.ledger.end_heeding(loop.process, execution.run_id, node[2], due, heard)


class Interpreter:
    def __init__(self) -> None:
        self._trace: list[Any] = []

    def checksum(self) -> int:
        return crc32(msgspec.json.encode(self._trace))

    async def run(self, node: Node) -> Any:
        answer = await _MEANINGS[node[0]](self, node)
        self._trace.append([node[1], answer])
        return answer

    async def step(self, node: Node) -> Any:
        return _seen(await step(node[1], node[2], position()))

    async def flaky(self, node: Node) -> Any:
        return _seen(await flaky(node[1], node[2], node[3], position()))

    async def patient(self, node: Node) -> Any:
        return _seen(await patient(node[1], node[2], position()))

    async def broken(self, node: Node) -> Any:
        policy = Retry(attempts=node[2], first="20ms")
        try:
            await broken.options(retry=policy)(node[1], node[2], position())
        except Broken as error:
            return ["error", type(error).__name__, str(error), hasattr(error, "scar")]

    async def stuck(self, node: Node) -> Any:
        try:
            await stuck(node[1], position())
        except StepTimeout as error:
            return ["error", type(error).__name__, node[1]]

    async def sleep(self, node: Node) -> Any:
        before = from_datetime(kagzi.now())
        wait = _begin_wait(node)
        if node[1] % 2:
            await asyncio.sleep(node[2] / 1000)
        else:
            await kagzi.sleep(f"nap {node[1]}", node[2] / 1000)
        wait(node[2])
        after = from_datetime(kagzi.now())
        self._trace.append([before, after])
        return ["slept", node[1], after - before >= node[2] * (SECOND // 1000)]

    async def chance(self, node: Node) -> Any:
        self._trace.append([kagzi.uuid4().hex, kagzi.random().random(), from_datetime(kagzi.now())])
        return ["chance", node[1]]

    async def spoil(self, node: Node) -> Any:
        items = [node[1]]
        await spoil(items, position())
        return ["mine", items]

    async def poison(self, node: Node) -> Any:
        return _seen(await poison(node[1], node[2], position()))

    async def seq(self, node: Node) -> Any:
        return [await self.run(inner) for inner in node[2]]

    async def gather(self, node: Node) -> Any:
        return list(await asyncio.gather(*(self.run(inner) for inner in node[2])))

    async def completed(self, node: Node) -> Any:
        async def placed(place: int, inner: Node) -> tuple[int, Any]:
            return place, await self.run(inner)

        answers: dict[int, Any] = {}
        tasks = [asyncio.create_task(placed(place, inner)) for place, inner in enumerate(node[2])]
        for future in asyncio.as_completed(tasks):
            place, answer = await future
            answers[place] = answer
        return [answers[place] for place in sorted(answers)]

    async def queue(self, node: Node) -> Any:
        queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(1)

        async def produce(place: int, inner: Node) -> None:
            await queue.put((place, await self.run(inner)))

        producers = [asyncio.create_task(produce(place, inner)) for place, inner in enumerate(node[2])]
        answers = dict([await queue.get() for _ in producers])
        await asyncio.gather(*producers)
        return [answers[place] for place in sorted(answers)]

    async def group(self, node: Node) -> Any:
        async def fail() -> None:
            await broken.options(retry=Retry.none)(node[1], 1, position())

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.run(inner)) for inner in node[2]]
                if node[3]:
                    group.create_task(fail())
        except* Broken as errors:
            names = sorted(type(error).__name__ for error in errors.exceptions)
            return_value = ["group failed", names]
        else:
            return_value = [task.result() for task in tasks]
        return return_value

    async def timeout(self, node: Node) -> Any:
        wait = _begin_wait(node)
        try:
            async with asyncio.timeout(node[2] / 1000):
                return ["in time", await self.run(node[3])]
        except TimeoutError:
            wait(node[2])
            return ["late", node[1]]

    async def race(self, node: Node) -> Any:
        async def compete(place: int, inner: Node) -> Any:
            try:
                return await self.run(inner)
            except asyncio.CancelledError:
                if node[3]:
                    # A refund, which must not run beside the charge that is still going on.
                    await step(1000 * node[1] + place, 0, position())
                raise

        tasks = [asyncio.create_task(compete(place, inner)) for place, inner in enumerate(node[2])]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:  # in the order of the set, which must be the same on every replay
            task.cancel()
            self._trace.append(tasks.index(task))
            await step(2000 * node[1] + tasks.index(task), 0, position())
        await asyncio.gather(*pending, return_exceptions=True)
        return ["won", [[place, task.result()] for place, task in enumerate(tasks) if task in done]]

    async def told(self, node: Node) -> Any:
        with _waiting_for(f"s:{node[2]}"):
            return ["told", node[1], [await wait_signal(node[2], str) for _ in range(node[3])]]

    async def heed(self, node: Node) -> Any:
        loop: Any = asyncio.get_running_loop()
        wait, due = _begin_wait(node), loop.now + loop.late + node[3] * (SECOND // 1000)
        with _waiting_for(f"s:{node[2]}"):
            heard = await wait_signal(node[2], str, timeout=node[3] / 1000, default=None)
        if heard is None:
            wait(node[3])
        _end_heeding(node, due, heard)
        return ["heed", node[1], [] if heard is None else [heard]]

    async def either(self, node: Node) -> Any:
        with _waiting_for(*[f"s:{name}" for name in node[2]]):
            return ["either", node[1], [await race(*[wait_signal(name, str) for name in node[2]])]]

    async def stream(self, node: Node) -> Any:
        with _waiting_for(f"s:{node[2]}"):
            return ["stream", node[1], [value async for value in signals(node[2], str, timeout=node[3] / 1000)]]

    async def say(self, node: Node) -> Any:
        set_value(node[2], [node[1], len(self._trace)])
        return ["said", node[1]]

    async def child(self, node: Node) -> Any:
        match node[3]:
            case "run":
                return ["child", node[1], await _outcome(program.run(node[2]))]
            case "late":
                child = await program.spawn(node[2])
                await step(node[1], 50, position())
            case _:
                child = await program.options(id=node[4], key=str(node[1])).spawn(node[2])
        with _waiting_for(f"c:{child.id}"):
            return ["child", node[1], await _outcome(child.result())]

    async def fan(self, node: Node) -> Any:
        return ["fan", node[1], list(await asyncio.gather(*(_outcome(program.run(inner)) for inner in node[2])))]

    async def leave(self, node: Node) -> Any:
        await program.options(on_parent_end=node[3]).spawn(node[2])
        return ["leave", node[1], "left"]

    async def hurry(self, node: Node) -> Any:
        child = await program.spawn(node[2])
        await child.cancel()
        try:
            with _waiting_for(f"c:{child.id}"):
                return ["hurry", node[1], await _outcome(child.result())]
        except WorkflowCancelled:
            return ["hurry", node[1], "cancelled"]

    async def brief(self, node: Node) -> Any:
        child = await program.spawn(node[2])
        with _waiting_for(f"c:{child.id}"):
            return ["brief", node[1], await _outcome(child.result(timeout=node[3] / 1000, default=["late"]))]

    async def greet(self, node: Node) -> Any:
        child = await program.spawn(node[2])
        with suppress(Conflict):  # it was found dead too often before that
            await child.signal(node[3], f"{node[3]}-0")
        with _waiting_for(f"c:{child.id}"):
            return ["greet", node[1], await _outcome(child.result())]

    async def clash(self, node: Node) -> Any:
        first = program.options(id=node[2])
        await first.spawn(["sleep", node[1], 2_000_000])
        second = await first.spawn(["sleep", node[1], 0])
        try:
            await second.result()
        except Conflict:
            return ["clash", node[1], "refused"]

    async def fail(self, node: Node) -> Any:
        try:
            await failing.options(on_failure="handler").run(node[2])
        except WorkflowFailed:
            return ["fail", node[1], "failed"]

    async def expire(self, node: Node) -> Any:
        try:
            await program.options(timeout=node[3], on_failure="handler").run(node[2])
        except WorkflowTimedOut:
            return ["expire", node[1], "expired"]
        except WorkflowFailed:
            return ["expire", node[1], "lost"]

    async def saga(self, node: Node) -> Any:
        answer = None
        try:
            answer = await self.run(node[2])
            await broken.options(retry=Retry.none)(node[1], 1, position())
        except Broken:
            return ["undone", answer, _seen(await step(node[1], 0, position()))]
        finally:
            # Runs when the run is let go of in the middle, too, and must do nothing then.
            await spoil([0], position())


_MEANINGS: dict[str, Callable[[Interpreter, Node], Awaitable[Any]]] = {
    name: getattr(Interpreter, name)
    for name in (
        *("step", "flaky", "patient", "broken", "stuck", "sleep", "chance", "spoil", "poison", "seq", "gather"),
        *("completed", "queue", "group", "timeout", "race", "saga", "told", "heed", "either", "stream", "say"),
        *FAMILY_KINDS,
    )
}


async def _outcome(result: Awaitable[Any]) -> Any:
    """What a child has answered, or that it was lost: found dead too often."""
    try:
        answer = await result
    except WorkflowFailed:
        return "lost"
    return answer[0]


def _seen(value: Any) -> Any:
    return [type(value).__name__, *value]

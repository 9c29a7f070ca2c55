"""Random workflow programs.

A program is a tree of tuples, and `run` is its interpreter: an ordinary workflow function that uses asyncio in every
way we promise is durable. It notes all it sees (values, errors, times, the order of its own doings) in a trace.
Programs are made from a source of choices, which is hypothesis (small ones, and they shrink) or a seeded generator
(many).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeAlias

from hypothesis import strategies as st

import kagzi
from kagzi.core.instant import SECOND
from kagzi.core.retry import Retry
from kagzi.sdk import children
from kagzi.sdk.replay.calls import outcome_of
from tests.sdk.replay.host import Body, child, current, step

Choose: TypeAlias = Callable[[int], int]  # a number from 0 up to, not including, the argument
Node: TypeAlias = tuple[Any, ...]

DELAYS = (0.0, 1.0, 1.0, 0.001, 5.0, 60.0)
NAMES = ("charge", "reserve", "notify")


class Declined(Exception):
    """An error that carries something which does not survive being stored."""

    def __init__(self, message: str, extra: object = None) -> None:
        super().__init__(message)
        self.extra = extra


class Returns(Body):
    def __init__(self, failures: int, shape: int, *, hopeless: bool = False) -> None:
        self.failures = failures
        self.shape = shape
        self.hopeless = hopeless

    def run(self, attempt: int, chance: random.Random) -> Any:
        value = chance.randrange(100)
        if self.hopeless or attempt <= self.failures:
            raise Declined(f"declined {value}", object())
        # Tuples and numeric keys come back from JSON as something else.
        return (value, (value, value), {1: value}, [value])[self.shape]


class Cancels:
    """In place of an app, for children that are cancelled with their wait."""

    _codec = None

    async def cancel_child(self, run_id: str) -> bool:
        raise NotImplementedError("the host answers")


CANCELS: Any = Cancels()


# Making programs.


def random_program(seed: int) -> Node:
    chance = random.Random(f"program {seed}")
    choose = chance.randrange
    return make_program(choose, depth=2 + choose(2))


@st.composite
def programs(draw: st.DrawFn, depth: int = 3) -> Node:
    return make_program(lambda count: draw(st.integers(0, count - 1)), depth)


def make_program(choose: Choose, depth: int) -> Node:
    return ("seq", tuple(_statement(choose, depth) for _ in range(1 + choose(3))))


def random_sequence(seed: int) -> Node:
    """A program that does one thing at a time."""
    return make_sequence(random.Random(f"sequence {seed}").randrange, depth=3)


def random_family(seed: int) -> Node:
    """A program that spawns children, beside whatever else it does."""
    chance = random.Random(f"family {seed}")
    choose = chance.randrange
    nodes: list[Node] = [_child(choose) for _ in range(1 + choose(4))]
    if choose(2):
        nodes.insert(choose(len(nodes) + 1), make_program(choose, depth=1 + choose(2)))
    guarded = [node if choose(4) == 1 else ("try", node, ("observe",), None) for node in nodes]
    kind = choose(6)
    if kind == 0:
        return ("timeout", _delay(choose), ("gather", tuple(nodes), True), choose(2) == 1)
    if kind == 1:
        return ("first", tuple(nodes), choose(2) == 1)
    if kind == 2:
        return ("map", tuple(guarded), 1 + choose(3), choose(2) == 1)
    return ("gather", tuple(guarded), True) if kind == 3 else ("seq", tuple(guarded))


def _child(choose: Choose) -> Node:
    mode = ("run", "spawn", "leave", "late", "twice", "timeout")[choose(6)]
    return ("child", NAMES[choose(len(NAMES))], mode, _delay(choose))


def make_sequence(choose: Choose, depth: int) -> Node:
    kind = choose(6) if depth else choose(2)
    if kind == 1:
        return ("sleep", DELAYS[choose(len(DELAYS))], False)
    if kind == 2:
        return ("try", make_sequence(choose, depth - 1), _step(choose), _step(choose) if choose(2) else None)
    if kind == 3:
        return ("branch", _step(choose), make_sequence(choose, depth - 1), ("observe",))
    if kind > 3:
        return ("seq", tuple(make_sequence(choose, depth - 1) for _ in range(1 + choose(3))))
    return _step(choose)


def _statement(choose: Choose, depth: int) -> Node:
    node = _node(choose, depth)
    # Unguarded errors end most programs early, so most are guarded.
    return node if choose(6) == 1 else ("try", node, ("observe",), None)


def _node(choose: Choose, depth: int) -> Node:
    if depth <= 0:
        kind = choose(8)
        return _sleep(choose) if kind == 4 else ("observe",) if kind == 5 else _step(choose)
    make = _MAKERS[choose(len(_MAKERS))]
    return make(choose, depth - 1)


def _step(choose: Choose, _depth: int = 0) -> Node:
    kind = choose(8)
    name = NAMES[choose(len(NAMES))]
    shape = choose(4)
    delay = (0, 0.25, 5)[choose(3)]
    if kind == 5:
        failures = 1 + choose(2)
        return ("step", name, Returns(failures, shape), Retry.fixed(f"{delay}s", attempts=failures + 1))
    if kind == 6:
        return ("step", name, Returns(9, shape, hopeless=True), Retry.fixed(f"{delay}s", attempts=1 + choose(2)))
    if kind == 7:
        return ("step", name, Returns(9, shape, hopeless=True), None)
    return ("step", name, Returns(0, shape), None)


def _sleep(choose: Choose, _depth: int = 0) -> Node:
    return ("sleep", DELAYS[choose(len(DELAYS))], choose(4) == 1)


def _nodes(choose: Choose, depth: int) -> tuple[Node, ...]:
    return tuple(_node(choose, depth) for _ in range(1 + choose(3)))


def _delay(choose: Choose) -> float:
    return (0.3, 1.0, 0.0, 5.0, 0.1)[choose(5)]


_MAKERS: tuple[Callable[[Choose, int], Node], ...] = (
    _step,
    _sleep,
    lambda choose, depth: ("seq", _nodes(choose, depth)),
    lambda choose, depth: ("gather", _nodes(choose, depth), choose(2) == 1),
    lambda choose, depth: ("group", _nodes(choose, depth), choose(3) == 1),
    lambda choose, depth: ("timeout", _delay(choose), _node(choose, depth), choose(2) == 1),
    lambda choose, depth: ("race", _nodes(choose, depth), choose(3)),
    lambda choose, depth: ("as_completed", _nodes(choose, depth), choose(2) == 1),
    lambda choose, depth: ("queue", 1 + choose(3), 1 + choose(2), _node(choose, depth)),
    lambda choose, depth: ("event", _node(choose, depth), _node(choose, 0)),
    lambda choose, depth: ("lock", _nodes(choose, depth), 1 + choose(2)),
    lambda choose, depth: ("try", _node(choose, depth), _node(choose, 0), _node(choose, 0) if choose(2) else None),
    lambda choose, depth: ("background", _node(choose, depth)),
    lambda choose, depth: ("generator", _nodes(choose, depth), choose(4), choose(3), _node(choose, 0)),
    lambda choose, depth: ("shield", _node(choose, depth), _delay(choose)),
    lambda choose, depth: ("branch", _step(choose), _node(choose, depth), _node(choose, depth)),
    lambda choose, depth: ("listed", _nodes(choose, depth)),
    lambda choose, depth: ("barrier", _nodes(choose, depth)),
    lambda choose, depth: ("cancel", _node(choose, depth), _delay(choose)),
    lambda choose, depth: ("parallel", _nodes(choose, depth), choose(2) == 1),
    lambda choose, depth: ("map", _nodes(choose, depth), 1 + choose(3), choose(2) == 1),
    lambda choose, depth: ("first", _nodes(choose, depth), choose(2) == 1),
)


# Running them.


async def run(program: Node) -> Any:
    execution = current()
    trace = execution.trace

    def note(*what: Any) -> None:
        loop = asyncio.get_running_loop()
        if not loop.evicting:  # type: ignore[attr-defined]
            trace.append((*what, loop.time()))
            execution.set_value("noted", b"%d" % len(trace))

    note("begin")
    result = await Interpreter(note).run(program)
    note("end", result)
    return repr(result)


class Interpreter:
    def __init__(self, note: Callable[..., None]) -> None:
        self.note = note
        self.background: list[asyncio.Task[Any]] = []

    async def run(self, node: Node) -> Any:
        return await getattr(self, "do_" + node[0])(*node[1:])

    async def do_step(self, name: str, body: Body, retry: Retry | None) -> Any:
        self.note("call", name)
        try:
            value = await step(name, body, retry=retry)
        except BaseException as error:
            self.note("raised", name, repr(error), hasattr(error, "extra"))
            raise
        self.note("returned", name, repr(value))
        return value

    async def do_child(self, name: str, mode: str, delay: float) -> Any:
        self.note("child", name, mode)
        wait = child(name, mode)
        if mode == "run":
            try:
                value = await children._run(current(), CANCELS, wait)
            except BaseException as error:
                self.note("child raised", repr(error))
                raise
            self.note("child returned", wait.start.run_id, repr(value))
            return value
        await children._spawn(current(), CANCELS, wait)
        self.note("spawned", wait.start.run_id)
        if mode == "leave":
            return None
        if mode == "late":
            await asyncio.sleep(delay)
        try:
            if mode == "timeout":
                async with asyncio.timeout(delay):
                    return await outcome_of(current(), wait)
            value = await outcome_of(current(), wait)
            if mode == "twice":
                value = [value, await outcome_of(current(), wait)]
        except TimeoutError:
            self.note("child is late")
            return None
        except BaseException as error:
            self.note("child raised", repr(error))
            raise
        self.note("child returned", wait.start.run_id, repr(value))
        return value

    async def do_sleep(self, delay: float, named: bool) -> None:
        if named:
            loop: Any = asyncio.get_running_loop()
            future = loop.create_future()
            timer = loop.call_at(loop.time() + delay, _release, future, name="nap")
            try:
                await future
            finally:
                timer.cancel()
        else:
            await asyncio.sleep(delay)
        self.note("slept", delay)

    async def do_observe(self) -> float:
        loop: Any = asyncio.get_running_loop()
        self.note("observed", loop.now)
        return float(loop.time() - loop.now / SECOND)

    async def do_seq(self, nodes: tuple[Node, ...]) -> Any:
        return [await self.run(node) for node in nodes]

    async def do_gather(self, nodes: tuple[Node, ...], collect: bool) -> Any:
        values = await asyncio.gather(*map(self.run, nodes), return_exceptions=collect)
        self.note("gathered", repr(values))
        return repr(values)

    async def do_group(self, nodes: tuple[Node, ...], named: bool) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.run(node), name=f"branch {number % 2}" if named else None)
                for number, node in enumerate(nodes)
            ]
            value = await self.run(nodes[0]) if len(nodes) > 2 else None
        self.note("grouped", repr([task.result() for task in tasks]))
        return value

    async def do_timeout(self, delay: float, node: Node, wait_for: bool) -> Any:
        try:
            if wait_for:
                return await asyncio.wait_for(self.run(node), delay)
            async with asyncio.timeout(delay) as scope:
                return await self.run(node)
        except TimeoutError:
            self.note("timed out", None if wait_for else scope.expired())
            return None

    async def do_race(self, nodes: tuple[Node, ...], await_losers: int) -> Any:
        tasks = [asyncio.create_task(self.run(node)) for node in nodes]
        try:
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        # In the order of the sets, which is that of the hashes.
        for task in done:
            self.note("winner", tasks.index(task), _end(task))
        for task in pending:
            self.note("loser", tasks.index(task))
            if await_losers == 1:
                self.note("lost", repr(await asyncio.gather(task, return_exceptions=True)))
        if await_losers == 2 and pending:
            await asyncio.wait(pending)
        return len(done)

    async def do_as_completed(self, nodes: tuple[Node, ...], coroutines: bool) -> Any:
        tasks: list[Any] = [self.run(node) if coroutines else asyncio.create_task(self.run(node)) for node in nodes]
        count = 0
        for next_one in asyncio.as_completed(tasks):
            try:
                self.note("next", repr(await next_one))
            except Exception as error:
                self.note("next failed", repr(error))
            count += 1
        return count

    async def do_queue(self, items: int, consumers: int, node: Node) -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)

        async def consume(number: int) -> None:
            while (item := await queue.get()) >= 0:
                self.note("got", number, item)
                await self.run(node)
                queue.task_done()

        tasks = [asyncio.create_task(consume(number)) for number in range(consumers)]
        try:
            for item in range(items):
                put = asyncio.create_task(queue.put(item))
                await asyncio.wait([put, *tasks], return_when=asyncio.FIRST_COMPLETED)
                if not put.done():
                    put.cancel()
                    break
        finally:
            for task in tasks:
                task.cancel()
        return [_end(task) for task in tasks if task.done()]

    async def do_event(self, node: Node, after: Node) -> Any:
        event = asyncio.Event()

        async def wait() -> Any:
            await event.wait()
            self.note("woken")
            return await self.run(after)

        tasks = [asyncio.create_task(wait()) for _ in range(2)]
        try:
            await self.run(node)
        finally:
            event.set()
        return repr(await asyncio.gather(*tasks, return_exceptions=True))

    async def do_lock(self, nodes: tuple[Node, ...], places: int) -> Any:
        lock: Any = asyncio.Semaphore(places) if places > 1 else asyncio.Lock()

        async def guarded(number: int, node: Node) -> Any:
            async with lock:
                self.note("inside", number)
                return await self.run(node)

        return repr(await asyncio.gather(*[guarded(*pair) for pair in enumerate(nodes)], return_exceptions=True))

    async def do_try(self, node: Node, handler: Node, final: Node | None) -> Any:
        try:
            return await self.run(node)
        except Exception as error:
            self.note("caught", repr(error))
            return await self.run(handler)
        except asyncio.CancelledError:
            self.note("cancelled")
            raise
        finally:
            if final is not None:
                self.note("finally")
                await self.run(final)

    async def do_cancellable(self, node: Node, cleanup: Node, how: str) -> Any:
        try:
            return await self.run(node)
        except asyncio.CancelledError:
            self.note("told")
            value = await self.run(cleanup)
            if how == "swallow":
                return value
            if how == "fail":
                raise LookupError("cannot clean up") from None
            raise

    async def do_background(self, node: Node) -> None:
        self.background.append(asyncio.create_task(self.run(node)))
        self.background[-1].add_done_callback(lambda _: None)  # else it would be told that nobody waits for it

    async def do_generator(self, nodes: tuple[Node, ...], stop_after: int, close: int, final: Node) -> Any:
        async def generate() -> AsyncGenerator[Any, None]:
            try:
                for node in nodes:
                    yield await self.run(node)
            finally:
                self.note("generator ends")
                await self.run(final)

        values = generate()
        seen = 0
        try:
            async for value in values:
                self.note("yielded", repr(value))
                seen += 1
                if seen > stop_after:
                    break
                await asyncio.sleep(0)
        finally:
            if close:
                await values.aclose()
        return seen

    async def do_shield(self, node: Node, delay: float) -> Any:
        task = asyncio.create_task(self.run(node))
        self.background.append(task)
        try:
            async with asyncio.timeout(delay):
                return await asyncio.shield(task)
        except TimeoutError:
            self.note("left alone")
            return None

    async def do_branch(self, condition: Node, then: Node, otherwise: Node) -> Any:
        value = await self.run(condition)
        number = sum(map(ord, repr(value)))
        return await self.run(then if number % 2 else otherwise)

    async def do_listed(self, nodes: tuple[Node, ...]) -> Any:
        """Coroutines that are made now and awaited later: when the run is let go of, some were never started."""
        coroutines = [self.run(node) for node in nodes]
        try:
            return [await coroutine for coroutine in coroutines]
        except (Exception, asyncio.CancelledError):
            for coroutine in coroutines:
                coroutine.close()
            raise

    async def do_barrier(self, nodes: tuple[Node, ...]) -> Any:
        barrier = asyncio.Barrier(len(nodes))

        async def meet(number: int, node: Node) -> None:
            try:
                await self.run(node)
            except Exception as error:
                self.note("late", number, repr(error))
            async with asyncio.timeout(50):  # whoever was cancelled does not come
                self.note("arrived", number, await barrier.wait() >= 0)

        return repr(await asyncio.gather(*[meet(*pair) for pair in enumerate(nodes)], return_exceptions=True))

    async def do_cancel(self, node: Node, delay: float) -> Any:
        task = asyncio.create_task(self.run(node))
        await asyncio.sleep(delay)
        self.note("cancelling", task.cancel())
        await asyncio.wait([task])
        return _end(task)

    async def do_parallel(self, nodes: tuple[Node, ...], collect: bool) -> Any:
        steps = [step("in group", Returns(0, 0)) for _ in nodes]
        values = await kagzi.parallel(
            *steps,
            *[self.run(node) for node in nodes],
            on_error="collect_all" if collect else "fail_fast",
            name="group",
        )
        self.note("in parallel", repr(values))
        return repr(values)

    async def do_map(self, nodes: tuple[Node, ...], limit: int, keyed: bool) -> Any:
        running = 0

        async def branch(pair: tuple[int, Node]) -> Any:
            nonlocal running
            running += 1
            self.note("branches", running)
            assert running <= limit
            try:
                return await self.run(pair[1])
            finally:
                running -= 1

        key = (lambda pair: f"node {pair[0]}") if keyed else None
        values = await kagzi.map(branch, list(enumerate(nodes)), limit=limit, key=key)
        self.note("mapped", repr(values))
        return repr(values)

    async def do_first(self, nodes: tuple[Node, ...], success: bool) -> Any:
        value = await kagzi.race(*[self.run(node) for node in nodes], first="success" if success else "done")
        self.note("first", repr(value))
        return value


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _end(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return repr(task.result() if error is None else error)

"""Ways in which workflow code uses asyncio, each of which must name its steps alike on every Python."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from tests.sdk.replay.host import step
from tests.sdk.replay.workflows import Workflow

SHAPES: dict[str, Workflow] = {}


def shape(workflow: Workflow) -> Workflow:
    SHAPES[workflow.__name__] = workflow
    return workflow


def same(what: Any) -> Any:
    return what


async def charge(what: Any) -> Any:
    return await step("charge", same, what)


async def pay(what: Any) -> Any:
    """Two steps with a pause between them, so that a run can move in the middle."""
    first = await charge(what)
    await asyncio.sleep(1)
    return [first, await step("deposit", same, f"deposited {what}")]


async def fail(what: Any) -> None:
    await charge(what)
    raise LookupError(what)


async def late() -> str:
    try:
        await charge("late")
        await asyncio.sleep(3600)
    finally:
        await step("refund", same, "refunded")
    return "never"


# asyncio.wait_for.


@shape
async def wait_for_a_coroutine() -> Any:
    return [await asyncio.wait_for(pay(1), 60), await pay(2)]


@shape
async def wait_for_a_step() -> Any:
    return [await asyncio.wait_for(charge(1), 60), await asyncio.wait_for(step("charge", same, 2), 60)]


@shape
async def wait_for_a_task() -> Any:
    return [await asyncio.wait_for(asyncio.create_task(pay(1)), 60), await pay(2)]


@shape
async def wait_for_ever() -> Any:
    return [await asyncio.wait_for(pay(1), None), await pay(2)]


@shape
async def wait_for_nothing() -> Any:
    for seconds in (0, -1):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(pay(1), seconds)
    return await pay(2)


@shape
async def wait_for_too_long() -> Any:
    try:
        await asyncio.wait_for(late(), 5)
    except TimeoutError:
        return await pay("after")


@shape
async def wait_for_within_wait_for() -> Any:
    async def inner() -> Any:
        return [await charge(0), await asyncio.wait_for(pay(1), 30), await charge(2)]

    return [await asyncio.wait_for(inner(), 60), await charge(3)]


@shape
async def wait_for_in_gather() -> Any:
    return await asyncio.gather(*(asyncio.wait_for(pay(number), 60) for number in range(3)), pay(3))


@shape
async def wait_for_gather() -> Any:
    return [await asyncio.wait_for(asyncio.gather(pay(1), pay(2)), 60), await pay(3)]


@shape
async def wait_for_what_fails() -> Any:
    try:
        await asyncio.wait_for(fail(1), 60)
    except LookupError as error:
        return [str(error), await pay(2)]


@shape
async def wait_for_beside_a_lock() -> Any:
    lock, order = asyncio.Lock(), []

    async def guarded(number: int) -> Any:
        order.append(number)
        async with lock:
            return [len(order), await charge(len(order)), await pay(number)]

    return await asyncio.gather(asyncio.wait_for(guarded(1), 60), guarded(2), asyncio.wait_for(guarded(3), 60))


@shape
async def wait_for_items_of_a_queue() -> Any:
    queue: asyncio.Queue[int] = asyncio.Queue()
    for number in range(5):
        queue.put_nowait(number)

    async def patient() -> list[Any]:
        done = []
        with contextlib.suppress(TimeoutError):
            while True:
                done.append(await pay(await asyncio.wait_for(queue.get(), 10)))
        return done

    async def impatient() -> list[Any]:
        return [await pay(await queue.get()) for _ in range(2)]

    return await asyncio.gather(patient(), impatient())


@shape
async def wait_for_told_to_end() -> Any:
    async def part() -> Any:
        return [await asyncio.wait_for(late(), 600), "not told"]

    task = asyncio.create_task(part())
    await charge("before")
    task.cancel()
    return [repr(await asyncio.gather(task, return_exceptions=True)), await charge("after")]


# Tasks.


@shape
async def tasks() -> Any:
    first, second = asyncio.create_task(pay(1)), asyncio.ensure_future(pay(2))
    third = asyncio.get_running_loop().create_task(pay(3))
    return [await third, await second, await first]


@shape
async def named_tasks() -> Any:
    tasks = [asyncio.create_task(pay(number), name=f"branch {number % 2}") for number in range(3)]
    tasks[1].set_name("renamed")
    return await asyncio.gather(*tasks)


@shape
async def gathered() -> Any:
    return await asyncio.gather(pay(1), pay(2), step("charge", same, 3))


@shape
async def gathered_twice() -> Any:
    async def both(number: int) -> Any:
        return await asyncio.gather(pay(number), pay(-number))

    return await asyncio.gather(both(1), both(2))


@shape
async def gathered_with_errors() -> Any:
    found = await asyncio.gather(pay(1), fail(2), pay(3), return_exceptions=True)
    return [repr(found), await charge("after")]


@shape
async def gathered_until_one_fails() -> Any:
    try:
        await asyncio.gather(late(), fail(2))
    except LookupError:
        return await pay("after")


@shape
async def group() -> Any:
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(pay(1)), tasks.create_task(pay(2), name="second")
        await charge("beside")
    return [first.result(), second.result()]


@shape
async def group_that_fails() -> Any:
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(late())
            tasks.create_task(fail(1))
            await pay("beside")
    except* LookupError:
        await charge("caught")
    return await charge("after")


@shape
async def shielded() -> Any:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.shield(pay(1))
    return [await pay(2), await asyncio.wait_for(asyncio.shield(charge(3)), 5)]


@shape
async def first_completed() -> Any:
    tasks = [asyncio.create_task(pay(number)) for number in range(3)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return [[task.result() for task in done], await pay("after")]


@shape
async def waited_for_a_while() -> Any:
    done, pending = await asyncio.wait([asyncio.create_task(pay(1)), asyncio.create_task(late())], timeout=5)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return [[task.result() for task in done], await charge("after")]


@shape
async def as_completed() -> Any:
    found = [await one for one in asyncio.as_completed([pay(1), pay(2), charge(3)])]
    return [found, await charge("after")]


@shape
async def as_completed_of_tasks() -> Any:
    tasks = [asyncio.create_task(pay(number)) for number in range(3)]
    return [await one for one in asyncio.as_completed(tasks, timeout=60)]


@shape
async def done_callbacks() -> Any:
    heard: list[Any] = []
    task = asyncio.create_task(pay(1))
    task.add_done_callback(lambda ended: heard.append(ended.result()))
    asyncio.get_running_loop().call_soon(heard.append, "soon")
    asyncio.get_running_loop().call_later(0.2, heard.append, "later")
    return [await task, await pay(2), heard]


# Time.


@shape
async def timeouts() -> Any:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            await late()
    async with asyncio.timeout_at(loop.time() + 60) as deadline:
        first = await pay(1)
        deadline.reschedule(loop.time() + 30)
        return [first, await pay(2)]


@shape
async def sleeps() -> Any:
    loop: Any = asyncio.get_running_loop()
    heard = asyncio.Event()
    loop.call_at(loop.time() + 1.5, heard.set, name="nap")
    await asyncio.gather(asyncio.sleep(2), asyncio.sleep(1), heard.wait())
    await asyncio.sleep(0)
    return await pay(1)


# What tasks share.


@shape
async def lock() -> Any:
    shared = asyncio.Lock()

    async def guarded(number: int) -> Any:
        async with shared:
            return await pay(number)

    return await asyncio.gather(*map(guarded, range(3)))


@shape
async def semaphore_with_a_cancelled_waiter() -> Any:
    shared = asyncio.Semaphore(1)

    async def guarded(number: int) -> Any:
        async with shared:
            return await pay(number)

    tasks = [asyncio.create_task(guarded(number)) for number in range(4)]
    await charge("beside")
    tasks[1].cancel()
    return repr(await asyncio.gather(*tasks, return_exceptions=True))


@shape
async def event() -> Any:
    ready = asyncio.Event()

    async def waiting(number: int) -> Any:
        await ready.wait()
        return await pay(number)

    tasks = [asyncio.create_task(waiting(number)) for number in range(2)]
    await pay("first")
    ready.set()
    return await asyncio.gather(*tasks)


@shape
async def condition() -> Any:
    shared, stock = asyncio.Condition(), []

    async def consume() -> Any:
        async with shared:
            await asyncio.wait_for(shared.wait_for(lambda: stock), 60)
            item = stock.pop()
        return await pay(item)

    tasks = [asyncio.create_task(consume()) for _ in range(2)]
    for number in range(2):
        await charge(number)
        async with shared:
            stock.append(number)
            shared.notify_all()
    return await asyncio.gather(*tasks)


@shape
async def queue() -> Any:
    shared: asyncio.Queue[int] = asyncio.Queue(maxsize=1)

    async def consume(name: str) -> list[Any]:
        return [[name, await pay(await shared.get())] for _ in range(2)]

    tasks = [asyncio.create_task(consume(name)) for name in "ab"]
    for number in range(4):
        await shared.put(number)
    return await asyncio.gather(*tasks)


@shape
async def barrier() -> Any:
    shared = asyncio.Barrier(2)

    async def part(number: int) -> Any:
        before = await charge(number)
        return [before, await shared.wait() >= 0, await pay(number)]

    return await asyncio.gather(part(1), part(2))


# Generators and context managers.


@shape
async def generator() -> Any:
    async def payments() -> AsyncGenerator[Any, None]:
        try:
            for number in range(3):
                yield await asyncio.wait_for(pay(number), 60)
        finally:
            await charge("closed")

    async with contextlib.aclosing(payments()) as found:
        async for payment in found:
            if payment[0] == 1:
                break
    return await charge("after")


@shape
async def context_manager() -> Any:
    @contextlib.asynccontextmanager
    async def account() -> AsyncIterator[Any]:
        opened = await charge("open")
        try:
            yield opened
        finally:
            await asyncio.wait_for(charge("close"), 5)

    async with account() as opened, account() as other:
        return [opened, other, await pay(1)]

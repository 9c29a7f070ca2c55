"""Threads beside a workflow: a step called there is refused, however the thread was made, and nothing else is."""

from __future__ import annotations

import _thread
import asyncio
import inspect
import multiprocessing.pool
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi, Retry, WorkflowFailed

Call = Callable[[int], Any]
Way = Callable[[Call], Any]


def pool_map(call: Call) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(call, range(3)))  # here


def pool_of_pools(call: Call) -> Any:
    with ThreadPoolExecutor(1) as outer, ThreadPoolExecutor(1) as inner:
        return outer.submit(lambda: inner.submit(call, 1).result()).result()  # here


def older_pool(call: Call) -> Any:
    return POOL.submit(call, 1).result()  # here


def thread_pool(call: Call) -> Any:
    with multiprocessing.pool.ThreadPool(1) as pool:  # here
        return pool.map(call, range(3))


def thread(call: Call) -> None:
    made = threading.Thread(target=call, args=(1,))
    made.start()  # here
    made.join()


def own_class(call: Call) -> None:
    class Mine(threading.Thread):
        def run(self) -> None:
            call(1)

    mine = Mine(daemon=True)
    mine.start()  # here
    mine.join()


def timer(call: Call) -> None:
    made = threading.Timer(0.001, call, [1])
    made.start()  # here
    made.join()


def raw_thread(call: Call) -> None:
    over = threading.Event()

    def body() -> None:
        try:
            call(1)
        except kagzi.NonDeterminismError:
            pass
        finally:
            over.set()

    _thread.start_new_thread(body, ())  # here
    over.wait()


WAYS: list[Way] = [pool_map, pool_of_pools, older_pool, thread_pool, thread, own_class, timer, raw_thread]
POOL = ThreadPoolExecutor(1)


@contextmanager
def quiet_threads() -> Iterator[None]:
    """An error that ends a thread is printed, by pytest as a warning."""
    before, threading.excepthook = threading.excepthook, lambda _: None
    try:
        yield
    finally:
        threading.excepthook = before


def line_of(function: Way) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if line.rstrip().endswith("# here"))


def make(charged: list[int], *, plain: bool) -> tuple[Kagzi, Any]:
    app = Kagzi("memory://")

    @app.step
    def charge(number: int) -> int:
        charged.append(number)
        return number

    def attempt(way: str) -> str:
        next(one for one in WAYS if one.__name__ == way)(charge)
        return "done"

    @app.workflow(retry=Retry.none)
    def in_order(way: str) -> str:
        return attempt(way)

    @app.workflow(retry=Retry.none)
    async def awaiting(way: str) -> str:
        return attempt(way)

    return app, in_order if plain else awaiting


@pytest.mark.parametrize("plain", [True, False], ids=["def", "async-def"])
async def test_steps_on_threads_of_a_workflow_are_refused(plain: bool) -> None:
    POOL.submit(int).result()  # its thread is there already, and not the workflow's
    charged: list[int] = []
    app, workflow = make(charged, plain=plain)
    async with app, app.worker():
        for way in WAYS:
            with quiet_threads(), pytest.raises(WorkflowFailed) as caught:
                await workflow.run(way.__name__)
            failure = caught.value.failure
            assert failure is not None
            assert failure.type == "kagzi.errors.NonDeterminismError", way
            assert f"test_side_threads.py:{line_of(way)} in {way.__name__}" in failure.message
            assert "charge was called on a thread that the workflow" in failure.message
    assert charged == []


async def test_they_are_refused_at_every_home(home: str) -> None:
    app = Kagzi(home)
    charged = []

    @app.step
    def charge(number: int) -> None:
        charged.append(number)

    @app.workflow(retry=Retry.none)
    def pay() -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(charge, range(3)))
        kagzi.sleep("2s")

    async with app, app.worker():
        run = await pay.start()
        with pytest.raises(WorkflowFailed, match=r"charge was called on a thread .*test_side_threads\.py:\d+ in pay"):
            await run.result()
        assert await run.steps() == ()
    assert charged == []


HELPERS: dict[str, Callable[[], Any]] = {
    "label": lambda: kagzi.run_step("label", str),
    "kagzi.sleep()": lambda: kagzi.sleep("1s"),
    "kagzi.now()": kagzi.now,
    "kagzi.random()": kagzi.uuid4,
    "kagzi.current()": kagzi.current,
}


async def test_so_is_everything_else_that_would_not_be_durable() -> None:
    app = Kagzi("memory://")

    @app.workflow(retry=Retry.none)
    def flow(helper: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(HELPERS[helper]).result()

    async with app, app.worker():
        for helper in HELPERS:
            with pytest.raises(WorkflowFailed) as caught:
                await flow.run(helper)
            assert str(caught.value.failure).find(f"{helper} was called on a thread") > 0


async def test_elsewhere_steps_are_plain_functions_on_any_thread() -> None:
    """In threads that bodies start, in a pool that a workflow has used before, and beside all of this."""
    app = Kagzi("memory://")
    with ThreadPoolExecutor(1) as shared:

        @app.step
        def double(number: int) -> int:
            return 2 * number

        @app.step
        def total(numbers: list[int]) -> int:
            with ThreadPoolExecutor(2) as pool:
                return sum(pool.map(double, numbers))  # type: ignore[arg-type]

        @app.step
        async def later(number: int) -> int:
            return await asyncio.to_thread(double, number)  # type: ignore[arg-type]

        @app.workflow
        def flow() -> list[int]:
            length = shared.submit(len, "abc").result()  # no step: nobody's concern; it starts the pool's thread
            return [length, total.call([1, 2]), later.call(4)]

        async with app, app.worker():
            assert await flow.run() == [3, 6, 8]
        assert shared.submit(double, 5).result() == 10
    assert double(6) == 12  # type: ignore[comparison-overlap]


async def test_a_thread_that_outlives_its_workflow_is_refused_alone() -> None:
    app = Kagzi("memory://")
    go_on, refused = threading.Event(), []

    @app.step
    def charge() -> None:
        raise AssertionError("it ran")

    def late() -> None:
        go_on.wait(30)
        try:
            charge()
        except kagzi.NonDeterminismError as error:
            refused.append(error)

    @app.workflow
    def flow() -> str:
        threading.Thread(target=late, daemon=True).start()
        return "done"

    async with app, app.worker():
        assert await flow.run() == "done"
        go_on.set()
        deadline = time.monotonic() + 30
        while not refused and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
    assert len(refused) == 1

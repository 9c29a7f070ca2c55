"""The slots of processes for steps: what is given back when a call is cancelled, and when the pool closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kagzi.sdk.worker import process_pool
from kagzi.sdk.worker.bodies import StepInfo
from kagzi.sdk.worker.process_pool import ProcessPool
from kagzi.sdk.worker.process_references import Reference

REFERENCE = Reference("module", "work", "work")


class Process:
    """A process that begins when the test lets it, and whose calls end when the test lets them."""

    made: list[Process]
    begin: asyncio.Event

    def __init__(self) -> None:
        self.usable = self.alive = True
        self.killed = False
        self.calls = 0
        self.finish = asyncio.Event()

    @classmethod
    async def start(cls, _: int) -> Process:
        cls.made.append(process := cls())
        await cls.begin.wait()
        return process

    async def run(self, wanted: object, hear: object) -> Any:
        self.calls += 1
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.usable = False  # as the real one, whose body is in the middle of something
            raise
        return SimpleNamespace(output=b"1")

    def kill(self) -> None:
        self.killed, self.usable = True, False

    async def gone(self) -> int:
        return -9


class Call:
    """The attempt whose step it is; it knows when the time of a body begins."""

    def __init__(self) -> None:
        self.on_the_clock = False
        self.hear_progress = None
        codec = SimpleNamespace(copy_result=lambda output: output)
        self.call = SimpleNamespace(input_hash=7, input=b"[]", codec=codec)

    def call_of(self, info: StepInfo) -> Any:
        return self.call

    @contextmanager
    def waiting(self, call: Any) -> Iterator[Callable[[], None]]:
        def begins() -> None:
            self.on_the_clock = True

        yield begins


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProcessPool]:
    monkeypatch.setattr(process_pool, "_Process", Process)
    Process.made, Process.begin = [], asyncio.Event()
    pool = ProcessPool(1)
    yield pool
    Process.begin.set()
    for process in Process.made:
        process.finish.set()
    await pool.close()


async def call(pool: ProcessPool) -> tuple[Call, asyncio.Task[Any]]:
    attempt: Any = Call()
    info = StepInfo("run", "work", 1, "flow", "default", None)
    task = asyncio.create_task(pool.run(attempt, info, REFERENCE))
    await settle()
    return attempt, task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await settle()


async def end(pool: ProcessPool) -> None:
    """The next call gets the one slot that there is, and a process."""
    attempt, task = await call(pool)
    Process.begin.set()
    await settle()
    assert attempt.on_the_clock
    Process.made[-1].finish.set()
    assert await asyncio.wait_for(task, 10) == b"1"


async def test_a_call_that_is_cancelled_while_its_process_starts_leaves_it_to_the_next(pool: ProcessPool) -> None:
    attempt, task = await call(pool)
    await cancel(task)
    assert not attempt.on_the_clock
    Process.begin.set()
    await settle()
    await end(pool)
    assert len(Process.made) == 1


async def test_a_call_that_is_cancelled_while_it_waits_for_a_slot_takes_none(pool: ProcessPool) -> None:
    Process.begin.set()
    _, first = await call(pool)
    waits, second = await call(pool)
    assert not waits.on_the_clock  # waiting for a slot is not the time of the step
    await cancel(second)
    Process.made[0].finish.set()
    await first
    await end(pool)
    assert len(Process.made) == 1


async def test_a_call_that_is_cancelled_at_work_gives_its_slot_back_and_not_its_process(pool: ProcessPool) -> None:
    Process.begin.set()
    attempt, task = await call(pool)
    assert attempt.on_the_clock
    await cancel(task)
    await end(pool)
    assert [process.calls for process in Process.made] == [1, 1]


async def test_the_time_of_a_step_begins_with_its_process(pool: ProcessPool) -> None:
    attempt, _ = await call(pool)
    assert not attempt.on_the_clock
    Process.begin.set()
    await settle()
    assert attempt.on_the_clock


@pytest.mark.parametrize("cancelled", [False, True])
async def test_closing_ends_a_process_that_is_still_starting(pool: ProcessPool, cancelled: bool) -> None:
    _, task = await call(pool)
    if cancelled:
        await cancel(task)
    closing = asyncio.create_task(pool.close())
    await settle()
    assert not closing.done()
    Process.begin.set()
    await closing
    assert [process.killed for process in Process.made] == [True]
    for process in Process.made:
        process.finish.set()
    await asyncio.gather(task, return_exceptions=True)

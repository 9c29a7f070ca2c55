from __future__ import annotations

import asyncio

import pytest

from kagzi.ports.interruption import Interruptible


class Worker:
    """A task that works until it is interrupted, and goes on."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.work = Interruptible()
        self._stubborn = stubborn
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> str:
        done = "interrupted"
        with self.work:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self._stubborn:
                    raise
                done = "finished anyway"
        await asyncio.sleep(0)  # where a cancellation that was left over would be raised
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return done


async def test_work_that_nobody_interrupts_is_done() -> None:
    with Interruptible() as work:
        await asyncio.sleep(0)
    assert not work.interrupted


async def test_who_is_interrupted_goes_on_behind_its_work() -> None:
    worker = Worker()
    await asyncio.sleep(0)
    worker.work.interrupt()
    worker.work.interrupt()
    assert await worker.task == "interrupted"
    assert worker.work.interrupted


async def test_who_is_cancelled_is_not_interrupted() -> None:
    worker = Worker()
    await asyncio.sleep(0)
    worker.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker.task
    assert not worker.work.interrupted


async def test_who_is_cancelled_at_the_same_time_is_cancelled() -> None:
    worker = Worker()
    await asyncio.sleep(0)
    worker.work.interrupt()
    worker.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker.task


async def test_work_that_does_not_let_itself_be_interrupted_leaves_nothing_behind() -> None:
    worker = Worker(stubborn=True)
    await asyncio.sleep(0)
    worker.work.interrupt()
    assert await worker.task == "finished anyway"


async def test_an_error_of_the_work_stays_one() -> None:
    with pytest.raises(TimeoutError, match="mine"), Interruptible():
        raise TimeoutError("mine")


async def test_an_error_of_work_that_is_interrupted_stays_one() -> None:
    work = Interruptible()

    async def main() -> None:
        with work:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("while cleaning up")

    task = asyncio.create_task(main())
    await asyncio.sleep(0)
    work.interrupt()
    with pytest.raises(ValueError, match="while cleaning up"):
        await task


async def test_an_interruption_within_another_ends_the_one_that_is_meant() -> None:
    inner, outer = Interruptible(), Interruptible()
    reached: list[str] = []

    async def main() -> None:
        with outer:
            with inner:
                await asyncio.Event().wait()
            reached.append("behind the inner one")
            await asyncio.Event().wait()
        reached.append("behind both")

    task = asyncio.create_task(main())
    await asyncio.sleep(0)
    inner.interrupt()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert reached == ["behind the inner one"]
    outer.interrupt()
    await task
    assert reached == ["behind the inner one", "behind both"]

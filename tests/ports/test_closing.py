from __future__ import annotations

import asyncio

import pytest

from kagzi.ports.closing import Closing


async def test_work_that_ends_first_is_answered() -> None:
    closing = Closing()
    assert await closing.until(lambda: asyncio.sleep(0, "done"), "closed") == "done"


async def test_waits_end_when_the_server_closes_and_none_begins_after() -> None:
    closing = Closing()
    cancelled: list[int] = []

    async def work(number: int) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return "never"

    waits = [asyncio.create_task(closing.until(lambda number=number: work(number), "closed")) for number in (1, 2)]  # type: ignore[misc]
    await asyncio.sleep(0)
    closing.set()
    closing.set()
    assert await asyncio.gather(*waits) == ["closed", "closed"]
    assert sorted(cancelled) == [1, 2]
    assert await closing.until(lambda: work(3), "closed") == "closed"
    assert sorted(cancelled) == [1, 2]


async def test_a_caller_that_goes_away_is_no_closing() -> None:
    closing = Closing()
    wait = asyncio.create_task(closing.until(asyncio.Event().wait, False))
    await asyncio.sleep(0)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait


async def test_a_timeout_of_the_work_itself_stays_one() -> None:
    async def work() -> str:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await Closing().until(work, "closed")

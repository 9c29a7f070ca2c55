"""How fast a burst of requests is begun."""

from __future__ import annotations

import asyncio
import itertools

from kagzi.http.pace import _AT_ONCE, Pace


async def test_a_burst_is_begun_a_few_at_a_time() -> None:
    pace = Pace()
    begun: list[int] = []

    async def request(number: int) -> None:
        await pace.wait()
        begun.append(number)

    tasks = [asyncio.create_task(request(number)) for number in range(100)]
    tasks[50].cancel()
    turns = [0]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turns.append(len(begun))
    assert begun == [number for number in range(100) if number != 50]
    assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= _AT_ONCE


async def test_one_alone_does_not_wait() -> None:
    pace = Pace()
    for _ in range(3 * _AT_ONCE):
        waiting = pace.wait()
        try:
            waiting.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waits")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

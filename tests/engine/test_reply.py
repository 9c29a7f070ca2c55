"""Answers on their way: awaited, or told to a callback."""

from __future__ import annotations

import asyncio

import pytest

from kagzi.api.reply import Reply, gather, settled
from kagzi.errors import Unavailable


async def test_a_callback_is_called_by_whoever_settles_without_a_turn_of_the_loop() -> None:
    heard: list[int | Exception] = []
    reply: Reply[int] = Reply()
    reply.then(heard.append)
    assert not reply.done()
    reply.settle(7)
    assert heard == [7]
    assert reply.answer == 7


async def test_a_reply_that_is_there_already_is_never_told_from_within_the_call() -> None:
    heard: list[int | Exception] = []
    settled(7).then(heard.append)
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [7]


async def test_awaiting_gives_the_answer_or_raises_the_error_before_and_after_it_is_there() -> None:
    reply: Reply[int] = Reply()
    waiting = [asyncio.ensure_future(reply), asyncio.ensure_future(reply)]
    await asyncio.sleep(0)
    reply.settle(7)
    assert await asyncio.gather(*waiting) == [7, 7]
    assert await reply == 7
    refused: Reply[int] = Reply()
    waits = asyncio.ensure_future(refused)
    await asyncio.sleep(0)
    refused.settle(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await waits
    with pytest.raises(Unavailable, match="gone"):
        await refused


async def test_whoever_stops_waiting_leaves_the_reply_to_others() -> None:
    reply: Reply[int] = Reply()
    waiting = asyncio.ensure_future(reply)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    reply.settle(7)
    assert await reply == 7


async def test_gather_keeps_the_order_and_gives_errors_as_values() -> None:
    first, second = Reply[int](), Reply[int]()
    together = asyncio.ensure_future(gather([first, second, settled(3)]))
    await asyncio.sleep(0)
    error = Unavailable("gone")
    second.settle(error)
    first.settle(1)
    assert await together == [1, error, 3]
    assert await gather([]) == []

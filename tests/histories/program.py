"""Workflows that use everything that is recorded, and how their runs come about. What is recorded of them is kept in
`recorded/`: do not change what they do, or old histories no longer fit; add new ones beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kagzi
from kagzi import Handle, Kagzi, Retry

app = Kagzi("memory://")


@app.step(retry=Retry(attempts=3, first="1s"))
async def charge(cents: int) -> str:
    if cents == 13 and kagzi.attempt() < 3:
        raise ConnectionError("try again")
    if cents == 0:
        raise kagzi.NonRetryable("nothing to charge")
    return f"paid {cents}"


@app.step
def ship(item: str, number: int) -> list[Any]:
    return [item, number]


@app.workflow
async def parallel(items: list[str]) -> Any:
    number = kagzi.random().randrange(100)
    shipped = await asyncio.gather(*(ship(item, number) for item in items))
    first = await kagzi.race(charge(13), kagzi.sleep("patience", "1 day"))
    try:
        await charge(0)
    except Exception as error:
        return [shipped, first, str(error), str(kagzi.uuid4())]


@app.workflow
async def waiting(days: int) -> Any:
    async with asyncio.timeout(86_400 * 30):
        await asyncio.sleep(86_400 * days)
        asked = kagzi.now().isoformat()
        answer = await kagzi.wait_signal("answer", str, timeout="2 days", default="none")
    late = await kagzi.wait_signal("late", str, timeout="1 hour", default="none")
    return [asked, answer, late]


@app.workflow
def plain(cents: int) -> str:
    payment = charge.call(cents)
    kagzi.sleep("1 day")
    if kagzi.patched("mail"):
        ship.call("mail", 1)
    return payment


@app.workflow
async def family(count: int) -> Any:
    child = await plain.options(key="first").spawn(5)
    others = await kagzi.map(plain.run, list(range(1, count)), key=str)
    return [await child.result(), others]


@app.workflow
async def forever(month: int) -> int:
    await charge(month)
    await kagzi.sleep("30 days")
    if month < 3:
        forever.continue_as_new(month + 1)
    return month


@app.workflow
async def cancelled() -> str:
    try:
        await charge(1)
        await kagzi.sleep("52 weeks")
    except asyncio.CancelledError:
        await ship("back", 1)
        raise
    return "never"


async def _waiting() -> Handle[Any]:
    run = await waiting.start(3)
    await asyncio.sleep(86_400 * 4)
    await run.signal("answer", "yes")
    return run


async def _cancelled() -> Handle[Any]:
    run = await cancelled.start()
    await asyncio.sleep(100)
    await run.cancel()
    return run


STORIES: dict[str, Callable[[], Awaitable[Handle[Any]]]] = {
    "parallel": lambda: parallel.start(["pen", "book", "ink"]),
    "waiting": _waiting,
    "plain": lambda: plain.start(13),
    "family": lambda: family.start(4),
    "forever": lambda: forever.start(1),
    "cancelled": _cancelled,
}

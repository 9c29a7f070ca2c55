"""What `kagzi dev` shows to somebody who has no app yet: an order that is paid, packed, approved and shipped."""

from __future__ import annotations

import asyncio

import kagzi
from kagzi import Kagzi, Retry

app = Kagzi()


@app.step(retry=Retry(attempts=5, first="1s", jitter=0))
async def charge(order: str, cents: int) -> str:
    """The bank does not answer at first, so that there is something to be tried again."""
    await asyncio.sleep(0.3)
    if kagzi.current().attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"payment of {cents / 100:.2f} for {order}"


@app.step
async def pack(item: str) -> str:
    await asyncio.sleep(0.4)
    return f"{item} is packed"


@app.step
async def ship(order: str) -> str:
    await asyncio.sleep(0.2)
    return f"{order} is on its way"


@app.workflow(name="demo_order")
async def order(name: str, cents: int, items: list[str]) -> dict[str, str]:
    kagzi.progress(0.1, "charging")
    payment = await charge(name, cents)
    kagzi.progress(0.5, "packing")
    packed = await kagzi.map(pack, items, name="packing")
    await asyncio.sleep(3)
    kagzi.progress(0.8, "waiting for somebody to approve it")
    approved = await kagzi.wait_signal("approved", bool, timeout="1h", default=False)
    shipped = await ship(name) if approved else "not approved"
    return {"payment": payment, "packed": ", ".join(packed), "shipped": shipped}

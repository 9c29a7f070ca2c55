"""The order workflow of the demo. Ordinary functions; nothing in here knows that its worker will be killed."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from kagzi import Kagzi

# A short lease, so that the demo need not wait half a minute for the second worker to take over.
app = Kagzi(os.environ.get("KAGZI_URL"), lease="2s")


@dataclass
class Order:
    id: str
    cents: int
    items: list[str]


@dataclass
class Receipt:
    order: str
    payment: str
    parcels: list[str]
    label: str


@app.step
async def charge_card(order: Order) -> str:
    note("charge_card")
    await asyncio.sleep(0.8)
    return f"payment of ${order.cents / 100:.2f}"


@app.step
async def reserve(item: str) -> str:
    note(f"reserve {item}")
    await asyncio.sleep(0.4 + 0.3 * len(item) / 5)
    return f"{item} from shelf {len(item)}"


@app.step
def pack(parcels: list[str]) -> str:
    """A plain function: it runs in a thread. The first worker dies in the middle of it."""
    import time

    note("pack")
    time.sleep(2.5)
    return f"parcel with {len(parcels)} items"


@app.step
async def send_receipt(order: Order) -> str:
    note("send_receipt")
    await asyncio.sleep(0.5)
    return f"receipt for {order.id}"


@app.workflow
async def fulfil(order: Order) -> Receipt:
    payment = await charge_card(order)
    parcels = await asyncio.gather(*(reserve.options(key=item)(item) for item in order.items))
    label = await pack(parcels)
    await asyncio.sleep(2)  # the courier needs a while; it could be a month
    await send_receipt(order)
    return Receipt(order.id, payment, parcels, label)


def note(what: str) -> None:
    """Write down which process did what, outside of Kagzi, so that the demo can count."""
    ledger = os.environ.get("DEMO_LEDGER")
    if ledger:
        with Path(ledger).open("a") as file:
            file.write(f"{what}\t{os.getpid()}\n")


if __name__ == "__main__":
    app.run_worker(concurrency=10)

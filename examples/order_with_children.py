"""An order whose parcels are runs of their own, with a timeout and a history each, cancelled with the order.

python examples/order_with_children.py
"""

import asyncio

import kagzi
from kagzi import Kagzi, WorkflowFailed

app = Kagzi("memory://")


@app.step
async def book_carrier(sku: str) -> str:
    if sku == "piano":
        raise kagzi.NonRetryable("no carrier takes a piano")
    return f"label-{sku}"


@app.step
async def refund(sku: str) -> str:
    return f"refunded {sku}"


@app.workflow
async def ship(sku: str) -> str:
    """One parcel. It may take days, and fails without failing the others."""
    return await book_carrier(sku)


@app.workflow
async def order(skus: list[str]) -> list[str]:
    parcels = [await ship.options(key=sku, timeout="7d").spawn(sku) for sku in skus]
    done = []
    for sku, parcel in zip(skus, parcels, strict=True):
        try:
            done.append(await parcel.result())
        except WorkflowFailed:
            done.append(await refund(sku))
    return done


async def main() -> list[str]:
    async with app, app.worker():
        run = await order.options(id="order-42").start(["book", "piano", "pen"])
        done = await run.result(timeout=60)
        print(", ".join(done))
        for parcel in (await app.runs(parent=run.id)).items:
            print(f"{parcel.workflow} {parcel.status}")
        return done


if __name__ == "__main__":
    asyncio.run(main())

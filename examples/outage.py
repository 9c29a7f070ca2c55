"""After an outage: find what has failed by it, look at it, and retry all of it at once.

python examples/outage.py
"""

import asyncio
import logging
from collections import Counter
from contextlib import suppress

from kagzi import Kagzi, Retry, Runs, WorkflowFailed

app = Kagzi("memory://")
reserved: Counter[str] = Counter()
gateway_is_up = False


class GatewayDown(Exception):
    """The payment provider does not answer."""


@app.step
async def reserve(order: str) -> str:
    reserved[order] += 1
    return f"reserved {order}"


@app.step(retry=Retry(attempts=2, first="10ms"))
async def charge(order: str) -> str:
    if not gateway_is_up:
        raise GatewayDown(f"no answer about {order}")
    return f"charged {order}"


@app.workflow
async def checkout(order: str) -> list[str]:
    return [await reserve(order), await charge(order)]


@app.workflow
async def broken() -> None:
    raise ValueError("a bug of ours, which no retry helps")


async def main() -> list[str]:
    global gateway_is_up
    said = []
    async with app, app.worker():
        orders = [f"order-{number}" for number in range(1, 9)]
        runs = [await checkout.options(id=order, tags={"shop": "north"}).start(order) for order in orders]
        for run in [*runs, await broken.start()]:
            with suppress(WorkflowFailed):
                await run.result()
        gateway_is_up = True

        # The others that failed in this time have failed by something else, and stay as they are.
        hit = Runs(status="FAILED", workflow="checkout", error=GatewayDown)
        said.append(f"would retry {await app.jobs.preview('retry', hit)}")
        job = await app.jobs.start("retry", hit, rate=200)
        await job.wait()
        said.append(f"{job.matched} found, {job.done} retried, {job.skipped} skipped, {job.failed} failed")

        # The new runs have the tags of those that failed, and these keep their ids.
        again = [run async for run in app.search(tag="shop=north") if run.status != "FAILED"]
        results = [await app.handle(run.run_id).result() for run in again]
        said.append(f"{len(results)} of {len(orders)} charged")
        said.append(f"each reserved {max(reserved.values())} time")  # what had gone well is not done again
    for line in said:
        print(line)
    return said


if __name__ == "__main__":
    logging.getLogger("kagzi").setLevel(logging.CRITICAL)  # it says of each failure where it was
    asyncio.run(main())

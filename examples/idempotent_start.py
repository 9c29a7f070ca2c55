"""Starting the same thing twice starts it once: give the run an id of your own.

python examples/idempotent_start.py
"""

import asyncio

from kagzi import Conflict, Kagzi

app = Kagzi("memory://")


@app.step
async def charge(order: str, cents: int) -> str:
    return f"{order} paid {cents}"


@app.workflow
async def checkout(order: str, cents: int) -> str:
    return await charge(order, cents)


async def main() -> list[str]:
    story = []
    async with app, app.worker():
        # A customer who double-clicks, a message delivered twice, a retried request: all the same run.
        runs = await asyncio.gather(*(checkout.options(id="order-7").start("order-7", 500) for _ in range(10)))
        story.append(f"{len({run.id for run in runs})} run, started {sum(not run.already_exists for run in runs)} time")
        story.append(await runs[0].result(timeout=30))

        # The same id with another input is a mistake, and it is told.
        try:
            await checkout.options(id="order-7").start("order-7", 9_999)
        except Conflict as conflict:
            story.append(type(conflict).__name__)

        # Or insist on being the first.
        try:
            await checkout.options(id="order-7", on_conflict="fail").start("order-7", 500)
        except Conflict:
            story.append("somebody was here before")
    for line in story:
        print(line)
    return story


if __name__ == "__main__":
    asyncio.run(main())

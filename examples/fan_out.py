"""Fan out, fan in: parallel steps with gather and TaskGroup, a limit, and the first of several to finish.

python examples/fan_out.py
"""

import asyncio

from kagzi import Kagzi

app = Kagzi("memory://")


@app.step
async def fetch(page: int) -> list[int]:
    await asyncio.sleep(0.01 * (page % 3))
    return [page * 10 + i for i in range(3)]


@app.step
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.step
async def ask(mirror: str, delay: float) -> str:
    await asyncio.sleep(delay)
    return mirror


@app.workflow
async def crawl(pages: int) -> int:
    found = await asyncio.gather(*(fetch(page) for page in range(pages)))
    return await total([number for page in found for number in page])


@app.workflow
async def crawl_gently(pages: int, at_once: int) -> int:
    """The same, with at most `at_once` steps running at a time."""
    limit = asyncio.Semaphore(at_once)

    async def one(page: int) -> list[int]:
        async with limit:
            return await fetch.options(key=str(page))(page)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(page)) for page in range(pages)]
    return await total([number for task in tasks for number in task.result()])


@app.workflow
async def fastest(mirrors: dict[str, float]) -> str:
    """The first one wins, the others are cancelled; whoever won is recorded, so every replay has the same winner."""
    tasks = [asyncio.create_task(ask(name, delay), name=name) for name, delay in mirrors.items()]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return next(iter(done)).result()


async def main() -> tuple[int, int, str]:
    async with app, app.worker():
        results = (
            await crawl.run(20),
            await crawl_gently.run(20, 4),
            await fastest.run({"far": 5.0, "near": 0.05, "away": 5.0}),
        )
        print(f"sum of all pages: {results[0]}, gently: {results[1]}, fastest mirror: {results[2]}")
        return results


if __name__ == "__main__":
    asyncio.run(main())

"""A limit for each tenant, and an API that takes only so many calls in a second.

python examples/tenants.py
"""

import asyncio
from collections import Counter

from kagzi import Kagzi, Limit, Rate

app = Kagzi("memory://")
running: Counter[str] = Counter()
most: Counter[str] = Counter()
calls: list[float] = []


@app.step
async def render(tenant: str) -> None:
    running[tenant] += 1
    most[tenant] = max(most[tenant], running[tenant])
    await asyncio.sleep(0.05)
    running[tenant] -= 1


@app.workflow(concurrency=[Limit(6), Limit(2, key="tenant")])
async def report(tenant: str, page: int) -> str:
    """Six at once over all workers, and two of one tenant: who orders a hundred does not hold up the others."""
    await render(tenant)
    return f"{tenant} {page}"


@app.step
async def ask_the_api(city: str) -> str:
    calls.append(asyncio.get_running_loop().time())
    return city.upper()


@app.workflow(rate=Rate(10, "1s", burst=2))
async def look_up(city: str) -> str:
    """Ten begin in a second, two of them at once. The others wait, and none is dropped."""
    return await ask_the_api(city)


async def main() -> tuple[int, int, list[str]]:
    async with app, app.worker():
        reports = [await report.start("acme", page) for page in range(12)]
        reports.append(await report.start("small", 1))
        cities = [await look_up.start(city) for city in ("lisbon", "oslo", "pune", "quito", "riga")]
        for run in reports:
            await run.result()
        found = [await run.result() for run in cities]
        took = max(calls) - min(calls)
        print(f"at once: {most['acme']} of acme, {most['small']} of small; five calls of the API took {took:.1f} s")
        return most["acme"], most["small"], found


if __name__ == "__main__":
    asyncio.run(main())

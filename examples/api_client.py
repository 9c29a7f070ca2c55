"""Calls of an API that takes so many in a second, from wherever they come.

Each call is a run of one small workflow, so one rate counts for all workers and for every workflow that needs the API.

python examples/api_client.py
"""

import asyncio
from collections import deque

from kagzi import Kagzi, Limit, Rate, Retry, RetryAfter

app = Kagzi("memory://")


class Api:
    """Takes 20 calls of an account in a second, two of them at once, and refuses the others."""

    def __init__(self) -> None:
        self.answered = self.refused = self.under_way = self.most = 0
        self._calls: deque[float] = deque()

    async def balance(self, customer: str) -> int:
        now = asyncio.get_running_loop().time()
        while self._calls and self._calls[0] <= now - 1:
            self._calls.popleft()
        if len(self._calls) >= 20 or self.under_way >= 2:
            self.refused += 1
            raise RetryAfter("429 Too Many Requests", "200ms")  # what it says in its header `retry-after`
        self._calls.append(now)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        self.answered += 1
        return len(customer) * 100


api = Api()


@app.step(retry=Retry(attempts=5, first="200ms"))
async def ask(customer: str) -> int:
    return await api.balance(customer)


@app.workflow(concurrency=Limit(2, key="account"), rate=Rate(16, "1s", burst=4, key="account"))
async def balance_of(account: str, customer: str) -> int:  # noqa: ARG001
    """One call. 16 begin in a second, and four at once after a lull: never more than 20. None is dropped, and another
    account has a budget of its own."""
    return await ask(customer)


@app.workflow
async def statement(customers: list[str]) -> int:
    """One that needs many. It waits for its calls without a slot or a connection, and survives a restart meanwhile."""
    return sum(await asyncio.gather(*[balance_of.run("acme", customer) for customer in customers]))


async def main() -> tuple[int, int, int, int]:
    async with app, app.worker():
        totals = [await statement.start([f"customer-{page}-{each}" for each in range(12)]) for page in range(2)]
        print(f"total: {sum([await run.result() for run in totals])}")
        print(f"{api.answered} calls answered, {api.refused} refused, {api.most} at once at most")
        return sum([await run.result() for run in totals]), api.answered, api.refused, api.most


if __name__ == "__main__":
    asyncio.run(main())

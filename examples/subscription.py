"""A workflow without end: a subscription that charges each month and begins anew, so that its history stays short.

    python examples/subscription.py

It is one run for as long as the customer stays: one id, one handle, one inbox. The months are short here, so that the
program ends.
"""

import asyncio
from dataclasses import dataclass

import kagzi
from kagzi import Kagzi

app = Kagzi("memory://")


@dataclass
class Account:
    customer: str
    plan: str = "basic"
    months: int = 0
    paid: int = 0


@app.step
async def charge(plan: str) -> int:
    return {"basic": 5, "large": 20}[plan]


@app.workflow
async def subscription(account: Account, month: str = "30 days") -> Account:
    account.paid += await charge(account.plan)
    account.months += 1
    kagzi.set_value("paid", account.paid)
    change = await kagzi.wait_signal("change", str, timeout=month, default=None)
    if change != "end":
        account.plan = change or account.plan
        subscription.continue_as_new(account, month)
    return account


async def main() -> str:
    async with app, app.worker():
        run = await subscription.options(id="ada").start(Account("Ada"), "50ms")
        await asyncio.sleep(0.3)
        await run.signal("change", "large")
        await run.signal("change", "end")  # taken by the incarnation after the next change
        account = await run.result()
        record = await run.get()
    paid = f"{account.customer} paid {account.paid} in {account.months} months"
    story = f"{paid}, in one run that began anew {record.incarnation} times"
    print(story)
    return story


if __name__ == "__main__":
    asyncio.run(main())

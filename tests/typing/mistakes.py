"""Mistakes users make. Every checker reports each line marked as an error, and no other line."""

from __future__ import annotations

from dataclasses import dataclass

import kagzi
from kagzi import Context, Kagzi, Retry, run_step

app = Kagzi("memory://")


@dataclass
class Order:
    id: str
    cents: int


@app.step
def charge(order: Order) -> str:
    return order.id


@app.step(timeout="30s")
async def reserve(sku: str, *, qty: int = 1) -> bool:
    return qty > len(sku)


@app.workflow
async def checkout(order: Order) -> str:
    await charge("order")  # error: wrong type
    await charge()  # error: missing argument
    await charge(order, 1)  # error: too many
    await reserve("a", quantity=2)  # error: unknown keyword
    await reserve("a", qty="2")  # error: wrong type of a keyword
    await reserve.options(key="a")(1)  # error: wrong type after options
    number: int = await charge(order)  # error: wrong type of the result
    await reserve.options(on_parent_end="abandon")("a")  # error: not an option of a step
    await run_step("label", len, 3)  # error: wrong type for an inline step
    await run_step("label", charge)  # error: missing argument of an inline step
    flag: bool = await run_step("label", lambda: "text")  # error: wrong type of an inline result
    return f"{number}{flag}"


@app.workflow(version="2")
async def with_context(ctx: Context, order: Order) -> str:
    return order.id + ctx.run_id


async def main(order: Order) -> None:
    await checkout.start("order")  # error: wrong type
    await checkout.start()  # error: missing argument
    await checkout.start(order, id="x")  # error: options come before
    await checkout.options(colour="x").start(order)  # error: not an option of a workflow
    await checkout.options(on_conflict="explode").start(order)  # error: not a choice
    await with_context.start(1, order)  # error: the context is not passed
    handle = await checkout.start(order)
    number: int = await handle.result()  # error: wrong type of the result
    print(number)
    checkout.start_sync("order")  # error: wrong type
    checkout.run_sync()  # error: missing argument


app.step(retry=3)(charge.fn)  # error: not a policy
app.workflow(retries=3)  # error: unknown keyword
Retry(attempts="3")  # error: not a number
Retry(retry_on=ValueError)  # error: not a tuple
kagzi.run_step(charge, "x")  # error: the name comes first

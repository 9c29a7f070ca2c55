"""Three ways to sell a book. Only the first survives a crash at any moment; test_shop.py shows how a test tells."""

from __future__ import annotations

import itertools

import kagzi
from kagzi import Kagzi

app = Kagzi()

charges: dict[str, int] = {}  # what the bank has done, by the key of each call
mails: list[str] = []  # what the customer has got
_executions = itertools.count(1)


@app.step
async def charge(cents: int) -> str:
    me = kagzi.current()
    key = f"{me.run_id}/{me.step_id}"  # the same whenever this body runs again
    charges.setdefault(key, cents)  # so the bank knows the call, and charges once
    return "paid"


@app.step
async def thank(customer: str) -> None:
    mails.append(f"thank you, {customer}")  # nobody knows this mail again


@app.step
async def wrap(paper: str) -> str:
    return f"wrapped in {paper}"


@app.workflow
async def right(cents: int) -> str:
    paid = await charge(cents)
    await kagzi.sleep("delivery", "3 days")
    return paid


@app.workflow
async def doubled(customer: str, cents: int) -> None:
    await charge(cents)
    await thank(customer)


@app.workflow
async def not_deterministic() -> str:
    # It decides by something that is different in the next execution; kagzi.random() would not be.
    paper = "red" if next(_executions) % 3 else "blue"
    await wrap.options(key=paper)(paper)
    await wrap.options(key="ribbon")("ribbon")
    return "wrapped"

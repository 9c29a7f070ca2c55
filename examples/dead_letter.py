"""Dead letters: what fails for good is kept for people, by a workflow that handles failures.

    python examples/dead_letter.py

Three orders are worked off. One of them cannot succeed; its failure starts `keep_letter`, which writes down what was
to be done and why it failed. Whoever has put the cause right starts the order again from the letter.
"""

from __future__ import annotations

import asyncio
import tempfile

import kagzi
from kagzi import Kagzi

app = Kagzi(f"sqlite:///{tempfile.mkdtemp()}/orders.db")
letters: dict[str, str] = {}  # by run; a table of yours
written = asyncio.Event()


@app.step
async def charge(order_id: str, cents: int) -> str:
    if cents <= 0:
        raise kagzi.NonRetryable(f"{cents} cents cannot be charged")
    return f"payment of {order_id}"


@app.step
async def write_letter(run_id: str, text: str) -> None:
    letters[run_id] = text  # a step may happen twice, and the letter is there once all the same
    written.set()


@app.workflow(retry=kagzi.Retry(attempts=10))
async def keep_letter(failed: kagzi.FailedRun) -> None:
    await write_letter(failed.run_id, f"{failed.workflow}{tuple(failed.input)}: {failed.failure.message}")


@app.workflow(on_failure=keep_letter)
async def checkout(order_id: str, cents: int) -> str:
    return await charge(order_id, cents)


async def main() -> None:
    async with app, app.worker():
        runs = [await checkout.options(id=name).start(name, cents) for name, cents in (("a", 5), ("b", -1), ("c", 7))]
        results = await asyncio.gather(*(run.result() for run in runs), return_exceptions=True)
        await written.wait()
    for result in results:
        print("failed" if isinstance(result, BaseException) else result)
    print("dead letter:", *letters.values())


if __name__ == "__main__":
    asyncio.run(main())

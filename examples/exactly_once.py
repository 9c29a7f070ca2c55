"""Money moves exactly once: what a step writes to the app's own database commits together with its result.

python examples/exactly_once.py
"""

import asyncio
import sqlite3
import tempfile
from pathlib import Path

import kagzi
from kagzi import Kagzi, Retry

FILE = Path(tempfile.mkdtemp()) / "bank.db"
app = Kagzi(f"sqlite:///{FILE}")  # with PostgreSQL, kagzi.connection() is one of asyncpg, and awaited


@app.step(transaction=True, retry=Retry.fixed("50ms", attempts=5))
def transfer(giver: str, taker: str, cents: int) -> int:
    bank: sqlite3.Connection = kagzi.connection()
    bank.execute("UPDATE accounts SET cents = cents - ? WHERE name = ?", (cents, giver))
    if kagzi.attempt() < 3:
        raise ConnectionError("half of it is written, and rolled back")
    bank.execute("UPDATE accounts SET cents = cents + ? WHERE name = ?", (cents, taker))
    return kagzi.attempt()


@app.workflow
async def pay_rent(tenant: str, landlord: str) -> str:
    attempts = await transfer(tenant, landlord, 90_000)
    return f"paid in attempt {attempts}"


async def main() -> list[str]:
    with sqlite3.connect(FILE) as bank:
        bank.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, cents INTEGER)")
        bank.execute("INSERT INTO accounts VALUES ('ada', 100000), ('max', 0)")
    async with app, app.worker():
        story = [await pay_rent.run("ada", "max")]
    story += [f"{name} has {cents}" for name, cents in bank.execute("SELECT name, cents FROM accounts ORDER BY name")]
    bank.close()
    for line in story:
        print(line)
    return story


if __name__ == "__main__":
    asyncio.run(main())

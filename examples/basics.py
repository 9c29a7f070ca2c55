"""The shortest durable program: two steps, one workflow, one process.

    python examples/basics.py

Run it twice: the id makes the second start find the run of the first, finished, with its result.
"""

import asyncio
from dataclasses import dataclass

from kagzi import Kagzi

app = Kagzi()  # KAGZI_URL, else an SQLite file in ./.kagzi/


@dataclass
class Greeting:
    text: str
    letters: int


@app.step
async def look_up(user_id: int) -> str:
    """The world outside: databases, networks, files. Runs at least once, is recorded once."""
    return {1: "Ada", 2: "Grace"}.get(user_id, "stranger")


@app.step
def compose(name: str) -> Greeting:
    """A plain function is fine too; it runs in a thread."""
    text = f"Hello, {name}!"
    return Greeting(text, len(text))


@app.workflow
async def greet(user_id: int) -> Greeting:
    """Decides by what steps return. May be executed again from the start at any time; its steps are not."""
    name = await look_up(user_id)
    await asyncio.sleep(0.2)  # durable
    return await compose(name)  # comes back as a Greeting, first time and replayed


async def main() -> Greeting:
    async with app, app.worker():
        run = await greet.options(id="greet-ada").start(1)
        greeting = await run.result(timeout=30)
        print(
            f"{greeting.text} ({greeting.letters} letters; {'found' if run.already_exists else 'started'} run {run.id})"
        )
        return greeting


if __name__ == "__main__":
    asyncio.run(main())

"""Code changes while its runs are under way: a second version, a patch, and runs that are repeated.

    python examples/changing_runs.py

An order is started under version 1 and moved to version 2, in which it goes on where it was. A deploy adds a fee for
runs that come to it from now on. A run that failed is restarted under its own id, and one that succeeded is done again
from a step on. What was recorded is replayed against the code, as CI would do it.
"""

import asyncio
import sys
import tempfile

import kagzi
from kagzi import Kagzi, Retry
from kagzi.testing import Differs, replay

stock = {"book"}


def shop(version: str, url: str) -> Kagzi:
    """The program as it was deployed: version 2 ships otherwise, and knows the fee."""
    app = Kagzi(url)

    @app.step
    async def charge(order: str) -> str:
        return f"charged {order}"

    @app.step(retry=Retry.none)
    async def ship(order: str) -> str:
        if order not in stock:
            raise LookupError(f"no {order} in stock")
        return "by mail" if version == "1" else "by bike"

    @app.workflow(version=version)
    async def checkout(order: str) -> list[str]:
        done = [await charge(order)]
        await kagzi.wait_signal("packed")
        if version == "2" and kagzi.patched("fee"):
            done.append("fee")
        return [*done, await ship(order)]

    return app


async def main(url: str) -> list[str]:
    story: list[str] = []
    old, new = shop("1", url), shop("2", url)
    async with old, new:
        before, after = old.find_workflow("checkout", "1"), new.find_workflow("checkout", "2")
        assert before is not None
        assert after is not None

        async with old.worker():
            run = await before.options(id="order-1").start("book")
            for _ in range(6000):
                if await run.steps():
                    break
                await asyncio.sleep(0.01)
        async with new.worker():  # the old version is not deployed any more
            moved = await new.move_runs("checkout", from_version="1", to_version="2", check=True)
            await run.signal("packed")
            story.append(f"moved {moved.moved}: {', '.join(await run.result(timeout=60))}")

            pen = await after.options(id="order-2").start("pen")
            await pen.signal("packed")
            try:
                await pen.result(timeout=60)
            except kagzi.WorkflowFailed:
                stock.add("pen")
            again = await after.options(id="order-2", on_conflict="restart_failed").start("pen")
            await again.signal("packed")
            story.append(f"restarted: {', '.join(await again.result(timeout=60))}")
            found = await new.find("order-2")
            story.append(f"its id leads to the new run: {found.id == again.id}")

            fork = await again.fork(from_step="ship")
            story.append(f"forked: {', '.join(await fork.result(timeout=60))}")

    # In CI: this command once, its output kept beside the code, and `kagzi replay run.json shop.py` with each change.
    export = (sys.executable, "-m", "kagzi", "runs", "export", again.id, "--url", url)
    program = await asyncio.create_subprocess_exec(*export, stdout=asyncio.subprocess.PIPE)
    history = (await program.communicate())[0].decode()
    story.append(f"replayed {replay(history, new).events} events with today's code")
    try:
        replay(history.replace('"version": "2"', '"version": "1"'), old)
    except Differs:
        story.append("the old code would do something else")
    print("\n".join(story))
    return story


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(f"sqlite:///{directory}/kagzi.db"))

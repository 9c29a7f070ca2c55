"""A program whose runs are left in every state a run can have.

    python tests/upgrades/program.py <url>

makes them with the Kagzi that is first on the path, an earlier one (`tests.upgrades.make`), and dies without closing
anything. So nothing is used here that an earlier version does not have, but for signals where there are any.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import kagzi
from kagzi import Kagzi, Retry, Workflow

LONG = 300  # seconds; longer than a test waits
LATER = "later"  # a queue without a worker, while the runs are made
HAS_SIGNALS = hasattr(kagzi, "wait_signal")
CANCELLED = ("cancelled", "cleaning-up")


class Program:
    """`making` is when the runs are made: then bodies hang or fail that go well later."""

    def __init__(self, url: str, *, making: bool) -> None:
        self.app = app = Kagzi(url, lease="2s") if making else Kagzi(url)
        self.called: list[str] = []
        self.stuck = 0

        @app.step
        async def note(word: str) -> str:
            self.called.append(word)
            return word

        @app.step
        async def hang(word: str) -> str:
            self.called.append(word)
            if making:
                self.stuck += 1
                await asyncio.sleep(LONG)
            return word

        @app.step(retry=Retry(attempts=3, first=LONG, cap=LONG, jitter=0))
        async def fail_once(word: str) -> str:
            self.called.append(word)
            if making:
                raise ConnectionError("not yet")
            return word

        @app.workflow
        async def one_step(word: str) -> str:
            return await note(word)

        @app.workflow
        async def sleeps_first(word: str) -> str:
            await asyncio.sleep(LONG)
            return await note(word)

        @app.workflow
        async def sleeps_first_beside_a_failure(word: str) -> list[str]:
            await asyncio.gather(asyncio.sleep(LONG + 1), fail_once(f"{word}-once"))
            return [await note(word)]

        @app.workflow
        async def sleeps_between(word: str) -> list[str]:
            first = await note(f"{word}-1")
            await asyncio.sleep(LONG)
            return [first, await note(f"{word}-2")]

        @app.workflow
        async def retries(word: str) -> str:
            return await fail_once(word)

        @app.workflow
        async def hangs(word: str) -> list[str]:
            return [await note(f"{word}-1"), await hang(f"{word}-2")]

        @app.workflow
        async def fails(word: str) -> str:
            raise ValueError(word)

        @app.workflow
        async def cleans_up(word: str) -> None:
            try:
                await asyncio.sleep(LONG)
            finally:
                await hang(word)

        self.workflows: dict[str, Workflow[[str], Any]] = {
            "pending": one_step,
            "first-sleep": sleeps_first,
            "first-sleep-beside": sleeps_first_beside_a_failure,
            "between": sleeps_between,
            "retrying": retries,
            "running": hangs,
            "cleaning-up": cleans_up,
            "cancelled": sleeps_first,
            "completed": one_step,
            "failed": fails,
        }
        if HAS_SIGNALS:

            @app.workflow
            async def waits(word: str) -> list[str]:
                return [word, await kagzi.wait_signal("go", str)]

            @app.workflow
            async def waits_with_timeout(word: str) -> list[str]:
                return [word, await kagzi.wait_signal("go", str, timeout=LONG, default="nothing")]

            self.workflows |= {"waiting": waits, "waiting-with-timeout": waits_with_timeout}


async def make(url: str) -> None:
    program = Program(url, making=True)
    async with program.app as app:
        runs = {
            id: await workflow.options(id=id, queue=LATER if id == "pending" else None).start(id)
            for id, workflow in program.workflows.items()
        }

        async def reached(id: str, status: str) -> None:
            await until(lambda: status_of(id, status))

        async def status_of(id: str, status: str) -> bool:
            return (await runs[id].get()).status == status

        async def all_hang() -> bool:
            return program.stuck == len(("running", "cleaning-up"))

        async with app.worker():
            for id in ("first-sleep", "cancelled", "cleaning-up"):
                await reached(id, "SLEEPING")
            for id in CANCELLED:
                await runs[id].cancel()
            for id, status in (("cancelled", "CANCELLED"), ("completed", "COMPLETED"), ("failed", "FAILED")):
                await reached(id, status)
            for id in runs.keys() - {"pending", "running", "cleaning-up", "cancelled", "completed", "failed"}:
                await reached(id, "SLEEPING")
            await until(all_hang)
            await asyncio.sleep(1)  # until steps that take long show as RUNNING
            os._exit(0)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await holds():
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(make(sys.argv[1]))

"""The workflows that are measured, as Kagzi's users write them; the trials in scripts/ use them, too."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import kagzi
from benchmarks.systems.driver import CHILDREN, PARALLEL_STEPS
from benchmarks.systems.stopwatch import stopwatch
from kagzi import Kagzi

SLEEP_SECONDS: Final = 2.0


def define_one_step(app: Kagzi) -> tuple[Any, Any]:
    """The smallest step, and the workflow that is nothing else."""

    @app.step
    async def add_one(x: int) -> int:
        return x + 1

    @app.workflow
    async def one_step(x: int) -> int:
        return await add_one(x)

    return add_one, one_step


def define(app: Kagzi) -> dict[str, Any]:
    """By their names."""
    add_one, one_step = define_one_step(app)

    @app.workflow
    async def ten_steps(x: int) -> int:
        for _ in range(10):
            x = await add_one(x)
        return x

    @app.workflow
    async def hundred_steps(x: int) -> int:
        for _ in range(100):
            x = await add_one(x)
        return x

    @app.workflow
    async def many_steps(steps: int) -> int:
        x = 0
        for _ in range(steps):
            x = await add_one(x)
        return x

    @app.workflow
    async def parallel_steps(x: int) -> int:
        return sum(await asyncio.gather(*(add_one(x + i) for i in range(PARALLEL_STEPS))))

    @app.workflow
    async def sleeper(x: int) -> int:
        stopwatch.begin(x)
        await asyncio.sleep(SLEEP_SECONDS)
        stopwatch.end(x)
        return x

    @app.workflow
    async def family(x: int) -> int:
        return sum(await asyncio.gather(*(one_step.run(x + i) for i in range(CHILDREN))))

    @app.workflow
    async def told(x: int) -> int:
        found = await kagzi.wait_signal("go", int)
        stopwatch.end(x)
        return found

    return {
        "family": family,
        "told": told,
        "one_step": one_step,
        "ten_steps": ten_steps,
        "hundred_steps": hundred_steps,
        "many_steps": many_steps,
        "parallel_steps": parallel_steps,
        "sleeper": sleeper,
    }

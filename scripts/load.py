"""The workflows of the trials, and callers for them. Where runs live is said by KAGZI_URL.

kagzi worker scripts.load:app          a worker for them
python -m scripts.load throughput      callers and worker in this process: one-step runs and steps a second
python -m scripts.load latency         callers here, a worker elsewhere: from start to result, in milliseconds
python -m scripts.load survive         runs whose worker may be killed: their results, and what their steps did
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import kagzi
from benchmarks.systems.kagzi_workflows import define
from kagzi import Kagzi

LEDGER = "KAGZI_TEST_LEDGER"
SECONDS = 4.0
SURVIVORS = 60
LINKS = 10

app = Kagzi()
measured = define(app)


@app.step
async def effect(tag: str, phase: int) -> int:
    """Leaves a line outside of Kagzi, on disk before it returns."""
    file = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{tag} {phase} {kagzi.attempt()}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    await asyncio.sleep(0.05)
    return phase


@app.workflow
async def chain(tag: str, length: int) -> int:
    return sum([await effect(tag, phase) for phase in range(length)])


async def rate(callers: int, call: Callable[[int], Awaitable[int]], expected: Callable[[int], int]) -> float:
    """Calls a second, whose results are as expected."""
    finished = 0
    end = time.monotonic() + SECONDS

    async def caller(number: int) -> None:
        nonlocal finished
        while time.monotonic() < end:
            assert await call(number) == expected(number)
            finished += 1

    before = time.monotonic()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    return finished / (time.monotonic() - before)


async def throughput() -> dict[str, float]:
    async def one(x: int) -> int:
        return await (await measured["one_step"].start(x)).result()

    async def ten(x: int) -> int:
        return await (await measured["ten_steps"].start(x)).result()

    async with app, app.worker(concurrency=400):
        await asyncio.gather(*(one(number) for number in range(100)))
        return {
            "runs": await rate(200, one, lambda x: x + 1),
            "steps": 10 * await rate(100, ten, lambda x: x + 10),
        }


async def latency() -> dict[str, float]:
    taken: list[float] = []
    async with app:
        for number in range(40):
            before = time.monotonic()
            assert await (await measured["one_step"].start(number)).result() == number + 1
            taken.append((time.monotonic() - before) * 1000)
            await asyncio.sleep(0.03)
    return {"p50": statistics.median(taken), "p95": sorted(taken)[int(len(taken) * 0.95)]}


def read_ledger() -> list[str]:
    return Path(os.environ[LEDGER]).read_text().split("\n")[:-1]


async def survive() -> dict[str, Any]:
    async with app:
        handles = [await chain.options(id=f"run-{number}").start(f"run-{number}", LINKS) for number in range(SURVIVORS)]
        print("started", file=sys.stderr, flush=True)
        wrong = 0
        for handle in handles:
            wrong += await handle.result(timeout=120) != sum(range(LINKS))
    lines = read_ledger()
    steps = {" ".join(line.split()[:2]) for line in lines}
    return {"runs": len(handles), "wrong": wrong, "steps": len(steps), "repeated": len(lines) - len(steps)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    trials: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "throughput": throughput,
        "latency": latency,
        "survive": survive,
    }

    async def main() -> dict[str, Any]:
        return await trials[sys.argv[1]]()

    print(json.dumps(asyncio.run(main())))

"""The app whose worker processes `python -m benchmarks.scaling` counts: a step that computes for 0.2 ms."""

from __future__ import annotations

import time

from kagzi import Kagzi

OWN_CPU_NS = 200_000

app = Kagzi()


@app.step
async def compute(x: int) -> int:
    end = time.thread_time_ns() + OWN_CPU_NS
    while time.thread_time_ns() < end:
        pass
    return x + 1


@app.workflow
async def computing(x: int) -> int:
    return await compute(x)

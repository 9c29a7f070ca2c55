"""Many runs, one after the other: does the server keep anything of them?"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import linear_regression, mean

from benchmarks.server.bars import Verdict
from benchmarks.server.site import Site
from benchmarks.server.workers import define
from benchmarks.systems.processes import memory_mb
from kagzi import Kagzi

CALLERS = 200
SLOTS = 400
SAMPLE_RUNS = 50_000
FEWEST_SAMPLES = 20
# Until pools are filled, caches full and the allocator has settled; half of a shorter measurement, which tells little.
WARMUP_RUNS = 200_000
# A line through the samples after that may rise by this share of their mean, from their first to their last.
MOST_GROWTH_PERCENT = 5


@dataclass(frozen=True, slots=True)
class Sample:
    runs: int
    server_mb: float
    worker_mb: float
    client_mb: float


async def memory(site: Site, runs: int, say: Callable[[str], None]) -> tuple[list[Verdict], list[Sample]]:
    worker = await site.start_workers(1, slots=SLOTS)
    app = Kagzi(site.url)
    flow = define(app)["one_step"]
    every = min(SAMPLE_RUNS, runs // FEWEST_SAMPLES)
    samples: list[Sample] = []
    started = done = 0
    begin = time.perf_counter()

    def look() -> None:
        pids = (site.server.pid, worker.pid, os.getpid())
        samples.append(Sample(done, *(memory_mb(pid) for pid in pids)))
        rate = done / (time.perf_counter() - begin)
        say(f"memory: {done:,} runs, {rate:,.0f} a second, server {samples[-1].server_mb:.1f} MB")

    async def caller() -> None:
        nonlocal started, done
        while started < runs:
            started += 1
            number = started
            run = await flow.start(number)
            if await run.result(timeout=120) != number + 1:
                raise RuntimeError(f"one_step({number}) returned something else")
            done += 1
            if done % every == 0:
                look()

    async with app:
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    finished = await site.ask("SELECT count(*) FROM kagzi.workflow_runs WHERE status = 'COMPLETED'")
    if finished != runs:
        raise RuntimeError(f"{finished} of {runs} runs are completed")
    title = f"memory over {runs:,} runs"
    return [
        Verdict(f"{title}: growth of the server", growth(samples, "server_mb"), "%", MOST_GROWTH_PERCENT),
        Verdict(f"{title}: the server holds", samples[-1].server_mb, "MB"),
        Verdict(f"{title}: growth of the worker", growth(samples, "worker_mb"), "%"),
        Verdict(f"{title}: growth of the client", growth(samples, "client_mb"), "%"),
    ], samples


def growth(samples: list[Sample], process: str) -> float:
    """By how much a line through the samples after the warm-up rises, in percent."""
    warmup = min(WARMUP_RUNS, samples[-1].runs // 2)
    warm = [sample for sample in samples if sample.runs >= warmup]
    runs = [sample.runs for sample in warm]
    held = [float(getattr(sample, process)) for sample in warm]
    slope, _ = linear_regression(runs, held)
    return 100 * slope * (runs[-1] - runs[0]) / mean(held)

"""The workloads, written once against the few things every system can do.

A script implements `System` and calls `main`. Time is taken here and nowhere else, apart from the
`stopwatch` that workflow functions hold.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol, runtime_checkable

from benchmarks.systems.channel import Channel
from benchmarks.systems.stopwatch import stopwatch
from benchmarks.workloads import GROWTH, WORKLOADS, Sizes, Task, Values

COUNT_EVERY_SECONDS = 0.025
PATIENCE_SECONDS = 120.0
PARALLEL_STEPS = 200
CHILDREN = 1000
UNTIL_PARKED_SECONDS = 0.3
UNTIL_THERE_SECONDS = 3.0  # a worker that has a process of its own
TOLD_FIRST = 3  # to warm up


@dataclass(frozen=True, slots=True)
class Rows:
    """What the database says after the clock has stopped."""

    finished_runs: int
    steps: int
    wrong_outputs: int


class System(Protocol):
    """One system under test. `counted`: completion is learnt by counting finished rows."""

    counted: bool
    times_itself: bool

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def run(self, workflow: str, x: int) -> Any:
        """From the start to the result."""
        ...

    async def start(self, workflow: str, x: int) -> Any: ...
    async def result(self, handle: Any) -> Any: ...
    async def count_finished(self) -> int: ...
    async def rows(self, workflow: str) -> Rows: ...


@runtime_checkable
class Talking(Protocol):
    """A system whose runs can be told something."""

    async def tell(self, handle: Any, x: int) -> None: ...


@runtime_checkable
class Inspected(Protocol):
    """A system whose own demands are measured too: Kagzi."""

    async def idle(self) -> Values: ...
    async def extras(self, runs: int, steps: int) -> Values: ...


class WrongAnswer(Exception):
    """A system lost or invented work, or returned something else than it was asked for."""


def expected(workflow: str, x: int) -> int:
    """What a workflow returns for an input: the same functions in every system."""
    match workflow:
        case "one_step":
            return x + 1
        case "ten_steps":
            return x + 10
        case "hundred_steps":
            return x + 100
        case "parallel_steps":
            return sum(x + i + 1 for i in range(PARALLEL_STEPS))
        case "family":
            return sum(x + i + 1 for i in range(CHILDREN))
        case "many_steps" | "sleeper" | "told":
            return x
    raise ValueError(workflow)


def main(make: Callable[[Task], System]) -> None:
    """Run the task of the command line and report; never let a library keep the process alive."""
    channel = Channel()
    code = 0
    try:
        channel.result(asyncio.run(_measure(make, channel.task(), channel)))
    except WrongAnswer as wrong:
        channel.wrong(str(wrong))
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


async def _measure(make: Callable[[Task], System], task: Task, channel: Channel) -> Values:
    system = make(task)
    await system.open()
    bench = Bench(system, task.workload, task.sizes)
    try:
        values = await bench.run(channel)
        await bench.check()
    finally:
        await system.close()
    if isinstance(system, Inspected):
        values |= await system.extras(bench.started, bench.started * task.sizes.steps)
    return values


class Bench:
    """One workload on one system: warm up, measure, and compare rows and outputs."""

    def __init__(self, system: System, key: str, sizes: Sizes) -> None:
        self._system = system
        self._key = key
        self._workflow = {**WORKLOADS, **GROWTH}[key].workflow
        self._sizes = sizes
        # The input of `many_steps` says how many; the others get a number of their own.
        self._inputs = itertools.repeat(sizes.steps) if key in GROWTH else itertools.count()
        self.started = 0
        self._before = Rows(0, 0, 0)

    async def run(self, channel: Channel) -> Values:
        self._before = await self._system.rows(self._workflow)
        channel.progress("warming up")
        await self._together(self._sizes.warmup)
        channel.progress("measuring")
        match self._key:
            case "w1" | "w2":
                return await self._throughput()
            case "w3":
                return await self._latency()
            case "signal" if isinstance(self._system, Talking):
                return await self._told(self._system)
            case "w4" | "w5" | "children" | "short_run" | "long_run":
                return await self._single_runs()
            case "w6":
                return await self._sleepers()
            case "idle" | "memory" if isinstance(self._system, Inspected):
                await self._throughput()
                return await self._system.idle()
        raise ValueError(self._key)

    async def check(self) -> None:
        """Rows and outputs, after the clock: as many as were started, each with its own result."""
        rows = await self._system.rows(self._workflow)
        want = (self.started, self.started * self._sizes.steps, 0)
        before = self._before
        have = (rows.finished_runs - before.finished_runs, rows.steps - before.steps, rows.wrong_outputs)
        if self._key in ("children", "signal"):  # of which every system keeps other rows
            want, have = (want[0], 0, 0), (have[0], 0, have[2])
        if have != want:
            raise WrongAnswer(f"(runs, steps, wrong outputs): expected {want}, found {have}")

    def _next_input(self) -> int:
        self.started += 1
        return next(self._inputs)

    async def _start(self) -> tuple[int, Any]:
        x = self._next_input()
        return x, await self._system.start(self._workflow, x)

    async def _one(self) -> int:
        x = self._next_input()
        self._compare(x, await self._system.run(self._workflow, x))
        return x

    def _compare(self, x: int, answer: Any) -> None:
        if answer != expected(self._workflow, x):
            raise WrongAnswer(f"{self._workflow}({x}) returned {answer!r}")

    async def _together(self, runs: int) -> None:
        await asyncio.gather(*(self._one() for _ in range(runs)))

    async def _throughput(self) -> Values:
        before, begin = self.started, time.perf_counter()
        deadline = begin + self._sizes.seconds
        if self._system.counted:
            await self._callers_counted(deadline)
        else:
            await self._callers_waiting(deadline)
        elapsed = time.perf_counter() - begin
        runs = self.started - before
        return {
            "runs_per_second": runs / elapsed,
            "steps_per_second": runs * self._sizes.steps / elapsed,
            "runs": runs,
            "seconds": elapsed,
        }

    async def _callers_waiting(self, deadline: float) -> None:
        async def caller() -> None:
            while time.perf_counter() < deadline:
                await self._one()

        await asyncio.gather(*(caller() for _ in range(self._sizes.callers)))

    async def _callers_counted(self, deadline: float) -> None:
        """Each caller may be two runs ahead of what the last count has seen, so none runs dry."""
        room = asyncio.Semaphore(2 * self._sizes.callers)

        async def caller() -> None:
            while time.perf_counter() < deadline:
                try:
                    await asyncio.wait_for(room.acquire(), deadline - time.perf_counter())
                except TimeoutError:
                    return
                await self._start()

        def freed(runs: int) -> None:
            for _ in range(runs):
                room.release()

        stop = asyncio.Event()
        counting = asyncio.create_task(self._count_until(stop, freed))
        await asyncio.gather(*(caller() for _ in range(self._sizes.callers)))
        stop.set()
        await counting

    async def _count_until(self, stop: asyncio.Event, freed: Callable[[int], None]) -> None:
        """Tell how many runs have finished since the last count, until all of them have."""
        seen = await self._system.count_finished()
        last_change = time.perf_counter()
        while not (stop.is_set() and seen >= self.started):
            await asyncio.sleep(COUNT_EVERY_SECONDS)
            now = await self._system.count_finished()
            if now > seen:
                freed(now - seen)
                seen, last_change = now, time.perf_counter()
            elif time.perf_counter() - last_change > PATIENCE_SECONDS:
                raise WrongAnswer(f"{self.started - seen} runs did not finish")

    async def _latency(self) -> Values:
        """One caller, one run at a time; the pauses differ, so as not to fall in step with polls."""
        samples: list[float] = []
        deadline = time.perf_counter() + self._sizes.seconds
        while len(samples) < self._sizes.runs or time.perf_counter() < deadline:
            await asyncio.sleep(0.01 + 0.003 * (len(samples) % 11))
            begin = time.perf_counter()
            await self._one()
            samples.append((time.perf_counter() - begin) * 1000)
        return {
            "p50_ms": median(samples),
            "p95_ms": percentile(samples, 0.95),
            "runs": len(samples),
        }

    async def _told(self, system: Talking) -> Values:
        """From the call that tells a run something to its end: that of its function for peers, who would ask again and
        again for the result. And, where the function says so, until it goes on."""
        samples: list[float] = []
        going_on: list[float] = []
        for number in range(TOLD_FIRST + self._sizes.runs):
            x, handle = await self._start()
            await asyncio.sleep(UNTIL_PARKED_SECONDS if number else UNTIL_THERE_SECONDS)
            begin = time.perf_counter()
            stopwatch.begin(x)
            await system.tell(handle, x)
            self._compare(x, await self._system.result(handle))
            whole = time.perf_counter() - begin
            went_on = stopwatch.seconds()
            samples.append((went_on[x] if self._system.times_itself else whole) * 1000)
            if x in went_on:
                going_on.append(went_on[x] * 1000)
        del samples[:TOLD_FIRST], going_on[:TOLD_FIRST]
        values = {"p50_ms": median(samples), "p95_ms": percentile(samples, 0.95), "runs": len(samples)}
        return values | ({"goes_on_p50_ms": median(going_on)} if going_on else {})

    async def _single_runs(self) -> Values:
        samples: list[float] = []
        deadline = time.perf_counter() + self._sizes.seconds
        while len(samples) < self._sizes.runs or time.perf_counter() < deadline:
            begin = time.perf_counter()
            x = await self._one()
            whole = time.perf_counter() - begin
            seconds = stopwatch.seconds()[x] if self._system.times_itself else whole
            samples.append(seconds * 1000)
        middle = median(samples)
        return {"ms": middle, "ms_per_step": middle / self._sizes.steps, "runs": len(samples)}

    async def _sleepers(self) -> Values:
        begin = time.perf_counter()
        if self._system.counted:
            await self._within(self._sizes.callers, self._start)
            done = asyncio.Event()
            done.set()
            await self._count_until(done, lambda _: None)
        else:
            starting = asyncio.Semaphore(self._sizes.callers)

            async def sleeper() -> None:
                async with starting:
                    x, handle = await self._start()
                self._compare(x, await self._system.result(handle))

            await asyncio.gather(*(sleeper() for _ in range(self._sizes.runs)))
        total = time.perf_counter() - begin
        late = [(seconds - self._sizes.sleep_seconds) * 1000 for seconds in stopwatch.seconds().values()]
        if len(late) != self._sizes.runs or min(late) < -1:  # a clock may be read a little early
            raise WrongAnswer(f"{len(late)} runs woke, the first {min(late):.1f} ms late")
        return {
            "p99_late_ms": percentile(late, 0.99),
            "p50_late_ms": median(late),
            "total_seconds": total,
            "runs": len(late),
        }

    async def _within(self, callers: int, go: Callable[[], Awaitable[Any]]) -> None:
        async def caller(share: int) -> None:
            for _ in range(share):
                await go()

        share, rest = divmod(self._sizes.runs, callers)
        await asyncio.gather(*(caller(share + (i < rest)) for i in range(callers)))


def percentile(samples: list[float], fraction: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]

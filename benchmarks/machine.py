"""The limits of the machine: what no engine that commits to this disk can be faster than."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg

from benchmarks.environments import bench_directory

PAGE = b"\0" * 8192


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    processor: str
    memory_gb: float
    system: str
    python: str
    load_before: float
    fsync_ms: float
    commit_ms: float | None = None
    commits_per_second: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        lines = [
            f"{self.cores} cores, {self.processor}, {self.memory_gb:.0f} GB, {self.system}, "
            f"Python {self.python}, load {self.load_before:.1f} before the run",
            f"write and fsync of 8 kB: {self.fsync_ms:.3f} ms",
        ]
        if self.commit_ms is not None and self.commits_per_second is not None:
            lines.append(
                f"PostgreSQL, commit of one inserted row: {self.commit_ms:.3f} ms on one connection, "
                f"{self.commits_per_second:,.0f} a second on eight"
            )
        return lines


async def look(url: str | None, *, seconds: float) -> Machine:
    """Measure the disk, and the server at `url` if there is one, for `seconds` each."""
    commit_ms = commits_per_second = None
    if url is not None:
        commit_ms, commits_per_second = await _commits(url, seconds)
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        processor=_processor(),
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        load_before=os.getloadavg()[0],
        fsync_ms=_fsync(seconds),
        commit_ms=commit_ms,
        commits_per_second=commits_per_second,
    )


class Stolen:
    """How much of the processors the host of a virtual machine has given to others, of what was asked for since."""

    def __init__(self) -> None:
        self._before = _processor_ticks()

    def percent(self) -> float:
        busy, stolen = (now - before for now, before in zip(_processor_ticks(), self._before, strict=True))
        return 100 * stolen / max(1, busy + stolen)


def _processor_ticks() -> tuple[int, int]:
    """Busy ones and stolen ones; where the system does not tell, there are none."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0, 0
    user, nice, system, _, _, irq, softirq, stolen = (int(ticks) for ticks in first.split()[1:9])
    return user + nice + system + irq + softirq, stolen


def _fsync(seconds: float) -> float:
    samples: list[float] = []
    with tempfile.TemporaryFile(dir=bench_directory()) as file:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            begin = time.perf_counter()
            os.pwrite(file.fileno(), PAGE, 0)
            os.fsync(file.fileno())
            samples.append((time.perf_counter() - begin) * 1000)
    return median(samples)


async def _commits(url: str, seconds: float) -> tuple[float, float]:
    admin = await asyncpg.connect(url)
    await admin.execute("CREATE TABLE bench_commits (id bigserial PRIMARY KEY, value text)")
    try:
        alone = await _insert(url, seconds)
        together = await asyncio.gather(*(_insert(url, seconds) for _ in range(8)))
    finally:
        await admin.execute("DROP TABLE bench_commits")
        await admin.close()
    return median(alone), sum(len(samples) for samples in together) / seconds


async def _insert(url: str, seconds: float) -> list[float]:
    samples: list[float] = []
    connection = await asyncpg.connect(url)
    try:
        insert = await connection.prepare("INSERT INTO bench_commits (value) VALUES ($1)")
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            begin = time.perf_counter()
            await insert.fetch("one row")
            samples.append((time.perf_counter() - begin) * 1000)
    finally:
        await connection.close()
    return samples


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"

"""W1 and W2 in one process, to be counted.

The engine, the worker and the definitions are the real ones, on SQLite in memory and on virtual time. No thread and no
clock decides how many writes share a commit, so the program does the same at each run. What it leaves out, the driver
and the statements of PostgreSQL, is counted in `backend.py`.

A segment is what is done between two marks, see `callgrind.py`.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from benchmarks.systems.driver import expected
from benchmarks.systems.kagzi_workflows import define
from kagzi import Kagzi
from kagzi.testing import run_virtually

# How many units of work (runs of W1, steps of W2) a segment does.
UNITS: Final[Mapping[str, int]] = {"calibration": 1, "W1 run": 400, "W2 step": 1000}

_Job = Callable[[], Awaitable[None]]


async def _callers(workflow: Any, name: str, callers: int, each: int) -> None:
    async def call(x: int) -> None:
        for _ in range(each):
            assert await workflow.run(x) == expected(name, x)

    await asyncio.gather(*(call(x) for x in range(callers)))


class _Record(msgspec.Struct, frozen=True):
    number: int
    text: str
    values: tuple[int, ...]


class _Box:
    __slots__ = ("found", "waiting")

    def __init__(self) -> None:
        self.found: dict[str, _Record] = {}
        self.waiting: list[asyncio.Future[_Record]] = []

    def put(self, record: _Record) -> None:
        self.found[record.text] = record
        for future in self.waiting:
            future.set_result(record)
        self.waiting.clear()


async def _calibrate() -> None:
    """Does what programs of this kind do, without Kagzi: tasks, futures, records, bytes, rows. An interpreter that is
    built or patched differently takes more or fewer instructions for this, and about as many more or fewer for us."""
    box = _Box()

    async def wait(number: int) -> int:
        future = asyncio.get_running_loop().create_future()
        box.waiting.append(future)
        record = await future
        return record.number + number

    for number in range(300):
        tasks = [asyncio.ensure_future(wait(each)) for each in range(5)]
        await asyncio.sleep(0)
        data = msgspec.json.encode(_Record(number, f"number {number}", tuple(range(5))))
        box.put(msgspec.json.decode(data, type=_Record))
        assert sum(await asyncio.gather(*tasks)) == 5 * number + 10
    _store(len(box.found))


def _store(most: int) -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute("CREATE TABLE item (id TEXT PRIMARY KEY, due INTEGER, body BLOB) WITHOUT ROWID")
    database.execute("CREATE INDEX item_due ON item (due) WHERE due IS NOT NULL")
    for start in range(0, 3000, most):
        database.execute("BEGIN")
        rows = [(f"item {start + number}", number, b"body") for number in range(most)]
        database.executemany("INSERT INTO item VALUES (?, ?, ?)", rows)
        for name, due, _ in rows[::2]:
            database.execute("UPDATE item SET due = ? WHERE id = ? RETURNING due", (due + 1, name)).fetchall()
        database.execute("SELECT * FROM item WHERE due > ? ORDER BY due LIMIT 50", (most // 2,)).fetchall()
        database.execute("COMMIT")
    database.close()


def jobs(app: Kagzi) -> Mapping[str, _Job]:
    """Returns the segments by their names."""
    workflows = define(app)
    return {
        "calibration": _calibrate,
        "W1 run": lambda: _callers(workflows["one_step"], "one_step", callers=200, each=2),
        "W2 step": lambda: _callers(workflows["ten_steps"], "ten_steps", callers=100, each=1),
    }


def run(mark: Callable[[str], None]) -> None:
    """Does everything once to warm up, then once more, with a mark before and behind each segment."""
    app = Kagzi()
    segments = jobs(app)

    async def main() -> None:
        for job in segments.values():
            await job()  # what is made once is there when it is counted
        for name, job in segments.items():
            gc.collect()
            mark(name)
            await job()
            mark(name)

    run_virtually(app, main, concurrency=400)

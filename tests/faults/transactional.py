"""Workers that are killed while a step's transaction is being committed.

    python -m tests.faults.transactional URL KILLS SEED
    python -m tests.faults.transactional URL DIRECTORY     # a worker whose step waits for the file `go-on`

Each is a child process that drives what is due and kills itself with SIGKILL, at one of three points of one of its
commits, until there were so many; then one is left alone with the rest.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import kagzi
from kagzi import Kagzi, Retry

STEPS = 4
POINTS = ("body over", "chunk applied", "committed")


def make(url: str) -> tuple[Kagzi, Any]:
    app = Kagzi(url, lease="1s", max_crashes=1000)
    postgres = url.startswith("postgresql")

    @app.step(transaction=True, retry=Retry(attempts=1))
    async def enter(run: str, number: int) -> int:
        connection = kagzi.connection()
        if postgres:
            await connection.execute("INSERT INTO entries VALUES ($1, $2)", run, number)
        else:
            connection.execute("INSERT INTO entries VALUES (?, ?)", (run, number))
        return number

    @app.step(transaction=True, retry=Retry(attempts=1))
    def enter_sync(run: str, number: int) -> int:
        connection = kagzi.connection()
        connection.execute(f"INSERT INTO entries VALUES {'(%s, %s)' if postgres else '(?, ?)'}", (run, number))
        return number

    @app.workflow
    async def order(run: str) -> list[int]:
        first = [await (enter_sync if number % 2 else enter)(run, number) for number in range(STEPS - 2)]
        return first + list(await asyncio.gather(*(enter(run, number) for number in range(STEPS - 2, STEPS))))

    return app, order


def make_held(url: str, directory: Path) -> tuple[Kagzi, Any]:
    app = Kagzi(url, lease="1s")

    @app.step(transaction=True)
    async def enter() -> int:
        await kagzi.connection().execute("INSERT INTO entries VALUES ('held', $1)", os.getpid())
        (directory / f"begun-{os.getpid()}").touch()
        while not (directory / "go-on").exists():
            await asyncio.sleep(0.01)
        return os.getpid()

    @app.workflow
    async def hold() -> int:
        return await enter()

    return app, hold


def die_at(point: str, countdown: int) -> None:
    """Kill this process at that point of a commit from now."""
    left = countdown

    def maybe(here: str) -> None:
        nonlocal left
        if here == point:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    from kagzi.store.postgres import body_links
    from kagzi.store.postgres import transactions as postgres
    from kagzi.store.sqlite import transactions as sqlite

    for kind in (postgres.PostgresTransaction, sqlite.SqliteTransaction):
        _around(kind, "commit", lambda: maybe("body over"), lambda: maybe("committed"))
    for link in (body_links._Asyncpg, body_links._Psycopg):
        _around(link, "commit", lambda: maybe("chunk applied"), lambda: None)
    apply = sqlite.apply_chunks

    def applied(*args: Any) -> Any:
        answer = apply(*args)
        maybe("chunk applied")
        return answer

    sqlite.apply_chunks = applied


def _around(kind: Any, name: str, before: Any, after: Any) -> None:
    method = getattr(kind, name)

    async def call(self: Any, *args: Any) -> Any:
        before()
        answer = await method(self, *args)
        after()
        return answer

    setattr(kind, name, call)


def work(url: str, ids: list[str], point: str | None, countdown: int) -> None:
    """A child: works until it dies, or until all runs are done."""
    if point is not None:
        die_at(point, countdown)
    app, order = make(url)

    async def main() -> None:
        async with app, app.worker(concurrency=3):
            for id in ids:
                run = await order.options(id=id).start(id)
                assert await run.result(timeout=240) == list(range(STEPS))

    asyncio.run(main())


def kill_many(url: str, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    ids = [f"order-{number}" for number in range(max(3, kills))]

    async def begin() -> None:
        app, order = make(url)
        async with app:
            for id in ids:
                await order.options(id=id).start(id)

    asyncio.run(begin())
    died = {point: 0 for point in POINTS}
    for _ in range(kills * 3):  # one that finds less to do than its countdown ends by itself
        if sum(died.values()) >= kills:
            break
        point = chance.choice(POINTS)
        if _child(url, ids, point, chance.randint(1, 3)) == -signal.SIGKILL:
            died[point] += 1
    assert _child(url, ids, None, 0) == 0
    print(f"killed {sum(died.values())} times: {died}")


def _child(url: str, ids: list[str], point: str | None, countdown: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(url, ids, point, countdown)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        make_held(sys.argv[1], Path(sys.argv[2]))[0].run_worker()
    else:
        kill_many(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

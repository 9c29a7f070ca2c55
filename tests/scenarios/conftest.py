"""Where scenarios take place.

- `home`: the URL of a home of the test's own, for programs that open themselves. The test runs at each of the four:
  {SQLite, PostgreSQL} x {in process, gRPC}.
- `stage`: where a program is opened and gets a worker, for scenarios that may also run on virtual time. The test runs
  there and at each home; what waits for long, or says how late something may be, asks the stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from kagzi import Kagzi
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.rpc.server.server import RpcServer
from kagzi.testing import run_virtually

HOMES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    "sqlite-grpc",
    pytest.param("postgres-grpc", marks=pytest.mark.postgres),
]
# Behind a server a worker hears with its heartbeat that a run is cancelled: ten seconds would be long for a test.
HEARTBEAT = SECOND // 5


@asynccontextmanager
async def served(url: str, **settings: int) -> AsyncIterator[str]:
    """A server on this database, and its address."""
    engine = connect(url, **settings)
    await engine.open()
    try:
        async with RpcServer(engine) as server:  # type: ignore[arg-type]
            yield f"grpc://{server.target}"
    finally:
        await engine.close()


class Place:
    """A database, and whether programs come to it through a server."""

    def __init__(self, name: str, request: pytest.FixtureRequest, directory: Path) -> None:
        database, _, wire = name.partition("-")
        self._behind_server = bool(wire)
        self._url: str
        if database == "sqlite":
            self._url = f"sqlite:///{directory / 'kagzi.db'}"
        else:
            self._url = request.getfixturevalue("postgres_database")

    @asynccontextmanager
    async def url(self) -> AsyncIterator[str]:
        if self._behind_server:
            async with served(self._url, heartbeat=HEARTBEAT) as address:
                yield address
        else:
            yield self._url


@pytest.fixture(params=HOMES)
async def home(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with Place(request.param, request, tmp_path).url() as url:
        yield url


class Stage(Protocol):
    lateness: float  # the most seconds by which something may be late here

    def run(self, app: Kagzi, main: Callable[[], Awaitable[Any]], *, concurrency: int = 100) -> Any:
        """Open the app here with a worker beside it, await `main()`, return its result."""

    async def linger(self, seconds: float) -> None:
        """Let time pass in which nothing is to happen, where it costs nothing."""


class OnVirtualTime:
    lateness = 0.1

    def run(self, app: Kagzi, main: Callable[[], Awaitable[Any]], *, concurrency: int = 100) -> Any:
        return run_virtually(app, main, concurrency=concurrency)

    async def linger(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class AtHome:
    lateness = 60.0  # cores may be busy with other tests

    def __init__(self, place: Place) -> None:
        self._place = place

    def run(self, app: Kagzi, main: Callable[[], Awaitable[Any]], *, concurrency: int = 100) -> Any:
        async def scenario() -> Any:
            async with self._place.url() as url:
                app.url = url
                async with app, app.worker(concurrency=concurrency):
                    return await main()

        return asyncio.run(scenario())

    async def linger(self, seconds: float) -> None:
        """Not here."""


@pytest.fixture(params=["virtual", *HOMES])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    if request.param == "virtual":
        return OnVirtualTime()
    return AtHome(Place(request.param, request, tmp_path))


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not look():
            await asyncio.sleep(0.01)

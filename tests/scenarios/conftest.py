"""Where scenarios take place.

- `home`: the URL of a home of the test's own, for programs that open themselves. The test runs at three: on SQLite, on
  PostgreSQL, and behind a server on one of the two. Half of the tests have the one, half the other: what a store does
  is seen in process, and what the wire does on either.
- `stage`: where a program is opened and gets a worker, for scenarios that may also run on virtual time. The test runs
  there and at each home; what waits for long, or says how late something may be, asks the stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol
from zlib import crc32

import pytest

from kagzi import Kagzi
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.rpc.server.server import RpcServer
from kagzi.testing import run_virtually

ON_POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
SERVED = ("sqlite-grpc", pytest.param("postgres-grpc", marks=pytest.mark.postgres))
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

    def __init__(self, name: str, request: pytest.FixtureRequest) -> None:
        database, _, wire = name.partition("-")
        self._behind_server = bool(wire)
        self._url: str
        if database == "sqlite":
            self._url = f"sqlite:///{request.getfixturevalue('sqlite_file')}"
        else:
            self._url = request.getfixturevalue("postgres_database")

    @asynccontextmanager
    async def url(self) -> AsyncIterator[str]:
        if self._behind_server:
            async with served(self._url, heartbeat=HEARTBEAT) as address:
                yield address
        else:
            yield self._url


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives a test its homes, unless it names them itself."""
    named = {name for mark in metafunc.definition.iter_markers("parametrize") for name in str(mark.args[0]).split(",")}
    served = SERVED[crc32(metafunc.definition.nodeid.encode()) % 2]
    for fixture, others in (("home", []), ("stage", ["virtual"])):
        if fixture in metafunc.fixturenames and fixture not in named:
            metafunc.parametrize(fixture, [*others, "sqlite", ON_POSTGRES, served], indirect=True)


@pytest.fixture
async def home(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with Place(request.param, request).url() as url:
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


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Stage:
    if request.param == "virtual":
        return OnVirtualTime()
    return AtHome(Place(request.param, request))


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not look():
            await asyncio.sleep(0.01)

"""A primary that dies, hangs or comes back as a replica, and stores that find the new one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from kagzi.api.operations import Started
from kagzi.errors import Unavailable
from kagzi.store.postgres import connection as connection_module
from kagzi.store.postgres import pool as pool_module
from kagzi.store.postgres.connection import Connector
from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import Bench
from kagzi.testing.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.faults]

# What a replica must have before a write is acknowledged; without it the last ones may be lost with the primary.
SYNCHRONOUS = {"synchronous_standby_names": "*"}


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and its replica."""
    with PostgresServer() as primary, PostgresServer(replica_of=primary) as replica:
        yield primary, replica


def both(*servers: PostgresServer) -> str:
    hosts = ",".join(server.host for server in servers)
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    store = PostgresStore(url, now=clock.now)
    await store.open()
    try:
        yield Bench(store, clock)
    finally:
        await store.close()


async def test_acknowledged_starts_survive_a_failover(pair: tuple[PostgresServer, PostgresServer]) -> None:
    primary, replica = pair
    acknowledged: list[str] = []
    async with opened(both(primary, replica)) as bench:
        await _synchronous(primary)
        unknown = asyncio.Queue[bool]()
        listening = asyncio.create_task(
            bench.store.wakeups.listen(lambda _: None, lambda _, __: None, lambda: unknown.put_nowait(True))
        )
        await unknown.get()
        stop = asyncio.Event()
        starting = [asyncio.create_task(_start_runs(bench, acknowledged, stop)) for _ in range(4)]
        await _more(acknowledged, 50)

        await asyncio.to_thread(primary.stop, "immediate")
        await asyncio.to_thread(replica.promote)
        loop = asyncio.get_running_loop()
        promoted = loop.time()
        await _more(acknowledged, 50)
        assert loop.time() - promoted < 15  # a second or two, where nothing else runs
        async with asyncio.timeout(60):
            await unknown.get()  # wake-ups are heard from the new primary, too

        # The old primary is back, first in the URL, and takes no writes.
        primary.demote()
        await asyncio.to_thread(primary.start)
        for line in (*bench.store._lanes, *bench.store._pool._lines):  # type: ignore[attr-defined]
            line._good_until = 0.0
        await _more(acknowledged, 50)

        stop.set()
        await asyncio.gather(*starting)
        runs = [await bench.store.runs.get("default", run_id) for run_id in acknowledged]
        assert all(run is not None for run in runs)
    await asyncio.wait_for(listening, 30)


async def test_a_primary_that_hangs_is_left(
    pair: tuple[PostgresServer, PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host still takes connections, and nobody answers on them: neither on old ones nor on new ones."""
    primary, replica = pair
    monkeypatch.setattr(pool_module, "_SILENCE_SECONDS", 3.0)
    async with opened(both(primary, replica)) as bench:
        for _ in range(3):
            await asyncio.gather(*(bench.store.overview.horizon([]) for _ in range(4)))
        await bench.start()
        await _caught_up(primary)
        async with _frozen(primary):
            await asyncio.to_thread(replica.promote)
            loop = asyncio.get_running_loop()
            before = loop.time()
            # One of them finds out; the others need not wait for it each on their own.
            await bench.store.overview.horizon([])
            for _ in range(5):
                await asyncio.gather(*(bench.store.overview.horizon([]) for _ in range(4)))
            await bench.start()
            assert loop.time() - before < 12  # three seconds for one of them; for each in turn it would be twenty


async def test_a_dead_host_does_not_use_up_the_time_of_the_others(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was switched off answers nothing at all; the driver would wait for it until the end."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        connector = Connector(f"postgresql://postgres@{host},{postgres_server.host}/postgres?connect_timeout=60")
        loop = asyncio.get_running_loop()
        before = loop.time()
        first = await connector.connect()
        assert loop.time() - before < 30
        monkeypatch.setattr(connection_module, "_HEAD_START_SECONDS", 60.0)
        before = loop.time()
        second = await connector.connect()  # it is asked first now
        assert loop.time() - before < 30
        await first.close()
        await second.close()


async def test_only_replicas_are_as_good_as_none(postgres_server: PostgresServer) -> None:
    await asyncio.to_thread(postgres_server.stop, "fast")
    postgres_server.demote()
    await asyncio.to_thread(postgres_server.start)
    for option in ("", "?pgbouncer=true"):
        with pytest.raises(Unavailable, match="takes no writes"):
            await Connector(postgres_server.url + option).connect()


async def test_connections_are_made_anew_after_a_time(postgres_server: PostgresServer) -> None:
    async with opened(postgres_server.url) as bench:
        await bench.start()
        (lane, *_) = bench.store._lanes  # type: ignore[attr-defined]
        old, lane._good_until = lane._connection, 0.0
        await bench.start()
        assert lane._connection is not old
        assert old.is_closed()
        # Better an old one than none.
        kept, lane._good_until = lane._connection, 0.0
        connector, lane._connector = lane._connector, Connector("postgresql://127.0.0.1:1/postgres")
        lane._connector.era = lane._era
        await bench.start()
        assert lane._connection is kept
        lane._connector = connector


async def _start_runs(bench: Bench, acknowledged: list[str], stop: asyncio.Event) -> None:
    while not stop.is_set():
        start = bench.start_run()
        while True:
            try:
                (answer,) = await bench.apply([start])
            except Unavailable:
                await asyncio.sleep(0.05)
                continue
            break
        assert isinstance(answer, Started)
        acknowledged.append(answer.run_id)


async def _more(acknowledged: list[str], count: int) -> None:
    wanted = len(acknowledged) + count
    async with asyncio.timeout(60):
        while len(acknowledged) < wanted:
            await asyncio.sleep(0.01)


async def _synchronous(primary: PostgresServer) -> None:
    connection = await Connector(primary.url).connect()
    for name, value in SYNCHRONOUS.items():
        await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    await connection.execute("SELECT pg_reload_conf()")
    async with asyncio.timeout(60):
        while not await connection.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"):
            await asyncio.sleep(0.05)
    await connection.close()


async def _caught_up(primary: PostgresServer) -> None:
    """The replica has everything."""
    connection = await Connector(primary.url).connect()
    async with asyncio.timeout(60):
        while not await connection.fetchval(
            "SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication"
        ):
            await asyncio.sleep(0.05)
    await connection.close()


@asynccontextmanager
async def _frozen(server: PostgresServer) -> AsyncIterator[None]:
    """Stops every process of a server, and lets them go on at the end."""
    connection = await Connector(server.url).connect()
    rows = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await connection.close()
    assert server.pid is not None
    pids = [server.pid, *(row["pid"] for row in rows)]
    _send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _send(pids, signal.SIGCONT)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def test_an_old_primary_that_takes_writes_is_left_for_the_new_one(
    pair: tuple[PostgresServer, PostgresServer],
) -> None:
    """Nobody has fenced it, and no connection to it breaks."""
    primary, replica = pair
    async with opened(both(primary, replica)) as bench:
        store = bench.store
        assert isinstance(store, PostgresStore)
        await store._primaries.look()
        assert await _port(store) == _port_of(primary)  # a replica is no newer primary
        await asyncio.to_thread(replica.promote)
        assert await _port(store) == _port_of(primary)
        await store._primaries.look()
        assert await _port(store) == _port_of(replica)
        await store._primaries.look()
        assert await _port(store) == _port_of(replica)
        assert all(connector.servers[0].count(replica.host) for connector in store._primaries._connectors)


async def _port(store: PostgresStore) -> int:
    port: int = await store._pool.run(lambda connection: connection.fetchval("SHOW port"))
    return int(port)


def _port_of(server: PostgresServer) -> int:
    return int(server.host.rpartition(":")[2])

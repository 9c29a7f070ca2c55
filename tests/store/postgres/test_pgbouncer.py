"""Nothing is kept in sessions: the store passes its suite that way, and behind a real PgBouncer.

With asyncpg as programs that embed the engine have it: other tests expect lists, as a server does (tests/conftest.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sized

import asyncpg
import pytest
import pytest_asyncio
from asyncpg.protocol import protocol

from kagzi.cli.doctor import examine
from kagzi.core.health import HealthStatus
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.schedule import Overlap
from kagzi.errors import InvalidRequest
from kagzi.settings import Loaded, Settings
from kagzi.store.postgres import firings
from kagzi.store.postgres.connection import Connector
from kagzi.store.postgres.pooled import PooledConnection
from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import *  # noqa: F403
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import NAMESPACE
from kagzi.testing.conformance.schedules import fire, made, runs, until
from kagzi.testing.pgbouncer import MISSING, PgBouncer, find_pgbouncer
from kagzi.testing.postgres import PostgresServer
from tests.postgres_databases import Databases
from tests.store.shared import NewBench, shared_store

pytestmark = [pytest.mark.postgres, pytest.mark.asyncio(loop_scope="module")]
needs_pgbouncer = pytest.mark.skipif(find_pgbouncer() is None, reason=MISSING)


@pytest.fixture(scope="module", autouse=True)
def any_sequence() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "IterableABC", Iterable)
        patch.setattr(protocol, "SizedABC", Sized)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pooled(postgres_databases: Databases) -> AsyncIterator[NewBench]:
    """Says itself what a PgBouncer would make it do, so that this needs none."""
    async with shared_store(postgres_databases, "?pgbouncer=true") as new:
        yield new


@pytest_asyncio.fixture(loop_scope="module")
async def bench(pooled: NewBench) -> Bench:
    return await pooled()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def bouncer(server: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(server, pool_size=3) as bouncer:
        yield bouncer


async def test_settings_hold_for_a_transaction_and_not_longer(postgres_database: str) -> None:
    connection = await Connector(f"{postgres_database}?pgbouncer=true").connect(statement_timeout="7s")
    assert isinstance(connection, PooledConnection)
    assert await connection.fetchval("SHOW statement_timeout") == "7s"
    assert await connection.fetchval("SHOW enable_seqscan") == "off"
    async with connection.transaction():
        assert await connection.fetchval("SHOW lock_timeout") == "1s"
    await connection.command("CREATE TABLE seen AS SELECT current_setting('enable_seqscan') AS value")
    assert await connection.fetchval("SELECT value FROM seen") == "on"
    assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
    await connection.close()


async def test_what_fails_is_undone_and_the_connection_goes_on(postgres_database: str) -> None:
    connection = await Connector(f"{postgres_database}?pgbouncer=true").connect()
    await connection.execute("CREATE TABLE seen (value int PRIMARY KEY)")

    async def insert_twice() -> None:
        async with connection.transaction():
            await connection.execute("INSERT INTO seen VALUES ($1)", 1)
            await connection.execute("INSERT INTO seen VALUES ($1)", 1)

    with pytest.raises(asyncpg.UniqueViolationError):
        await insert_twice()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await connection.fetch("SELECT 1 / $1::int", 0)
    assert not connection.is_in_transaction()
    assert await connection.fetchval("SELECT count(*) FROM seen") == 0
    await connection.close()


async def test_there_is_no_transaction_within_another(postgres_database: str) -> None:
    connection = await Connector(f"{postgres_database}?pgbouncer=true").connect()
    async with connection.transaction():
        with pytest.raises(AssertionError, match="no transaction within another"):
            connection.transaction()
        assert connection.is_in_transaction()
    await connection.close()


async def test_a_firing_that_fails_has_not_cancelled_the_run_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the firing is repeated, finds its own run live, and cancels that."""
    found = await made(bench, overlap=Overlap.CANCEL_PREVIOUS)
    until(bench, found.next_fire_at)
    await fire(bench)
    (first,) = await runs(bench, found)
    bench.clock.advance(60 * SECOND)
    move = firings._move

    async def broken(*args: object) -> None:
        raise InvalidRequest("planted")

    monkeypatch.setattr(firings, "_move", broken)
    with pytest.raises(InvalidRequest, match="planted"):
        await fire(bench)
    assert (await bench.run(first.run_id)).status is RunStatus.PENDING
    assert [run.run_id for run in await runs(bench, found)] == [first.run_id]
    monkeypatch.setattr(firings, "_move", move)
    (second,) = (await fire(bench)).runs
    assert (await bench.run(first.run_id)).status is RunStatus.CANCELLED
    assert (await bench.run(second.run_id)).status is RunStatus.PENDING


@pytest.mark.parametrize("option", ["true", "false", "auto"])
async def test_the_url_may_say_it(postgres_database: str, option: str) -> None:
    connector = Connector(f"{postgres_database}?pgbouncer={option}")
    connection = await connector.connect()
    assert connector.pooled is (option == "true")
    await connection.close()


async def test_an_option_that_says_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="pgbouncer in the PostgreSQL URL must be true, false or auto"):
        Connector("postgresql://localhost/shop?pgbouncer=maybe")


@needs_pgbouncer
@pytest.mark.parametrize("ignored", ["", "statement_timeout"])
async def test_it_is_noticed(server: PostgresServer, ignored: str) -> None:
    """Whether it refuses our settings, or says nothing and forgets them."""
    settings = Connector("postgresql:///")._settings
    ignoring = {"ignore_startup_parameters": ",".join(settings)} if ignored else {}
    with PgBouncer(server, settings=ignoring) as bouncer:
        connector = Connector(bouncer.url)
        connection = await connector.connect()
        assert connector.pooled
        assert await connection.fetchval("SHOW statement_timeout") == "10s"
        await connection.close()


@needs_pgbouncer
async def test_many_share_few_sessions(bouncer: PgBouncer, server: PostgresServer) -> None:
    """More connections than sessions, five processes that start at once, and not one statement lost."""
    await _create(server, "shared")
    clock = VirtualClock()
    stores = [PostgresStore(bouncer.url_of("shared"), now=clock.now) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    benches = [Bench(store, clock) for store in stores]

    async def use(number: int) -> None:
        bench = benches[number % 5]
        run_id = await bench.start(task_queue=f"queue-{number}", run_id=f"00000000-0000-7000-8000-{number:012x}")
        assert (await bench.run(run_id)).run_id == run_id
        await bench.store.overview.horizon([(NAMESPACE, f"queue-{number}")])

    await asyncio.gather(*(use(number) for number in range(100)))
    await asyncio.gather(*(store.close() for store in stores))
    connection = await asyncpg.connect(server.url_of("shared"))
    assert await connection.fetchval("SELECT count(*) FROM kagzi.workflow_runs") == 100
    assert await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = 'shared'") <= 4
    await connection.close()


@needs_pgbouncer
async def test_wake_ups_are_heard_on_another_way(bouncer: PgBouncer, server: PostgresServer) -> None:
    await _create(server, "heard")
    direct = server.url_of("heard")
    ours = PostgresStore(bouncer.url_of("heard"), listen_url=direct)
    theirs = PostgresStore(bouncer.url_of("heard"), listen_url=direct)
    await ours.open()
    heard: asyncio.Queue[object] = asyncio.Queue()
    ready = [asyncio.Event(), asyncio.Event()]
    tasks = [
        asyncio.create_task(ours.wakeups.listen(heard.put_nowait, lambda _, __: None, ready[0].set)),
        asyncio.create_task(theirs.wakeups.listen(heard.put_nowait, lambda _, __: None, ready[1].set)),
    ]
    async with asyncio.timeout(60):
        await ready[0].wait()
        await ready[1].wait()
        await ours.wakeups.announce([(NAMESPACE, "orders")], [])
        assert await heard.get() == (NAMESPACE, "orders")
        await theirs.wakeups.announce([(NAMESPACE, "letters")], [])
        assert await heard.get() == (NAMESPACE, "letters")
    assert heard.empty()  # nobody heard himself
    await ours.close()
    await theirs.close()
    await asyncio.gather(*tasks)


@needs_pgbouncer
async def test_without_another_way_listening_says_so_and_waits(
    bouncer: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(bouncer.url)
    await store.open()
    task = asyncio.create_task(store.wakeups.listen(lambda _: None, lambda _, __: None, lambda: None))
    async with asyncio.timeout(60):
        while "KAGZI_LISTEN_URL" not in caplog.text:
            await asyncio.sleep(0.01)
    assert not task.done()
    await store.close()
    await asyncio.wait_for(task, 30)


@needs_pgbouncer
async def test_the_doctor_tells_who_is_heard(bouncer: PgBouncer, server: PostgresServer) -> None:
    await _create(server, "checked")
    direct, pooled = server.url_of("checked"), bouncer.url_of("checked")
    store = PostgresStore(direct)
    await store.open()
    await store.close()

    async def wake_ups(url: str, listen_url: str | None) -> tuple[HealthStatus, str]:
        findings = await examine(Loaded(Settings(listen_url=listen_url), {}), url, quick=False)
        (found,) = [part for part in findings.components if part.name == "wake-ups"]
        return found.status, found.message

    assert await wake_ups(direct, None) == (HealthStatus.HEALTHY, "processes hear of each other's work")
    status, message = await wake_ups(pooled, None)
    assert status is HealthStatus.DEGRADED
    assert "set KAGZI_LISTEN_URL" in message
    status, message = await wake_ups(pooled, direct)
    assert status is HealthStatus.HEALTHY
    assert "pooler in between" in message
    for deaf in (pooled, server.url):  # through PgBouncer, too; another database
        status, message = await wake_ups(pooled, deaf)
        assert status is HealthStatus.DEGRADED
        assert "is not heard at KAGZI_LISTEN_URL" in message


async def _create(server: PostgresServer, database: str) -> None:
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"CREATE DATABASE {database} TEMPLATE template0")
    await connection.close()

"""Indexes of large tables are built while rows are written, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from kagzi.api.operations import StartDebounce, Started, StartRun
from kagzi.cli.migrate import _migrate
from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND
from kagzi.errors import InvalidRequest, SchemaMismatch, Unavailable
from kagzi.ids import RandomIds
from kagzi.settings import Settings
from kagzi.store.migrate import load_migrations, parse_migration
from kagzi.store.postgres import migrations, online
from kagzi.store.postgres import store as store_module
from kagzi.store.postgres.store import PostgresStore

pytestmark = pytest.mark.postgres


@pytest.fixture
def postgres_database(fresh_database: str) -> str:
    return fresh_database


IDS = RandomIds(SystemClock().now)
BUILD = "CREATE INDEX CONCURRENTLY IF NOT EXISTS by_type ON kagzi.workflow_runs (namespace, workflow_type);"


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives this version of Kagzi a migration that builds indexes; every table counts as large if `large`."""

    def give(sql: str = BUILD, *, large: bool = True) -> None:
        known = load_migrations("kagzi.store.postgres")
        added = parse_migration(f"{len(known) + 1:04}_more.sql", "SELECT 1;", sql)
        for module in (migrations, store_module):
            monkeypatch.setattr(module, "known_migrations", lambda: (*known, added))
        if large:
            monkeypatch.setattr(migrations, "SMALL_TABLE_ROWS", 0)

    return give


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "LOOK_SECONDS", 0.02)


@contextlib.asynccontextmanager
async def opened(url: str, *, idle: bool = True) -> AsyncIterator[PostgresStore]:
    """A store that builds when it is told to, if `idle`, and else by itself."""
    store = PostgresStore(url)
    if idle:
        store._indexes.start = lambda: None  # type: ignore[method-assign]
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def held_up(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A transaction that has written a run: who builds an index of the table has to wait for its end."""
    writer = await asyncpg.connect(url)
    await writer.execute("BEGIN; UPDATE kagzi.workflow_runs SET priority = priority")
    try:
        yield writer
    finally:
        await writer.close()


def new_start(debounce: StartDebounce | None = None) -> StartRun:
    return StartRun(
        namespace="default",
        run_id=IDS.run_id(),
        task_queue="q",
        workflow_type="w",
        version="1",
        input=b"x",
        debounce=debounce,
    )


async def start(store: PostgresStore) -> Started:
    (answer,) = (await store.work.apply([new_start()])).answers
    assert isinstance(answer, Started)
    return answer


async def until(connection: asyncpg.Connection, query: str) -> Any:
    async with asyncio.timeout(20):
        while not (value := await connection.fetchval(query)):
            await asyncio.sleep(0.01)
    return value


# The pids and locks of builds that are under way in this database.
BUILDING = "SELECT max(pid) FROM pg_stat_progress_create_index WHERE datname = current_database()"
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('kagzi.by_type')"
OID = "SELECT to_regclass('kagzi.by_type')::oid::bigint"


async def test_those_of_small_tables_are_there_at_once(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    async with opened(postgres_database) as store:
        await start(store)
    more(large=False)
    async with opened(postgres_database) as store:
        assert await connection.fetchval(VALID)
        assert await store.missing_indexes() == ()
    assert await connection.fetchval("SELECT built_at FROM kagzi.migrations ORDER BY number DESC LIMIT 1") is not None


async def test_a_table_that_was_never_counted_is_judged_by_its_size(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_database) as store:
        for _ in range(3):
            await start(store)
    assert await connection.fetchval("SELECT reltuples FROM pg_class WHERE relname = 'workflow_runs'") == -1
    more(large=False)
    monkeypatch.setattr(migrations, "SMALL_TABLE_ROWS", 20)  # a page
    async with opened(postgres_database) as store:
        assert await store.missing_indexes() == ("by_type",)


async def test_writers_go_on_while_an_index_is_built(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    async with opened(postgres_database) as store:
        await start(store)
    more()
    async with opened(postgres_database) as store:
        assert await store.missing_indexes() == ("by_type",)
        with pytest.raises(Unavailable, match="indexes that are being built: by_type"):
            store._indexes.check("another", "by_type")
        store._indexes.check("another")
        async with held_up(postgres_database) as writer:
            building = asyncio.create_task(store.build_indexes())
            pid = await until(connection, BUILDING)

            await start(store)
            await connection.execute("UPDATE kagzi.workflow_runs SET priority = 1 WHERE workflow_type = 'nothing'")
            locks = await connection.fetch(
                "SELECT mode FROM pg_locks WHERE pid = $1 AND relation = 'kagzi.workflow_runs'::regclass", pid
            )
            assert [row["mode"] for row in locks] == ["ShareUpdateExclusiveLock"]
            assert await connection.fetchval(BUILDING) == pid  # all of that beside it
            assert await store.missing_indexes() == ("by_type",)
            await writer.execute("COMMIT")
            await building
        assert await connection.fetchval(VALID)
        assert await store.missing_indexes() == ()
        store._indexes.check("by_type")
    unopened = PostgresStore(postgres_database)
    assert await unopened.missing_indexes() == ()


async def test_debounced_starts_wait_for_the_index_that_keeps_a_key_to_one_run(
    postgres_database: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "SMALL_TABLE_ROWS", 0)
    index = "workflow_runs_debounced"
    (migration,) = [each for each in load_migrations("kagzi.store.postgres") if index in online.names_of([each])]
    async with opened(postgres_database) as store:
        await store.build_indexes()
    await connection.execute(f"DROP INDEX kagzi.{index}")
    await connection.execute("UPDATE kagzi.migrations SET built_at = NULL WHERE number = $1", migration.number)
    debounce = StartDebounce(key="d-7", wait=SECOND)
    async with opened(postgres_database) as store:
        assert index in await store.missing_indexes()
        refused, plain, other = (
            await store.work.apply([new_start(debounce), new_start(), new_start(debounce)])
        ).answers
        assert isinstance(plain, Started)  # what is beside them in a batch is not held up
        for answer in (refused, other):
            assert isinstance(answer, Unavailable)
            assert f"being built: {index}. Try again" in str(answer)
            assert "`kagzi migrate`" in str(answer)
        runs = await connection.fetch("SELECT run_id::text FROM kagzi.workflow_runs")
        assert [row["run_id"] for row in runs] == [plain.run_id]

        await store.build_indexes()
        made, joined = (await store.work.apply([new_start(debounce), new_start(debounce)])).answers
        assert isinstance(made, Started)
        assert isinstance(joined, Started)
        assert (joined.run_id, joined.already_exists) == (made.run_id, True)


async def test_an_open_store_builds_by_itself(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    async with opened(postgres_database):
        pass
    more()
    async with opened(postgres_database, idle=False) as store:
        await until(connection, VALID)
        async with asyncio.timeout(10):
            while await store.missing_indexes():
                await asyncio.sleep(0.01)


async def test_what_an_interrupted_build_left_is_dropped_and_built_again(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    async with opened(postgres_database) as store:
        await start(store)
    more()
    async with opened(postgres_database) as store:
        async with held_up(postgres_database):
            building = asyncio.create_task(store.build_indexes())
            await until(connection, OID)
            await connection.execute("SELECT pg_terminate_backend($1)", await until(connection, BUILDING))
            with pytest.raises(Unavailable):
                await building
        assert await connection.fetchval(VALID) is False
        left = await connection.fetchval(OID)

        await store.build_indexes()  # at once: the lease was given back
        assert await connection.fetchval(VALID)
        assert await connection.fetchval(OID) != left


async def test_a_store_that_is_closed_lets_another_one_build(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    async with opened(postgres_database) as store:
        await start(store)
    more()
    async with held_up(postgres_database):
        async with opened(postgres_database, idle=False):
            await until(connection, BUILDING)
        assert await connection.fetchval(BUILDING) is None
        assert await connection.fetchval("SELECT max(building_until) FROM kagzi.migrations") is None
    async with opened(postgres_database) as store:
        await store.build_indexes()
    assert await connection.fetchval(VALID)


async def test_one_process_builds_and_the_others_wait_for_it(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    async with opened(postgres_database) as store:
        await start(store)
    more()
    async with opened(postgres_database) as first, opened(postgres_database) as second:
        async with held_up(postgres_database) as writer:
            building = asyncio.create_task(first.build_indexes())
            await until(connection, BUILDING)
            waiting = asyncio.create_task(second.build_indexes())
            await asyncio.sleep(0.2)
            assert await connection.fetchval("SELECT count(*) FROM pg_stat_progress_create_index") == 1
            assert not waiting.done()
            await writer.execute("COMMIT")
        await asyncio.gather(building, waiting)
    assert await connection.fetchval(VALID)


async def test_an_index_whose_build_is_about_to_commit_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a build is not shown as under way any more, and its index not as valid yet."""

    looks = [{"valid": False, "busy": True}, {"valid": False, "busy": False}, {"valid": True, "busy": False}]

    class AboutToCommit:
        async def fetchrow(self, query: str, index: str) -> dict[str, bool]:
            return looks.pop(0)

        async def execute(self, sql: str) -> None:
            pytest.fail(sql)

    monkeypatch.setattr(online, "_SECONDS_TO_COMMIT", 0)
    (statement,) = parse_migration("0001_more.sql", "SELECT 1;", BUILD).online
    await online._run(AboutToCommit(), statement)  # type: ignore[arg-type]
    assert not looks


async def test_a_build_that_outlived_its_lease_is_not_dropped(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    async with opened(postgres_database) as store:
        await start(store)
    more()
    async with opened(postgres_database) as first, opened(postgres_database) as second:
        async with held_up(postgres_database) as writer:
            building = asyncio.create_task(first.build_indexes())
            index = await until(connection, OID)
            await connection.execute("UPDATE kagzi.migrations SET building_until = clock_timestamp()")
            waiting = asyncio.create_task(second.build_indexes())
            await until(connection, "SELECT max(building_until) > clock_timestamp() FROM kagzi.migrations")
            await asyncio.sleep(0.2)
            await writer.execute("COMMIT")
        await asyncio.gather(building, waiting)
    assert await connection.fetchval(VALID)
    assert await connection.fetchval(OID) == index


@pytest.mark.parametrize("large", [True, False])
async def test_an_index_takes_the_place_of_another(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None], large: bool
) -> None:
    async with opened(postgres_database):
        await connection.execute("CREATE INDEX old ON kagzi.workflow_runs (workflow_type)")
    more(f"-- In this order.\n{BUILD}\nDROP INDEX CONCURRENTLY IF EXISTS kagzi.old;\n", large=large)
    async with opened(postgres_database) as store:
        await store.build_indexes()
    assert await connection.fetchval(VALID)
    assert await connection.fetchval("SELECT to_regclass('kagzi.old')") is None


async def test_rows_that_no_unique_index_takes_are_told_of(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    async with opened(postgres_database) as store:
        for _ in range(2):
            await start(store)
    more(BUILD.replace("CREATE INDEX", "CREATE UNIQUE INDEX"))
    async with opened(postgres_database) as store:
        with pytest.raises(SchemaMismatch, match="by_type cannot be built"):
            await store.build_indexes()
        assert await store.missing_indexes() == ("by_type",)


async def test_a_database_of_a_version_that_could_not_build_so_is_extended(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = load_migrations("kagzi.store.postgres")[:7]
    with monkeypatch.context() as then:
        for module in (migrations, store_module):
            then.setattr(module, "known_migrations", lambda: released)
        async with opened(postgres_database) as store:
            await connection.execute("ALTER TABLE kagzi.migrations DROP COLUMN building_until, DROP COLUMN built_at")
            assert await store.missing_indexes() == ()
    more()
    assert await PostgresStore(postgres_database).missing_indexes() == ()  # migrations are missing, not their indexes
    async with opened(postgres_database) as store:
        assert "by_type" in await store.missing_indexes()
        await store.build_indexes()
        assert await store.missing_indexes() == ()
    assert await connection.fetchval(VALID)


async def test_the_command_waits_for_them(
    postgres_database: str, connection: asyncpg.Connection, more: Callable[..., None]
) -> None:
    settings = Settings(db_url=postgres_database)
    await _migrate(settings, False)
    more()
    missing, indexes, _ = await _migrate(settings, False)
    assert [migration.name for migration in missing] == ["more"]
    assert indexes == ("by_type",)
    assert await connection.fetchval(VALID)
    assert (await _migrate(settings, True))[:2] == ((), ())


async def test_who_may_not_build_looks_on_and_says_so(
    postgres_database: str,
    connection: asyncpg.Connection,
    more: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(postgres_database):
        pass
    more()
    role = f"kagzi_app_{uuid4().hex}"
    async with opened(postgres_database) as owner:
        await connection.execute(
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA kagzi TO {role};"
            f" GRANT SELECT ON ALL TABLES IN SCHEMA kagzi TO {role}"
        )
        parts = urlsplit(postgres_database)
        theirs = parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}").geturl()
        try:
            async with opened(theirs, idle=False) as store:
                with pytest.raises(InvalidRequest, match="run `kagzi migrate`"):
                    await store.build_indexes()
                async with asyncio.timeout(10):
                    while "cannot be built by this process" not in caplog.text:
                        await asyncio.sleep(0.01)
                assert await store.missing_indexes() == ("by_type",)
                await owner.build_indexes()
                async with asyncio.timeout(20):
                    while await store.missing_indexes():
                        await asyncio.sleep(0.01)
        finally:
            await connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role};")

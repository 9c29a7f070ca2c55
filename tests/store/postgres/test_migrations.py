from __future__ import annotations

import asyncio

import asyncpg
import pytest

from kagzi.api.operations import CancelAnswer, CancelRun
from kagzi.errors import SchemaMismatch
from kagzi.store.migrate import load_migrations
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.store import PostgresStore

pytestmark = pytest.mark.postgres


@pytest.fixture
def postgres_database(fresh_database: str) -> str:
    return fresh_database


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_five_processes_starting_at_once_migrate_once(
    postgres_database: str, connection: asyncpg.Connection, isolation: str
) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{isolation}'")
    stores = [PostgresStore(postgres_database) for _ in range(5)]

    await asyncio.gather(*(store.open() for store in stores))

    rows = await connection.fetch("SELECT number, name, checksum FROM kagzi.migrations ORDER BY number")
    known = load_migrations("kagzi.store.postgres")
    assert [tuple(row) for row in rows] == [(entry.number, entry.name, entry.checksum) for entry in known]
    for store in stores:
        assert await store.runs.get("default", "00000000-0000-7000-8000-000000000001") is None
        await store.close()


async def test_a_schema_made_by_somebody_else_is_used(postgres_database: str, connection: asyncpg.Connection) -> None:
    await connection.execute("CREATE SCHEMA kagzi")

    await PostgresStore(postgres_database).open()

    assert await connection.fetchval("SELECT count(*) FROM kagzi.workflow_runs") == 0


async def test_a_newer_schema_is_refused(postgres_database: str, connection: asyncpg.Connection) -> None:
    await PostgresStore(postgres_database).open()
    await connection.execute("INSERT INTO kagzi.migrations VALUES (9001, 'wormholes', 'abc')")

    with pytest.raises(SchemaMismatch, match=r"9001 \(wormholes\).*Upgrade Kagzi"):
        await PostgresStore(postgres_database).open()


async def test_a_changed_migration_is_refused(postgres_database: str, connection: asyncpg.Connection) -> None:
    await PostgresStore(postgres_database).open()
    await connection.execute("UPDATE kagzi.migrations SET checksum = 'abc' WHERE number = 1")

    with pytest.raises(SchemaMismatch, match="another content"):
        await PostgresStore(postgres_database).open()


async def test_a_migration_that_fails_leaves_nothing_behind(
    postgres_database: str, connection: asyncpg.Connection
) -> None:
    # Something is in the way, half-way through.
    await connection.execute("CREATE SCHEMA kagzi; CREATE TABLE kagzi.step_runs ()")
    with pytest.raises(SchemaMismatch, match="changed by hand"):
        await PostgresStore(postgres_database).open()
    assert await connection.fetchval("SELECT to_regclass('kagzi.workflow_runs')") is None

    await connection.execute("DROP TABLE kagzi.step_runs")
    await PostgresStore(postgres_database).open()


async def test_a_database_of_the_first_version_is_brought_up_to_date(
    postgres_database: str, connection: asyncpg.Connection
) -> None:
    first = load_migrations("kagzi.store.postgres")[0]
    await connection.execute(STATEMENTS["create_schema"])
    await connection.execute(STATEMENTS["create_migrations"])
    await connection.execute(first.sql)
    await connection.execute(STATEMENTS["record_migration"], first.number, first.name, first.checksum)
    await connection.execute(
        "INSERT INTO kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, version, status, created_at,"
        " started_at, available_at, claim_key, input) VALUES ('default', $1, 'orders', 'checkout', '1', 'SLEEPING', 1,"
        " 1, 9, 9, 'x')",
        "00000000-0000-7000-8000-000000000001",
    )

    store = PostgresStore(postgres_database, now=lambda: 5)
    await store.open()
    try:
        cancel = CancelRun(namespace="default", run_id="00000000-0000-7000-8000-000000000001", grace=2)
        (answer,) = (await store.work.apply([cancel])).answers
        assert isinstance(answer, CancelAnswer)
        assert answer.effective
        assert (await store.overview.horizon([])).cancel == 7
    finally:
        await store.close()

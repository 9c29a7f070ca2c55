"""Runs that are started in a transaction of the user's own: there when it commits, never there when it does not."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import kagzi
from kagzi import Kagzi
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, InvalidRequest, NotFound
from tests.scenarios.conftest import served

psycopg = pytest.importorskip("psycopg")
sqlalchemy = pytest.importorskip("sqlalchemy")
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # noqa: E402
from sqlalchemy.orm import Session  # noqa: E402


def shop(url: str) -> tuple[Kagzi, Any]:
    app = Kagzi(url)

    @app.step
    async def pack(sku: str) -> str:
        return f"box with {sku}"

    @app.workflow
    async def order(sku: str) -> str:
        return await pack(sku)

    return app, order


class Trial:
    """Two runs on each connection: one that is rolled back, and one that is committed."""

    def __init__(self, app: Kagzi, order: Any) -> None:
        self.app = app
        self.order = order
        self.number = 0

    def next(self, connection: Any) -> tuple[str, Any]:
        self.number += 1
        id = f"order-{self.number}"
        return id, self.order.options(id=id, connection=connection)

    async def gone(self, id: str) -> None:
        with pytest.raises(NotFound):
            await self.app.find(id)

    async def there(self, id: str, seconds: float = 20) -> None:
        run = await self.app.find(id, self.order)
        assert await run.result(timeout=seconds) == "box with book"
        again = await self.order.options(id=id).start("book")
        assert again.already_exists


@pytest.fixture
async def trial(postgres_database: str) -> AsyncIterator[Trial]:
    app, order = shop(postgres_database)
    async with app, app.worker():
        await order.run("warm")
        yield Trial(app, order)


pytestmark = pytest.mark.postgres


async def test_asyncpg(trial: Trial, postgres_database: str) -> None:
    connection = await asyncpg.connect(postgres_database)
    try:
        transaction = connection.transaction()
        await transaction.start()
        id, order = trial.next(connection)
        started = await order.start("book")
        assert not started.already_exists
        assert (await order.start("book")).id == started.id  # idempotent in the same transaction
        with pytest.raises(Conflict):
            await order.start("pen")
        await trial.gone(id)  # to everybody else
        await transaction.rollback()
        await trial.gone(id)
        async with connection.transaction():
            id, order = trial.next(connection)
            run = await order.start("book")
            large, order = trial.next(connection)
            await order.options(delay="1h").start("x" * 5000)
        assert await run.result(timeout=20) == "box with book"
        await trial.there(id)
        assert (await (await trial.app.find(large)).get()).input == ["x" * 5000]
        async with connection.transaction():  # an id that is taken, outside of this transaction
            assert (await trial.order.options(id=id, connection=connection).start("book")).already_exists
    finally:
        await connection.close()


async def test_psycopg(trial: Trial, postgres_database: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_database) as connection:
        id, order = trial.next(connection)
        await order.start("book")
        await connection.rollback()
        await trial.gone(id)
        id, order = trial.next(connection)
        await order.start("book")
        _, order = trial.next(connection)
        await order.options(delay="1h").start("x" * 5000)
        assert (await order.options(delay="1h").start("x" * 5000)).id
        await connection.commit()
        await trial.there(id)

    def blocking() -> None:
        with psycopg.connect(postgres_database) as connection:
            _, order = trial.next(connection)
            order.start_sync("book")
            connection.rollback()
            _, order = trial.next(connection)
            order.start_sync("book")

    await asyncio.to_thread(blocking)
    await trial.gone(f"order-{trial.number - 1}")
    await trial.there(f"order-{trial.number}")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_sqlalchemy(trial: Trial, postgres_database: str, driver: str) -> None:
    url = postgres_database.replace("postgresql://", f"postgresql+{driver}://")
    engine = create_async_engine(url)
    try:
        async with AsyncSession(engine) as session:
            id, order = trial.next(session)
            await order.start("book")
            await session.rollback()
            await trial.gone(id)
            id, order = trial.next(session)
            await order.start("book")
            assert (await order.start("book")).id
            await session.commit()
        await trial.there(id)
        async with engine.begin() as connection:
            id, order = trial.next(connection)
            await order.options(delay=0).start("book")
            _, order = trial.next(connection)
            await order.options(delay="1h").start("x" * 5000)
        await trial.there(id)
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with autocommit.connect() as connection:
            id, order = trial.next(connection)
            with pytest.raises(InvalidRequest, match="autocommit"):
                await order.start("book")
        await trial.gone(id)
    finally:
        await engine.dispose()
    if driver == "psycopg":
        await asyncio.to_thread(_sync_session, trial, url)
        await trial.gone(f"order-{trial.number - 1}")
        await trial.there(f"order-{trial.number}")


def _sync_session(trial: Trial, url: str) -> None:
    engine = sqlalchemy.create_engine(url)
    try:
        with Session(engine) as session:
            _, order = trial.next(session)
            order.start_sync("book")
            session.rollback()
            _, order = trial.next(session)
            order.start_sync("book")
            session.commit()
    finally:
        engine.dispose()


async def test_django(trial: Trial, postgres_database: str) -> None:
    """In a process of its own, because Django is configured once."""
    pytest.importorskip("django")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", _DJANGO, postgres_database],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    await trial.gone("refused")
    await trial.gone("rolled-back")
    await trial.there("committed")


_DJANGO = """
import asyncio, sys
import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

dsn = conninfo_to_dict(sys.argv[1])
names = {"NAME": dsn["dbname"], "USER": dsn["user"], "HOST": dsn["host"], "PORT": str(dsn.get("port", "")),
         "PASSWORD": dsn.get("password", "")}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **names}}, USE_TZ=True)
django.setup()
from django.db import connection, transaction
from kagzi import Kagzi
from kagzi.errors import InvalidRequest

app = Kagzi(sys.argv[1])

@app.workflow
async def order(sku: str) -> str: ...

def start(id):
    return order.options(id=id, connection=connection).start_sync("book")

with app:
    try:
        start("refused")
    except InvalidRequest as error:
        assert "autocommit" in str(error)
    else:
        sys.exit("it was not refused")
    with transaction.atomic():
        start("rolled-back")
        transaction.set_rollback(True)
    with transaction.atomic():
        start("committed")

async def in_a_loop():
    async with app:
        connection.in_atomic_block = True
        try:
            await order.options(connection=connection).start("book")
        except InvalidRequest as error:
            assert "start_sync" in str(error), error
        finally:
            connection.in_atomic_block = False

asyncio.run(in_a_loop())
connection.close()
"""


async def test_bad_connections_are_told_apart_and_write_nothing(
    trial: Trial, postgres_database: str, postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_database)
    foreign = await asyncpg.connect(postgres_url)
    closed = await asyncpg.connect(postgres_database)
    await closed.close()
    plain = psycopg.connect(postgres_database, autocommit=True)
    ended = psycopg.connect(postgres_database)
    ended.close()
    try:
        async with foreign.transaction():
            pass
        bad: list[tuple[Any, str]] = [
            (connection, "autocommit"),
            (plain, "autocommit"),
            (closed, "closed"),
            (ended, "closed"),
            (object(), "not builtins.object"),
            (sqlite3.connect(":memory:"), "another database"),
        ]
        for one, words in bad:
            id, order = trial.next(one)
            with pytest.raises(InvalidRequest, match=words):
                await order.start("book")
            await trial.gone(id)
        transaction = foreign.transaction()
        await transaction.start()
        id, order = trial.next(foreign)
        with pytest.raises(InvalidRequest, match="another database"):
            await order.start("book")
        await transaction.rollback()
        async with connection.transaction():
            _, order = trial.next(connection)
            with pytest.raises(InvalidRequest, match="cannot be part of a transaction"):
                await order.run("book")
            with pytest.raises(InvalidRequest, match="async one"):
                await asyncio.to_thread(order.start_sync, "book")
    finally:
        await connection.close()
        await foreign.close()
        plain.close()


async def test_a_worker_hears_of_the_run_at_the_commit(trial: Trial, postgres_database: str) -> None:
    """Not before it, and soon after it: the notification is part of the commit."""
    connection = await asyncpg.connect(postgres_database)
    waits = []
    try:
        for _ in range(5):
            async with connection.transaction():
                _, order = trial.next(connection)
                run = await order.start("book")
                await asyncio.sleep(0.05)
                with pytest.raises(NotFound):
                    await run.status()
            began = time.monotonic()
            while (await run.status()) is RunStatus.PENDING:
                await asyncio.sleep(0.001)
            waits.append(time.monotonic() - began)
    finally:
        await connection.close()
    assert min(waits) < 0.5  # a look at the database comes once a second


async def test_a_server_has_the_database_to_itself(postgres_database: str) -> None:
    async with served(postgres_database) as address:
        app, order = shop(address)
        connection = await asyncpg.connect(postgres_database)
        try:
            async with app, connection.transaction():
                with pytest.raises(InvalidRequest, match="uses a server"):
                    await order.options(connection=connection).start("book")
        finally:
            await connection.close()


async def test_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    app, order = shop(f"sqlite:///{path}")
    async with app, app.worker():
        trial = Trial(app, order)
        connection = sqlite3.connect(path)
        connection.row_factory = sqlite3.Row
        connection.execute("CREATE TABLE orders (id)")
        id, starting = trial.next(connection)
        connection.execute("INSERT INTO orders VALUES (?)", (id,))
        await starting.start("book")
        connection.rollback()
        await trial.gone(id)
        id, starting = trial.next(connection)
        with connection:
            connection.execute("INSERT INTO orders VALUES (?)", (id,))
            await starting.start("book")
            assert (await starting.start("book")).id
        await trial.there(id)
        assert [row["id"] for row in connection.execute("SELECT id FROM orders")] == [id]
        other = sqlite3.connect(tmp_path / "other.db")
        for one, words in ((other, "another database"), (sqlite3.connect(path, isolation_level=None), "autocommit")):
            _, starting = trial.next(one)
            with pytest.raises(InvalidRequest, match=words):
                await starting.start("book")
            one.close()
        connection.close()
        _, starting = trial.next(connection)
        with pytest.raises(InvalidRequest, match="closed"):
            await starting.start("book")
        await asyncio.to_thread(_blocking_sqlite, trial, path)
        await trial.there(f"order-{trial.number}")


def _blocking_sqlite(trial: Trial, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        _, starting = trial.next(connection)
        starting.start_sync("book")
    connection.close()


async def test_from_sql(trial: Trial, postgres_database: str) -> None:
    """By name, as people write it, in the transaction of anybody."""
    app = trial.app

    @app.workflow
    async def approved(sku: str) -> str:
        return f"{sku}: {await kagzi.wait_signal('approved', bool)}"

    call = "SELECT kagzi.start_workflow('order', '[\"book\"]', id => $1)"
    connection = await asyncpg.connect(postgres_database)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetchval(call, "sql-1")
        await transaction.rollback()
        await trial.gone("sql-1")
        run_id = await connection.fetchval(call, "sql-2")
        assert run_id == await connection.fetchval(call.replace('["book"]', '[ "book" ]'), "sql-2")
        assert (await app.find("sql-2")).id == str(run_id)
        await trial.there("sql-2")
        with pytest.raises(asyncpg.UniqueViolationError, match="another type or input"):
            await connection.fetchval(call.replace("book", "pen"), "sql-2")
        large = await connection.fetchval(
            "SELECT kagzi.start_workflow('order', $1, delay => '1 hour')", '["' + "x" * 5000 + '"]'
        )
        record = await app.handle(str(large)).get()
        assert (record.input, record.status) == (["x" * 5000], RunStatus.PENDING)
        assert timedelta(minutes=59) < record.available_at - record.created_at < timedelta(minutes=61)
        for bad in (
            "'order', '7'",
            "'', '[]'",
            "'order', priority => -1",
            "'order', timeout => '0'",
            "'order', '[', id => 'a'",
        ):
            with pytest.raises(asyncpg.DataError):
                await connection.fetchval(f"SELECT kagzi.start_workflow({bad})")
        async with app.worker(queues=["approvals"]):
            await connection.execute(
                "SELECT kagzi.start_workflow('approved', '[\"pen\"]', id => 'sql-3', queue => 'approvals')"
            )
            run = await app.find("sql-3")
            while await run.status() is not RunStatus.SLEEPING:
                await asyncio.sleep(0.01)
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("SELECT kagzi.signal('sql-3', 'approved', 'false')")
            await transaction.rollback()
            await connection.execute("SELECT kagzi.signal('sql-3', 'approved', 'true', key => 'one')")
            await connection.execute("SELECT kagzi.signal('sql-3', 'approved', 'true', key => 'one')")
            assert await run.result(timeout=20) == "pen: True"
            assert [signal.value for signal in await run.signals()] == [True]
        with pytest.raises(asyncpg.PostgresError, match="has finished"):
            await connection.execute("SELECT kagzi.signal('sql-3', 'approved')")
        with pytest.raises(asyncpg.PostgresError, match="no run with the id nobody"):
            await connection.execute("SELECT kagzi.signal('nobody', 'approved')")
    finally:
        await connection.close()

"""Transactions of steps that cannot begin, or whose COMMIT fails: nothing is held back, and everything is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, Retry
from kagzi.api.transactions import BeginTransaction
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.store.postgres import body_links
from kagzi.store.postgres.transactions import MOST_OPEN

psycopg = pytest.importorskip("psycopg")
sqlalchemy = pytest.importorskip("sqlalchemy")

HOUR = 3600 * SECOND
FOR_EVER = 60.0  # seconds, which only a test that fails waits
STORES = pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'kagzi.db'}"
    found: str = request.getfixturevalue("postgres_database")
    return found


def engine_of(url: str, tmp_path: Path, kind: str) -> Any:
    """An engine of SQLAlchemy that cannot be used for a transaction: one that cannot connect, or leads elsewhere."""
    if kind == "of another database":
        if url.startswith("sqlite"):
            return sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
        other = urlunsplit(urlsplit(url)._replace(scheme="postgresql+psycopg", path="/postgres"))
        return sqlalchemy.create_engine(other)

    def refuse() -> None:
        raise ConnectionError("there is nobody")

    return sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), creator=refuse)


async def nothing() -> None: ...


async def not_ready() -> None:
    raise ConnectionError("there is nobody")


@STORES
@pytest.mark.parametrize("kind", ["of nobody", "of another database", "not ready"])
async def test_however_many_transactions_cannot_begin_the_next_one_can(url: str, tmp_path: Path, kind: str) -> None:
    engine = connect(url)
    assert isinstance(engine, LocalEngine)
    await engine.open()
    try:
        begin = engine.store.transactions.begin
        wanted: Callable[[Any], BeginTransaction] = lambda engine: BeginTransaction(  # noqa: E731
            step="enter", mark="mark", blocking=engine is not None, engine=engine
        )
        unusable = None if kind == "not ready" else engine_of(url, tmp_path, kind)
        ready = not_ready if kind == "not ready" else nothing
        expected = (InvalidRequest, "another database") if "another" in kind else (ConnectionError, "nobody")
        async with asyncio.timeout(FOR_EVER):
            for _ in range(MOST_OPEN + 1):  # each time: an engine that was refused once is no better the second time
                with pytest.raises(expected[0], match=expected[1]):
                    await begin(wanted(unusable), ready, HOUR)
            transaction = await begin(wanted(None), nothing, HOUR)
            await transaction.roll_back()
        if unusable is not None:
            unusable.dispose()
    finally:
        await engine.close()


class Refused:
    """Lets the server refuse the next COMMITs of steps, as it does with what could not be serialized."""

    def __init__(self, times: int, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = times
        kind: Any = getattr(body_links, link)
        commit = kind.commit

        async def refused(of: Any) -> None:
            if not self.times:
                await commit(of)
                return
            self.times -= 1
            if link == "_Asyncpg":
                raise asyncpg.SerializationError("could not serialize access")
            error = psycopg.errors.SerializationFailure("could not serialize access")
            if link == "_Session":
                raise sqlalchemy.exc.OperationalError("COMMIT", None, error)
            raise error

        monkeypatch.setattr(kind, "commit", refused)


@pytest.mark.postgres
@pytest.mark.parametrize("link", ["_Asyncpg", "_Psycopg", "_Session"])
async def test_a_commit_that_the_server_refuses_counts_as_an_attempt(
    postgres_database: str, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_database
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:")) if link == "_Session" else None
    app = Kagzi(url, engine=engine)
    begun: list[int] = []

    def note() -> int:
        begun.append(kagzi.attempt())
        return kagzi.attempt()

    async def note_here() -> int:
        return note()

    enter: Any = app.step(transaction=True, retry=Retry.fixed("1ms", attempts=3))(
        note_here if link == "_Asyncpg" else note
    )

    @app.workflow
    async def one() -> int:
        found: int = await enter()
        return found

    refused = Refused(2, link, monkeypatch)
    async with app, app.worker():
        assert await (await one.start()).result(timeout=FOR_EVER) == 3
        refused.times = 3
        run = await one.start()
        with pytest.raises(kagzi.WorkflowFailed, match="could not serialize"):
            await run.result(timeout=FOR_EVER)
    assert begun == [1, 2, 3, 1, 2, 3]
    if engine is not None:
        engine.dispose()


@STORES
async def test_who_waits_for_a_run_hears_of_its_end_in_a_transaction_at_once(url: str) -> None:
    app = Kagzi(url)
    told = asyncio.Event()

    @app.step(transaction=True)
    async def enter() -> int:
        await told.wait()
        return 1

    @app.workflow
    async def one() -> int:
        return await enter()

    # Nobody looks at the database by itself.
    async with connect(url, tick=HOUR, duty_interval=HOUR) as engine:
        await app.open(engine)
        async with app.worker():
            run = await one.start()
            waiter = asyncio.create_task(run.result())
            await asyncio.sleep(0.05)  # it waits by now, for the end of a run that cannot end yet
            told.set()
            assert await asyncio.wait_for(waiter, FOR_EVER) == 1
        await app.close()

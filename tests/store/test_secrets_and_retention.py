"""What a database keeps to itself: the secret of its page tokens; and how long it keeps the audit log."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest

from kagzi.api.keys import AuditFilter
from kagzi.core.audit import AUDIT_RETENTION, OK, AuditEntry
from kagzi.core.instant import SECOND
from kagzi.errors import SchemaMismatch
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.protocol.store import Store
from kagzi.store.sqlite.store import SqliteStore
from kagzi.testing.clock import VirtualClock

LONG_AGO = 1_500_000_000 * SECOND  # so that PostgreSQL's own clock, which has the last word, is past any retention
Make = Callable[[], Store]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(LONG_AGO)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Make:
    """Each call another process on the same database."""
    if request.param == "sqlite":
        return lambda: SqliteStore(str(tmp_path / "kagzi.db"), now=clock.now)
    url: str = request.getfixturevalue("postgres_database")
    return lambda: PostgresStore(url, now=clock.now)


@pytest.fixture
async def store(make: Make) -> AsyncIterator[Store]:
    store = make()
    await store.open()
    yield store
    await store.close()


def entry(target: str) -> AuditEntry:
    return AuditEntry(actor="cli:test", action="test", namespace=None, target=target, request_id="", peer="", result=OK)


async def targets(store: Store) -> list[str]:
    return [found.target for found in await store.audit.page(AuditFilter(), None, 100)]


async def test_the_secret_of_page_tokens_is_the_databases_own(store: Store, make: Make) -> None:
    assert len(store.page_secret) == 32
    other, sibling = make(), store.sibling()
    for another in (other, sibling):
        await another.open()
        assert another.page_secret == store.page_secret
        await another.close()
    elsewhere = SqliteStore(None)
    await elsewhere.open()
    assert elsewhere.page_secret != store.page_secret
    await elsewhere.close()


async def test_a_secret_that_was_deleted_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "kagzi.db"
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM secrets")
    connection.close()
    with pytest.raises(SchemaMismatch, match="'page tokens' of the database is missing"):
        await store.open()


async def test_the_audit_log_is_kept_for_its_retention(store: Store, clock: VirtualClock) -> None:
    await store.audit.append([entry("1"), entry("2")])
    clock.advance(SECOND)
    await store.audit.append([entry("3")])
    clock.advance(AUDIT_RETENTION - SECOND - 1)
    assert await store.audit.prune(100) == 0
    clock.advance(1)
    assert await store.audit.prune(100) == 2
    assert await targets(store) == ["3"]
    clock.advance(SECOND)
    assert await store.audit.prune(100) == 1
    assert await store.audit.prune(100) == 0


async def test_no_more_entries_go_than_the_limit(store: Store, clock: VirtualClock) -> None:
    await store.audit.append([entry(str(number)) for number in range(5)])
    clock.advance(AUDIT_RETENTION)
    assert [await store.audit.prune(2) for _ in range(4)] == [2, 2, 1, 0]


async def test_only_the_oldest_entries_are_looked_at(store: Store, clock: VirtualClock) -> None:
    """One whose time is earlier than that of the one before it, as when a clock was set back, is late by that much."""
    clock.advance(10 * SECOND)
    await store.audit.append([entry("later")])
    clock._now -= 10 * SECOND
    await store.audit.append([entry("earlier")])
    clock.advance(AUDIT_RETENTION)
    assert await store.audit.prune(1) == 0
    assert await store.audit.prune(2) == 1
    assert await targets(store) == ["later"]


@pytest.mark.postgres
async def test_postgres_deletes_nothing_younger_whatever_it_is_told(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    await store.open()
    await store.audit.append([entry("young")])
    await store.close()
    hasty = VirtualClock(LONG_AGO + 1_000 * AUDIT_RETENTION)
    store = PostgresStore(postgres_database, now=hasty.now)
    await store.open()
    assert await store.audit.prune(100) == 0
    assert await targets(store) == ["young"]
    await store.close()


@pytest.mark.postgres
async def test_postgres_knows_the_retention_too(postgres_database: str) -> None:
    """By its own clock: entries from just before and just after that long ago."""
    store = PostgresStore(postgres_database)
    await store.open()
    connection = await asyncpg.connect(postgres_database)
    for target, age in (("old", AUDIT_RETENTION + 60 * SECOND), ("young", AUDIT_RETENTION - 60 * SECOND)):
        await connection.execute(
            "INSERT INTO kagzi.audit_log (at, actor, action, target, request_id, peer, result)"
            " VALUES (kagzi.clock() - $1, '', '', $2, '', '', '')",
            age,
            target,
        )
    await connection.close()
    assert await store.audit.prune(100) == 1
    assert await targets(store) == ["young"]
    await store.close()

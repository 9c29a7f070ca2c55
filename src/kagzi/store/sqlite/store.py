"""SqliteStore: the Store contract over one SQLite database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kagzi.clock import SystemClock
from kagzi.core.instant import Instant
from kagzi.store.migrate import PAGE_SECRET, RETENTION_DAYS, Migration
from kagzi.store.sqlite.audit import Audit
from kagzi.store.sqlite.connection import Database
from kagzi.store.sqlite.duties import Duties
from kagzi.store.sqlite.files import write_trouble
from kagzi.store.sqlite.jobs import Jobs
from kagzi.store.sqlite.keys import Keys, get_secret
from kagzi.store.sqlite.limits import Limits
from kagzi.store.sqlite.namespaces import Namespaces
from kagzi.store.sqlite.overview import Overview
from kagzi.store.sqlite.runs import Runs
from kagzi.store.sqlite.schedules import Schedules
from kagzi.store.sqlite.schema import known_migrations, missing_migrations
from kagzi.store.sqlite.signals import Signals
from kagzi.store.sqlite.transactions import Transactions
from kagzi.store.sqlite.versions import Versions
from kagzi.store.sqlite.wakeups import Wakeups
from kagzi.store.sqlite.work import Work
from kagzi.store.sqlite.workers import Workers


class SqliteStore:
    """The store in an SQLite file, or without a path in memory.

    `now` replaces the host's clock; `inline` replaces threads by calls in the caller's own (see `connection`). A
    `database` that another store has opened is shared with it.
    """

    def __init__(
        self,
        path: str | None,
        *,
        now: Callable[[], Instant] | None = None,
        inline: bool = False,
        retention_days: int = RETENTION_DAYS,
        database: Database | None = None,
    ) -> None:
        self._now = now = now or SystemClock().now
        self._retention_days = retention_days
        self._database = database = database or Database(path, inline=inline, retention_days=retention_days)
        self._opened = False
        self.page_secret = b""
        self.work = Work(database, now)
        self.runs = Runs(database, now)
        self.signals = Signals(database, now)
        self.overview = Overview(database, now)
        self.namespaces = Namespaces(database, now, retention_days)
        self.workers = Workers(database, now)
        self.versions = Versions(database, now)
        self.limits = Limits(database, now)
        self.schedules = Schedules(database, now)
        self.keys = Keys(database, now)
        self.audit = Audit(database, now)
        self.duties = Duties(database, now)
        self.jobs = Jobs(database, now)
        self.transactions = Transactions(database, now)
        self.wakeups = Wakeups(database)

    async def open(self) -> None:
        await self._database.open()
        self._opened = True
        try:
            self.page_secret = await self._database.read(lambda connection: get_secret(connection, PAGE_SECRET))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self.wakeups.stop_listening()
        if self._opened:
            self._opened = False
            await self._database.close()

    @property
    def schema_version(self) -> int:
        return len(known_migrations())

    async def missing_migrations(self) -> tuple[Migration, ...]:
        return await asyncio.to_thread(missing_migrations, self._database.path)

    async def missing_indexes(self) -> tuple[str, ...]:
        return ()  # migrations have built them

    async def build_indexes(self) -> None: ...

    async def write_trouble(self) -> str | None:
        path = self._database.path
        return None if path is None else await asyncio.to_thread(write_trouble, path)

    def sibling(self) -> SqliteStore:
        """Shares the connections: they have threads of their own already, and one writer is what SQLite wants."""
        other = SqliteStore(None, now=self._now, retention_days=self._retention_days, database=self._database)
        other.page_secret = self.page_secret
        return other

"""PostgresStore: the store on PostgreSQL.

Who uses which connection:

    lane 0      starts of runs
    lane 1 …    chunks, sharded by run id, so that all of one run's go through one connection in their order; and what
                is asked for outside of a lease
    pool        claims, heartbeats, duties, reads; of writes those that wait for a row which somebody has locked
    announcer   notifications to other processes
    listener    notifications from them, while somebody listens

They are opened when first needed: a command that reads one run makes one connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from kagzi.core.instant import Instant
from kagzi.errors import KagziError
from kagzi.store.migrate import PAGE_SECRET, RETENTION_DAYS, Migration
from kagzi.store.postgres.audit import Audit
from kagzi.store.postgres.connection import Connector, translate
from kagzi.store.postgres.duties import Duties
from kagzi.store.postgres.jobs import Jobs
from kagzi.store.postgres.keys import Keys, get_secret
from kagzi.store.postgres.limits import Limits
from kagzi.store.postgres.locks import SHARED_MILLISECONDS
from kagzi.store.postgres.migrations import SETTINGS as MIGRATION_SETTINGS
from kagzi.store.postgres.migrations import known_migrations, migrate, missing_migrations, unbuilt_migrations
from kagzi.store.postgres.namespaces import Namespaces
from kagzi.store.postgres.online import IndexBuilds, names_of
from kagzi.store.postgres.overview import Overview
from kagzi.store.postgres.pool import Line, Pool, hang_up
from kagzi.store.postgres.primaries import Primaries
from kagzi.store.postgres.runs import Runs
from kagzi.store.postgres.schedules import Schedules
from kagzi.store.postgres.signals import Signals
from kagzi.store.postgres.transactions import Transactions
from kagzi.store.postgres.versions import Versions
from kagzi.store.postgres.wakeups import Wakeups
from kagzi.store.postgres.work import Work
from kagzi.store.postgres.workers import Workers

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

R = TypeVar("R")

_FULL_SECONDS: Final = 30.0  # what waits to be written is tried every two seconds, and nothing else once all is well
POOL_SIZE = 4
SIBLING_POOL_SIZE = 2


class PostgresStore:
    """See `kagzi.store.protocol.store.Store`.

    `now` replaces the database's clock, for tests. `listen_url` is where notifications can be heard, if that is another
    way to the same database: behind a PgBouncer in transaction mode they cannot.
    """

    def __init__(
        self,
        url: str,
        *,
        now: Callable[[], Instant] | None = None,
        pool_size: int = POOL_SIZE,
        lanes: int = 3,
        listen_url: str | None = None,
        chance: random.Random | None = None,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        if lanes < 2:
            raise ValueError("there is a lane for starts and at least one for chunks")
        self.page_secret = b""
        self._url = url
        self._clock = now
        self._listen_url = listen_url
        self._retention_days = retention_days
        chance = chance or random.Random()
        self._connector = connector = Connector(url)
        hearing = connector if listen_url is None else Connector.for_listening(listen_url)
        self._lanes = [Line(connector, chance, lock_timeout=f"{SHARED_MILLISECONDS}ms") for _ in range(lanes)]
        self._pool = pool = Pool(connector, chance, pool_size)
        self._indexes = indexes = IndexBuilds(hearing, pool)
        moment: Callable[[], Instant | None] = now or _nothing
        self.work = Work(pool, moment, indexes, self._lanes, max(1, pool_size // 2))
        self.runs = Runs(pool, moment, indexes)
        self.signals = Signals(pool, moment, indexes)
        self.overview = Overview(pool, moment, indexes)
        self.namespaces = Namespaces(pool, moment, indexes, retention_days)
        self.workers = Workers(pool, moment, indexes)
        self.versions = Versions(pool, moment, indexes)
        self.limits = Limits(pool, moment, indexes)
        self.schedules = Schedules(pool, moment, indexes)
        self.keys = Keys(pool, moment, indexes)
        self.audit = Audit(pool, moment, indexes)
        self.duties = Duties(pool, moment, indexes)
        self.jobs = Jobs(pool, moment, indexes)
        self.transactions = Transactions(url, lambda: self.page_secret, moment)
        self.wakeups = Wakeups(hearing, chance)
        self._primaries = Primaries([connector, self.transactions.connector], chance)

    @property
    def schema_version(self) -> int:
        return len(known_migrations())

    async def open(self) -> None:
        async def prepare(connection: Connection) -> bytes:
            await migrate(connection, self._retention_days)
            await self._indexes.read(connection)
            return await get_secret(connection, PAGE_SECRET)

        self.page_secret = await self._on_its_own(prepare)
        self._indexes.start()
        self._primaries.start()

    async def missing_migrations(self) -> tuple[Migration, ...]:
        return await self._on_its_own(missing_migrations)

    async def missing_indexes(self) -> tuple[str, ...]:
        if self.page_secret:  # it is open, and looks every few seconds
            return self._indexes.missing
        return names_of(await self._on_its_own(unbuilt_migrations))

    async def build_indexes(self) -> None:
        await self._indexes.finish()

    async def write_trouble(self) -> str | None:
        # A server that takes no writes is not connected to. Its disk is not ours to see, but what our writes hear is.
        since = self._connector.full_for()
        if since is None or since > _FULL_SECONDS:
            return None
        return "PostgreSQL has no space left on its disk, so nothing can be written; make room there"

    async def _on_its_own(self, work: Callable[[Connection], Awaitable[R]]) -> R:
        """Does work about the schema on a connection made for it, whose statements may take long."""
        connection = await self._connector.connect(**MIGRATION_SETTINGS)
        try:
            return await work(connection)
        except KagziError:
            raise
        except Exception as error:
            raise translate(error) from None
        finally:
            await hang_up(connection)

    async def close(self) -> None:
        await self._primaries.close()
        await self._indexes.close()
        await self.wakeups.stop_listening()
        await asyncio.gather(*(line.close() for line in self._lanes), self._pool.close(), self.wakeups.close())
        await self.transactions.close()

    def sibling(self) -> PostgresStore:
        return PostgresStore(
            self._url,
            now=self._clock,
            pool_size=SIBLING_POOL_SIZE,
            lanes=self.work.lanes,
            retention_days=self._retention_days,
            listen_url=self._listen_url,
        )


def _nothing() -> None:
    """No clock was passed in: the database's decides."""

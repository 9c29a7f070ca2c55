"""The store: one database, as the engine sees it."""

from __future__ import annotations

from typing import Protocol

from kagzi.store.migrate import Migration
from kagzi.store.protocol.audit import Audit
from kagzi.store.protocol.duties import Duties
from kagzi.store.protocol.jobs import Jobs
from kagzi.store.protocol.keys import Keys
from kagzi.store.protocol.limits import Limits
from kagzi.store.protocol.namespaces import Namespaces
from kagzi.store.protocol.overview import Overview
from kagzi.store.protocol.runs import Runs
from kagzi.store.protocol.schedules import Schedules
from kagzi.store.protocol.signals import Signals
from kagzi.store.protocol.transactions import Transactions
from kagzi.store.protocol.versions import Versions
from kagzi.store.protocol.wakeups import Wakeups
from kagzi.store.protocol.work import Work
from kagzi.store.protocol.workers import Workers


class Store(Protocol):
    """One database: opening and closing it, and what it keeps, by noun."""

    @property
    def schema_version(self) -> int:
        """The number of the newest migration this version of Kagzi knows."""
        ...

    @property
    def page_secret(self) -> bytes:
        """The secret of this database with which page tokens are signed; known once the store is open."""
        ...

    async def open(self) -> None:
        """Connect and migrate. Raises Unavailable, SchemaMismatch or InvalidRequest with what to do."""
        ...

    async def close(self) -> None: ...

    async def missing_migrations(self) -> tuple[Migration, ...]:
        """Returns the migrations that `open` would apply. Changes nothing, and needs no open store."""
        ...

    async def missing_indexes(self) -> tuple[str, ...]:
        """Returns the indexes of applied migrations that are still to be built beside the work, as those of large
        tables are. Changes nothing, and needs no open store."""
        ...

    async def build_indexes(self) -> None:
        """Builds them, or waits for the process that does. An open store does so by itself in the background."""
        ...

    async def write_trouble(self) -> str | None:
        """Returns what keeps the database from being written although it can be read, as far as can be seen without
        writing, or was heard when this process wrote last: a full disk, a file that is read-only. Needs no open
        store."""
        ...

    def sibling(self) -> Store:
        """Returns a store of the same database with connections of its own, for an event loop in another thread."""
        ...

    @property
    def work(self) -> Work: ...

    @property
    def runs(self) -> Runs: ...

    @property
    def signals(self) -> Signals: ...

    @property
    def overview(self) -> Overview: ...

    @property
    def namespaces(self) -> Namespaces: ...

    @property
    def workers(self) -> Workers: ...

    @property
    def versions(self) -> Versions: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def schedules(self) -> Schedules: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def duties(self) -> Duties: ...

    @property
    def jobs(self) -> Jobs: ...

    @property
    def transactions(self) -> Transactions: ...

    @property
    def wakeups(self) -> Wakeups: ...

"""Pauses and limits of queues, workflows and namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.store.postgres.limit_rows import limit_of
from kagzi.store.postgres.lines import read_wait, unhold
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.prepared import prepare
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.limits import LimitChange, Unheld
from kagzi.store.workers import changes, columns, smallest

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_LIST_LIMITS = STATEMENTS["list_limits"]
_PAUSE = STATEMENTS["pause"]
_RESUME = STATEMENTS["resume"]
_SET_LIMIT = STATEMENTS["set_limit"]
_DECLARE_LIMIT = STATEMENTS["declare_limit"]
_LIVE_EXTRAS = STATEMENTS["live_extras"]
_LOCK_LIMITS = STATEMENTS["lock_limits"]
_FORGET_LIMITS = STATEMENTS["forget_limits"]
_FORGET_TURNS = STATEMENTS["forget_turns"]
_LIMITED_NAMESPACES = STATEMENTS["limited_namespaces"]

_LINES = "workflow_runs_lines"


class Limits(Noun):
    """See `store.protocol.limits.Limits`."""

    @asks
    async def read(self, connection: Connection, namespace: str) -> list[FlowLimit]:
        return await _limits(connection, namespace)

    @asks
    async def pause(
        self, connection: Connection, namespace: str, scope: Scope, name: str, by: str, reason: str
    ) -> FlowLimit:
        if scope is Scope.WORKFLOW:
            self.indexes.check(_LINES)
        row = await connection.fetchrow(_PAUSE, self.now(), namespace, scope.value, name, by, reason)
        assert row is not None
        return limit_of(row)

    @asks
    async def resume(self, connection: Connection, namespace: str, scope: Scope, name: str) -> FlowLimit:
        await connection.execute(_RESUME, self.now(), namespace, scope.value, name)
        return await _left(connection, namespace, scope, name)

    @asks
    async def change(
        self, connection: Connection, namespace: str, scope: Scope, name: str, change: LimitChange
    ) -> FlowLimit:
        self.indexes.check(_LINES)
        now = self.now()
        values = (change.concurrency, change.key_concurrency, change.rate, change.key_rate)
        async with connection.transaction():
            await connection.execute(_SET_LIMIT, now, namespace, scope.value, name, *values)
            await connection.execute(_FORGET_TURNS, now, namespace)
        return await _left(connection, namespace, scope, name)

    @asks
    async def declare(self, connection: Connection, namespace: str) -> None:
        """Makes the declared limits those that live workers declare. Two processes that do so at once may write what
        one of them read before; the later of them has read the later state, because it waits for the lock."""
        self.indexes.check(_LINES)
        now = self.now()
        await prepare(connection, (_LOCK_LIMITS, _LIVE_EXTRAS, _DECLARE_LIMIT, _FORGET_TURNS))
        async with connection.transaction():
            before = [limit_of(row) for row in await connection.fetch(_LOCK_LIMITS, namespace)]
            extras = await connection.fetch(_LIVE_EXTRAS, namespace)
            declared = smallest((row["queues"], row["labels"]) for row in extras)
            changed = changes(before, declared)
            for scope, limit in changed:
                await connection.execute(_DECLARE_LIMIT, now, namespace, scope.value, *columns(limit))
            if changed:
                await connection.execute(_FORGET_TURNS, now, namespace)
            await connection.execute(_FORGET_LIMITS, namespace, False)

    @asks
    async def namespaces(self, connection: Connection) -> list[str]:
        return [row["namespace"] for row in await connection.fetch(_LIMITED_NAMESPACES)]

    @asks
    async def unhold(self, connection: Connection, namespace: str, after: tuple[str, ...]) -> Unheld:
        if _LINES in self.indexes.missing:
            return Unheld([], ())  # so that runs are not read one by one; nothing is held before
        return await unhold(connection, namespace, after, self.now())

    @asks
    async def wait_of(self, connection: Connection, namespace: str, run_id: str) -> SlotWait | None:
        if _LINES in self.indexes.missing:
            return None
        return await read_wait(connection, namespace, run_id, self.now())


async def _limits(connection: Connection, namespace: str) -> list[FlowLimit]:
    return [limit_of(row) for row in await connection.fetch(_LIST_LIMITS, namespace)]


async def _left(connection: Connection, namespace: str, scope: Scope, name: str) -> FlowLimit:
    """Returns what is left of a limit after a change. One that limits nothing any more is deleted."""
    await connection.execute(_FORGET_LIMITS, namespace, False)
    found = [each for each in await _limits(connection, namespace) if (each.scope, each.name) == (scope, name)]
    return found[0] if found else FlowLimit(namespace=namespace, scope=scope, name=name)

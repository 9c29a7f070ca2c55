"""Connections that survive: each used by one caller at a time, replaced when it breaks.

A statement that has been sent is never cancelled. asyncpg answers the cancellation of a task by asking the
server to cancel the query, and a commit that is cancelled while it waits for a standby reports success
without having reached it. So work runs in a task of its own: a caller that is cancelled stops waiting, the
work goes on to its end, and the connection is free only then. (Batches of writes have such a task already.)
A connection that stays silent for too long is cut, not cancelled.

Work may run twice. If a connection breaks, nobody knows whether the transaction was committed; everything
the store does is safe to repeat, so it is repeated once on a fresh connection, which hides a restart of the
server that happened while we were idle.

No connection is kept for ever: after a failover by DNS or by a load balancer an old one may lead to a server that
is still alive and no longer the right one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from kagzi.errors import KagziError, Unavailable
from kagzi.store.postgres.connection import COLLISIONS, Connector, is_outage, logger, translate

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

T = TypeVar("T")
Work = Callable[["Connection"], Awaitable[T]]

_COLLISION_RETRIES = 5
_SILENCE_SECONDS = 15.0  # longer than statement_timeout, which a wait for a standby ignores
_AGE_SECONDS = 1800.0  # a quarter more or less, lest all connections of all processes be made anew at once
_AGE_AGAIN_SECONDS = 60.0
_FIRST_BACKOFF = 0.05
_LAST_BACKOFF = 2.0


class Line:
    """One connection. Callers that come while it is busy wait in order."""

    def __init__(self, connector: Connector, chance: random.Random, **settings: str) -> None:
        self._connector = connector
        self._chance = chance
        self._settings = settings
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._failures = 0
        self._not_before = 0.0
        self._era = 0
        self._good_until = 0.0
        self._unsure = False
        self._closed = False
        self._busy_since: float | None = None
        self._watched = False
        self.server_pid = 0

    async def run(self, work: Work[T]) -> T:
        """Does the work on this line, to its end even if the caller goes away."""
        return await to_the_end(self.do(work))

    async def close(self) -> None:
        """Waits for the work under way, then hangs up."""
        self._closed = True
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                await hang_up(connection)

    async def do(self, work: Work[T]) -> T:
        """Does the work on this line, for callers that cannot be cancelled."""
        async with self._lock:
            collisions = 0
            while True:
                connection, fresh = await self._connected()
                self._watch()
                try:
                    answer = await work(connection)
                    if self._unsure:
                        self._hang_up()
                        raise Unavailable("PostgreSQL committed without its standby; trying again is safe")
                    return answer
                except COLLISIONS:
                    collisions += 1
                    if collisions > _COLLISION_RETRIES:
                        raise Unavailable("PostgreSQL is too busy with the same runs; try again") from None
                    await asyncio.sleep(self._chance.uniform(0.001, 0.01) * 2**collisions)
                except KagziError:
                    raise
                except asyncio.CancelledError:
                    # In the middle of a transaction: whoever came next would be part of it, and believe it durable.
                    self._hang_up()
                    raise
                except Exception as error:
                    self._connector.heed(error)
                    broken = is_outage(error) and (isinstance(error, _BROKEN) or connection.is_closed())
                    if broken:
                        self._connector.doubt(self._era)
                        self._hang_up()
                    if fresh or not broken:
                        raise translate(error) from None
                finally:
                    self._busy_since = None

    async def _connected(self) -> tuple[Connection, bool]:
        """Returns a connection, and whether it has just been made."""
        if self._closed:
            raise Unavailable("the store is closed")
        loop = asyncio.get_running_loop()
        connection = self._connection
        if connection is not None and not connection.is_closed():
            if self._era != self._connector.era:
                self._hang_up()
            elif loop.time() < self._good_until:
                return connection, False
            else:
                return await self._renew(connection, loop)
        if (pause := self._not_before - loop.time()) > 0:
            await asyncio.sleep(pause)
        try:
            return await self._connect(loop), True
        except KagziError as error:
            self._failures += 1
            ceiling = min(_LAST_BACKOFF, _FIRST_BACKOFF * 2 ** min(self._failures, 10))
            self._not_before = loop.time() + ceiling * self._chance.uniform(0.5, 1.0)
            raise Unavailable(str(error)) from None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        era = self._connector.era
        connection = await self._connector.connect(**self._settings)
        self._failures = 0
        self._unsure = False
        self._era = era
        self._good_until = loop.time() + lifetime(self._chance)
        self._connection = connection
        self.server_pid = connection.get_server_pid()
        connection.add_log_listener(self._on_warning)
        return connection

    async def _renew(self, old: Connection, loop: asyncio.AbstractEventLoop) -> tuple[Connection, bool]:
        """Returns a new connection in place of one that has grown old, or the old one if none can be made."""
        try:
            connection = await self._connect(loop)
        except KagziError:
            self._good_until = loop.time() + _AGE_AGAIN_SECONDS
            return old, False
        await hang_up(old)
        return connection, True

    def _watch(self) -> None:
        # One timer for as long as there is work, rather than one for each piece of it.
        loop = asyncio.get_running_loop()
        self._busy_since = loop.time()
        if not self._watched:
            self._watched = True
            loop.call_later(_SILENCE_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched = self._busy_since is not None
        if self._busy_since is None:
            return
        left = self._busy_since + _SILENCE_SECONDS - loop.time()
        if left <= 0 and self._connection is not None:
            self._connection.terminate()
        loop.call_later(max(left, 1.0), self._look, loop)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def _on_warning(self, connection: object, message: asyncpg.PostgresLogMessage) -> None:
        # "canceling wait for synchronous replication …": the commit is reported as done and is not safe. The
        # text is translated, so the class has to do; no statement of ours raises a warning of its own.
        del connection
        if isinstance(message, asyncpg.PostgresWarning) and message.sqlstate == "01000":
            logger.warning("PostgreSQL warns: %s", message)
            self._unsure = True


# Errors after which a connection is of no use: it is gone, or leads to a server that will not write again.
_BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InternalClientError,
    asyncpg.InterfaceError,
    OSError,
)


class Pool:
    """Several lines, for work that needs no order. The one used last is taken first, so few are ever opened."""

    def __init__(self, connector: Connector, chance: random.Random, size: int) -> None:
        self._lines = [Line(connector, chance) for _ in range(size)]
        self._free = list(self._lines)
        self._slots = asyncio.Semaphore(size)

    async def run(self, work: Work[T]) -> T:
        return await to_the_end(self._run(work))

    async def close(self) -> None:
        for line in self._lines:
            await line.close()

    async def _run(self, work: Work[T]) -> T:
        async with self._slots:
            line = self._free.pop()
            try:
                return await line.do(work)
            finally:
                self._free.append(line)


_under_way: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly


async def to_the_end(work: Coroutine[object, object, T]) -> T:
    """Awaits the work in a task of its own, which a caller that is cancelled leaves behind.

    The task hands its answer over itself: asyncio.shield() would take two more turns of the loop.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    _under_way.add(loop.create_task(_answer(work, answer)))
    return await answer


async def _answer(work: Coroutine[object, object, T], answer: asyncio.Future[T]) -> None:
    try:
        value = await work
    except asyncio.CancelledError:
        answer.cancel()  # only a loop that is shutting down cancels this task
        raise
    except BaseException as error:
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(value)
    finally:
        task = asyncio.current_task()
        _under_way.discard(task)


def lifetime(chance: random.Random) -> float:
    """Returns for how many seconds to keep a connection."""
    return _AGE_SECONDS * chance.uniform(0.75, 1.25)


async def hang_up(connection: Connection) -> None:
    try:
        await connection.close(timeout=2)
    except Exception:
        connection.terminate()

"""Transactions of steps: a connection for the body, on which its writes and its recorded result commit together.

They have connections of their own, apart from those of the store (`body_links.py`): a body may take its time.

The end is three statements on the body's connection: `end_step`, the chunk as every chunk is written (under the fence,
which locks the run), and COMMIT. The run is locked only then, so that the body, however long it takes, holds up neither
heartbeats nor those who take the run over: a body whose lease was lost finds that out in the second, and rolls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar, cast

from kagzi.api.operations import Chunk, ChunkAnswer, Started, StartRun
from kagzi.api.transactions import BeginTransaction
from kagzi.core.driving import drive
from kagzi.core.instant import Instant, Span
from kagzi.errors import Unavailable
from kagzi.store.postgres.body_links import Link, Links
from kagzi.store.postgres.borrowed import Borrowed, check_database, start_in
from kagzi.store.postgres.chunks import apply_chunks
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Applied
from kagzi.store.sessions import has_ended

T = TypeVar("T")

MOST_OPEN: Final = 10  # transactions of steps at once in a process; more wait for their turn
_BEGIN: Final = STATEMENTS["begin_step"]
_END: Final = STATEMENTS["end_step"]
_CHECK_CONSTRAINTS: Final = STATEMENTS["check_constraints"]


class Transactions:
    """See `store.protocol.transactions.Transactions`."""

    exclusive = False

    def __init__(self, url: str, secret: Callable[[], bytes], now: Callable[[], Instant | None]) -> None:
        self._secret = secret
        self._now = now
        self._links = Links(url)
        self.connector = self._links.connector
        self._slots = asyncio.Semaphore(MOST_OPEN)
        self._known: Any = None  # the engine of SQLAlchemy that leads to our database

    async def start_in(self, connection: object, start: StartRun) -> Started:
        return await start_in(connection, start, secret=self._secret(), now=self._now())

    async def begin(
        self, wanted: BeginTransaction, ready: Callable[[], Awaitable[None]], longest: Span
    ) -> PostgresTransaction:
        await ready()
        await self._slots.acquire()
        try:
            link = self._links.link(wanted)
            secret = None if wanted.engine is None or wanted.engine is self._known else self._secret()
            transaction = PostgresTransaction(link, wanted, self._now, self._slots.release)
            await transaction.begin(longest, secret)
            if wanted.engine is not None:
                self._known = wanted.engine
            return transaction
        except BaseException:
            self._slots.release()
            raise

    async def close(self) -> None:
        await self._links.close()


class PostgresTransaction:
    """See `kagzi.api.transactions.StepTransaction`."""

    def __init__(
        self, link: Link, wanted: BeginTransaction, now: Callable[[], Instant | None], ended: Callable[[], None]
    ) -> None:
        self._link = link
        self._step = wanted.step
        self._mark = wanted.mark
        self._now = now
        self._ended: Callable[[], None] | None = ended
        self._borrowed: Borrowed
        self.connection: Any = None

    async def begin(self, longest: Span, secret: bytes | None) -> None:
        async def begin() -> None:
            self._borrowed = borrowed = await self._link.open()
            try:
                if secret is not None:
                    await check_database(borrowed, secret)
                await borrowed.fetch(_BEGIN, self._mark, f"{longest // 1000}ms")
            except BaseException:
                await self._link.roll_back()
                raise

        try:
            await self._do(begin())
        except asyncio.CancelledError:
            await self._do(self._link.roll_back())
            raise
        self.connection = self._link.body

    async def prepare(self) -> None:
        async def prepare() -> None:
            await self._link.flush()
            rows = await self._borrowed.fetch(_END, self._mark)
            if not rows[0]["same"]:
                raise has_ended(self._step)
            await self._borrowed.execute(_CHECK_CONSTRAINTS)

        await self._do(prepare())

    async def commit(self, chunk: Chunk) -> Applied:
        sent = False

        async def commit() -> Applied:
            nonlocal sent
            applied = await apply_chunks(cast("Any", self._borrowed), [chunk], self._now())
            (answer,) = applied.answers
            if isinstance(answer, Exception):
                raise answer
            if answer is ChunkAnswer.LEASE_LOST:
                await self._link.roll_back()
                return applied
            sent = True
            await self._link.commit()
            return applied

        try:
            applied = await self._do(commit())
        except BaseException as error:
            await self.roll_back()
            if sent and not _was_refused(error):
                raise Unavailable("the connection was lost while a step's transaction was being committed") from error
            raise
        self._over()
        return applied

    async def interrupt(self) -> None:
        if self._ended is not None:
            self._link.interrupt()

    async def roll_back(self) -> None:
        if self._ended is not None:
            self._over()
            await self._do(self._link.roll_back())

    def _over(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """A thread that was sent off is waited for by those who are cancelled, too: two must not use the connection."""
        if not self._link.blocking:
            return await work
        thread = asyncio.ensure_future(asyncio.to_thread(drive, work))
        cancelled = False
        while not thread.done():
            try:
                await asyncio.wait((thread,))
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            thread.exception()  # counts as retrieved
            raise asyncio.CancelledError
        return thread.result()


def _was_refused(error: BaseException) -> bool:
    """Whether the server itself said that it did not commit."""
    for one in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(one, "sqlstate", None)
        if state is not None:
            return not state.startswith(("08", "57"))
    return False

"""Transactions of steps: a connection to the same file for the body, on which its writes and its recorded result commit
together.

SQLite has one writer at a time, so while such a transaction is open nobody else writes to the file: no other run, no
heartbeat, no other process. What keeps that from hurting:

* The writer's thread stands aside for it: the turn of a transaction is a job of that thread like any other. So it comes
  in order, nothing of ours runs into SQLite's busy timeout meanwhile, and the commit is done on that thread, too.
* One transaction asks for its turn at a time; between two of them everybody else has theirs.
* It is open for a third of a lease at most. The thread that stands aside ends it then, whatever the body does.

A write of the same run that waits behind the transaction, and that the transaction's own end waits for, would be a
deadlock. It is for the worker to have none under way when it begins (`ready`), and to send none until it has ended.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from queue import Empty, SimpleQueue
from typing import Any, ClassVar
from weakref import WeakSet

from kagzi.api.operations import Answer, Chunk, ChunkAnswer, Started, StartRun
from kagzi.api.transactions import BeginTransaction, is_async_engine
from kagzi.core.duration import format_span
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.errors import InvalidRequest, StepTimeout, Unavailable
from kagzi.store.protocol.changes import Applied
from kagzi.store.sessions import has_ended, make_session
from kagzi.store.sqlite.borrowed import check_file, start_in
from kagzi.store.sqlite.chunks import apply_chunks
from kagzi.store.sqlite.connection import Database, begin

_Work = Callable[[], Applied]


class Transactions:
    """See `store.protocol.transactions.Transactions`."""

    exclusive = True

    def __init__(self, database: Database, now: Callable[[], Instant]) -> None:
        self._database = database
        self._now = now
        self._one_at_a_time = asyncio.Lock()

    async def start_in(self, connection: object, start: StartRun) -> Started:
        """Starts a run in the thread of the caller, whose connection it is."""
        return start_in(connection, start, path=self._database.path, now=self._now())

    async def begin(
        self, wanted: BeginTransaction, ready: Callable[[], Awaitable[None]], longest: Span
    ) -> SqliteTransaction:
        path = self._database.path
        if path is None or self._database.inline:
            raise InvalidRequest(
                f"the step {wanted.step} has a transaction, and memory:// has no tables of yours: give the app the URL "
                "of a file or of PostgreSQL, or replace the step in the test (env.mock)"
            )
        writing: _Writing
        if wanted.engine is None:
            writing = _OwnConnection(path, wanted.step)
        else:
            if is_async_engine(wanted.engine):
                raise InvalidRequest(
                    f"the step {wanted.step} has a transaction, and on SQLite an async engine of SQLAlchemy cannot be "
                    "used for that: give the app one made by create_engine(), and make the step `def`"
                )
            writing = _SessionConnection(wanted.engine, path)
        await self._one_at_a_time.acquire()
        transaction = SqliteTransaction(self._database, writing, wanted.step, self._now, longest)
        try:
            await ready()
            turn = transaction.ask()
        except BaseException:
            self._one_at_a_time.release()
            raise
        turn.add_done_callback(lambda _: self._one_at_a_time.release())
        await transaction.begin()
        return transaction


class SqliteTransaction:
    """See `kagzi.api.transactions.StepTransaction`."""

    def __init__(
        self, database: Database, writing: _Writing, step: str, now: Callable[[], Instant], longest: Span
    ) -> None:
        self._database = database
        self._writing = writing
        self._step = step
        self._now = now
        self._longest = longest
        self._orders: SimpleQueue[_Work | None] = SimpleQueue()  # what is to become of it; None: roll back
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turn: asyncio.Future[Applied | None]
        self._late = False
        self.connection: Any = None

    def ask(self) -> asyncio.Future[Applied | None]:
        """Asks for a turn at writing, which is over when the future that this returns is done."""
        loop = asyncio.get_running_loop()
        self._turn = asyncio.ensure_future(self._database.stand_aside(lambda: self._stand_aside(loop)))
        return self._turn

    async def begin(self) -> None:
        try:
            await asyncio.wait((self._begun, self._turn), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.roll_back()
            raise
        if not self._begun.done():
            self._turn.result()  # raises
        self.connection = self._writing.body

    def _stand_aside(self, loop: asyncio.AbstractEventLoop) -> Applied | None:
        """Keeps the writer's thread busy for the turn: nothing else is written until this returns."""
        connection = self._writing.open()
        try:
            begin(connection)
            self._writing.begun()
            loop.call_soon_threadsafe(self._begun.set_result, None)
            try:
                order = self._orders.get(timeout=self._longest / SECOND)
            except Empty:
                self._late = True
                return None
            return None if order is None else order()
        finally:
            self._writing.close()

    async def prepare(self) -> None:
        self._check_time()
        if self._writing.has_session:
            await asyncio.to_thread(self._writing.flush)
        self._writing.check(self._step)

    def _check_time(self) -> None:
        if self._late:
            raise StepTimeout(
                f"the transaction of step {self._step} was open for longer than {format_span(self._longest)}, in which "
                "nobody else can write to the SQLite file, and was rolled back: do what takes time before it, in "
                "another step"
            )

    async def commit(self, chunk: Chunk) -> Applied:
        problem: BaseException | None = None
        committed = False

        def commit() -> Applied:
            nonlocal problem, committed
            connection = self._writing.taken_back()
            answers: list[Answer] = [ChunkAnswer.DONE]
            try:
                woken = apply_chunks(connection, [(0, chunk)], answers, self._now())
                if answers[0] is not ChunkAnswer.LEASE_LOST:
                    connection.execute("COMMIT")
                    committed = True
            except Exception as error:
                problem = error  # not through the lane, which would take it for an outage
                woken = []
            return Applied(answers, woken)

        self._orders.put(commit)
        applied = await self._ended()
        self._check_time()
        if problem is not None:
            raise problem
        if applied is None:
            raise Unavailable("the store was closed before a step's transaction was committed")
        if committed:
            try:
                self._database.check_file()
            except Exception as error:
                raise Unavailable(str(error)) from error
        return applied

    async def interrupt(self) -> None:
        await self.roll_back()

    async def roll_back(self) -> None:
        if not self._turn.done():
            self._orders.put(None)
            await self._ended()

    async def _ended(self) -> Applied | None:
        """Waits for the end of the turn, however often it is cancelled."""
        cancelled = False
        while not self._turn.done():
            try:
                await asyncio.wait((self._turn,))
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return None if self._turn.cancelled() or self._turn.exception() is not None else self._turn.result()


class _Writing:
    """A connection to the file, of one kind. All but `flush` and `check` is called by the writer's thread."""

    body: Any  # what the body gets
    has_session: ClassVar[bool] = False

    def open(self) -> sqlite3.Connection:
        raise NotImplementedError

    def begun(self) -> None: ...

    def flush(self) -> None: ...

    def check(self, step: str) -> None: ...

    def taken_back(self) -> sqlite3.Connection:
        """Returns the connection as our statements need it."""
        raise NotImplementedError

    def close(self) -> None:
        """Rolls back what was not committed. A body that still runs cannot use it any more."""
        raise NotImplementedError


class _OwnConnection(_Writing):
    def __init__(self, path: str, step: str) -> None:
        self._path = path
        self._step = step
        self.body: StepConnection

    def open(self) -> sqlite3.Connection:
        self.body = sqlite3.connect(
            self._path, timeout=0.0, isolation_level=None, check_same_thread=False, factory=StepConnection
        )
        self.body.step = self._step
        self.body.execute("PRAGMA synchronous = FULL")
        return self.body

    def begun(self) -> None:
        self.body.set_authorizer(_refuse_ends)

    def taken_back(self) -> sqlite3.Connection:
        with self.body.guard:
            self.body.set_authorizer(None)
            self.body.row_factory = None
            self.body.text_factory = str
            return self.body

    def close(self) -> None:
        body = self.body
        while not body.guard.acquire(timeout=0.05):  # held by a body only while SQLite is at work for it
            body.interrupt()
        try:
            body.over = True
            body.set_authorizer(None)
            # A cursor that the body keeps would be in the way of ROLLBACK if something was interrupted, and closing
            # alone would leave the file locked for as long as there is one.
            for cursor in tuple(body.cursors):
                sqlite3.Cursor.close(cursor)
            sqlite3.Connection.rollback(body)
        finally:
            sqlite3.Connection.close(body)
            body.guard.release()


class _SessionConnection(_Writing):
    has_session = True

    def __init__(self, engine: Any, path: str) -> None:
        self._engine = engine
        self._path = path
        self._held: Any = None
        self._raw: sqlite3.Connection

    def open(self) -> sqlite3.Connection:
        self._held = self._engine.connect()
        raw = self._held.connection.dbapi_connection
        if not isinstance(raw, sqlite3.Connection):
            self._held.close()
            raise InvalidRequest("engine= leads to another database than the app's file; nothing was written")
        try:
            check_file(raw, self._path)
        except BaseException:
            self._held.close()
            raise
        self._raw = raw
        return raw

    def begun(self) -> None:
        self._held.begin()
        self.body = make_session(self._held, awaited=False)

    def flush(self) -> None:
        self.body.commit()  # of its savepoint

    def check(self, step: str) -> None:
        if not self._raw.in_transaction:
            raise has_ended(step)

    def taken_back(self) -> sqlite3.Connection:
        self._raw.row_factory = None
        return self._raw

    def close(self) -> None:
        if self._raw.in_transaction:
            self._raw.rollback()
            self._held.invalidate()  # a body may still use it
        self._held.close()


class _StepCursor(sqlite3.Cursor):
    connection: StepConnection


class StepConnection(sqlite3.Connection):
    """A connection whose transaction is ended by Kagzi alone. A thread that was given up on finds it closed: it is
    never closed while SQLite is at work for the body."""

    step = ""
    over = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.guard = threading.RLock()
        self.cursors: WeakSet[sqlite3.Cursor] = WeakSet()
        super().__init__(*args, **kwargs)

    def cursor(self, factory: Any = None) -> Any:
        if self.over:
            raise StepTimeout(f"the transaction of step {self.step} is over; nothing was written")
        cursor = super().cursor(factory or _StepCursor)
        self.cursors.add(cursor)
        return cursor

    def execute(self, *args: Any) -> sqlite3.Cursor:
        return self.cursor().execute(*args)  # type: ignore[no-any-return]

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        return self.cursor().executemany(*args)  # type: ignore[no-any-return]

    def commit(self) -> None:
        raise has_ended(self.step)

    def rollback(self) -> None:
        raise has_ended(self.step)

    def close(self) -> None:
        raise has_ended(self.step)

    def executescript(self, sql_script: str) -> sqlite3.Cursor:  # noqa: ARG002
        raise InvalidRequest(
            f"executescript() commits first, which the step {self.step} must leave to Kagzi; call execute() for each "
            "statement"
        )

    def __exit__(self, *_: object) -> Any:
        """`with connection:` commits elsewhere; here Kagzi does, when the step has returned."""
        return False


def _guarded(name: str) -> Any:
    method = getattr(sqlite3.Cursor, name)

    def call(self: _StepCursor, *args: Any, **kwargs: Any) -> Any:
        connection = self.connection
        with connection.guard:
            if connection.over:
                raise StepTimeout(f"the transaction of step {connection.step} is over; nothing was written")
            try:
                return method(self, *args, **kwargs)
            except sqlite3.DatabaseError as error:
                if "not authorized" in str(error):
                    raise has_ended(connection.step) from error
                raise

    call.__name__ = name
    return call


for _name in ("execute", "executemany", "fetchone", "fetchmany", "fetchall", "__next__"):
    setattr(_StepCursor, _name, _guarded(_name))


def _refuse_ends(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK

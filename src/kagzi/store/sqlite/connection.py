"""One SQLite database, and who may touch it when.

SQLite has one writer at a time, so each database has one writer thread with one connection. Everything that
changes rows is a job for it and runs in a transaction of its own, begun with BEGIN IMMEDIATE: a transaction
that begins as a reader and then writes can be refused at once, whatever the busy timeout says. Within a
transaction the job holds the only write lock there is, in any process, so it may read, decide in Python, and
write, and nothing changes in between.

Reads have a thread and a connection of their own: in WAL mode they neither wait for the writer nor hold it
up. A database in memory exists in one connection only, so there reads take their turn with the writes.

Threads keep two promises. The event loop never waits for the disk, and a heartbeat from another thread's loop
is served although the main loop is blocked: a sibling store shares these threads and gets its answers in its
own loop. A job that was handed over runs to its end, whoever is cancelled meanwhile; only its answer is
dropped then.

`inline` does without threads: jobs run at once in the caller's thread. The simulation needs that to be
deterministic.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol, TypeVar

from kagzi.errors import KagziError, Unavailable
from kagzi.store.migrate import RETENTION_DAYS
from kagzi.store.sqlite.errors import is_busy, translate
from kagzi.store.sqlite.files import OpenedFile, prepare_file
from kagzi.store.sqlite.schema import migrate, migrate_in_memory

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

BUSY_SECONDS: Final = 5.0
# How often to see whether another process has written: often for a second after one did, since an answer and the next
# question are then on their way, and else seldom enough to cost nothing.
WATCH_SECONDS: Final = 0.01
_WATCH_CLOSELY_SECONDS: Final = 0.001
_LOOKS_CLOSELY: Final = 1000
# A checkpoint stalls the commit it falls into; every 16 MB of log it is rare enough and short enough.
CHECKPOINT_PAGES: Final = 4000
_JOBS_BETWEEN_LOOKS: Final = 8


class Database:
    """The connections to one database, shared by a store and its siblings, closed with the last of them."""

    def __init__(self, path: str | None, *, inline: bool = False, retention_days: int = RETENTION_DAYS) -> None:
        self.path = path
        self.inline = inline
        self._retention_days = retention_days
        self._users = 0
        self._guard = threading.Lock()
        self._writer: _Lane | None = None
        self._reader: _Lane | None = None
        self._file: OpenedFile | None = None

    async def open(self) -> None:
        with self._guard:
            self._users += 1
            if self._users > 1:
                return
            writer = self._new_lane("writer")
            reader = writer if self.path is None or self.inline else self._new_lane("reader")
        try:
            await writer.connect(self._open_writer)
            if reader is not writer:
                await reader.connect(self._open_reader)
        except BaseException:
            with self._guard:
                self._users -= 1
            await reader.stop()
            await writer.stop()
            raise
        self._writer, self._reader = writer, reader

    async def close(self) -> None:
        with self._guard:
            if self._users == 0:
                return
            self._users -= 1
            if self._users > 0:
                return
            writer, reader = self._writer, self._reader
            self._writer = self._reader = None
        # The reader goes first: the last connection to close folds the log back into the database, and it
        # must write.
        if reader is not None and reader is not writer:
            await reader.stop()
        if writer is not None:
            await writer.stop()

    async def write(self, job: Job[T]) -> T:
        """Runs a job in a transaction. Raises Unavailable if it could not be made durable; it then left no trace."""
        if self._writer is None:
            raise Unavailable("the store is closed")
        return await self._writer.run(lambda connection: self._transact(connection, job))

    def _transact(self, connection: sqlite3.Connection, job: Job[T]) -> T:
        result = transact(connection, job)
        self.check_file()  # before anybody is told that it is stored
        return result

    async def stand_aside(self, work: Callable[[], T]) -> T:
        """Has the writer's thread do something else, on another connection: nothing is written here meanwhile."""
        if self._writer is None:
            raise Unavailable("the store is closed")
        return await self._writer.run(lambda _: work())

    def check_file(self) -> None:
        """Raises if the file is not there any more, so that what was written to it is lost."""
        if self._file is not None:
            self._file.check()

    async def read(self, job: Job[T]) -> T:
        if self._reader is None:
            raise Unavailable("the store is closed")
        return await self._reader.run(job)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` in this loop when another process has written. Returns how to stop."""
        if self._writer is None:
            raise Unavailable("the store is closed")
        return self._writer.watch(changed)

    def _new_lane(self, name: str) -> _Lane:
        return _InlineLane(self.path) if self.inline else _ThreadLane(f"kagzi-sqlite-{name}", self.path)

    def _open_writer(self) -> sqlite3.Connection:
        if self.path is not None:
            prepare_file(self.path)
        connection = connect(self.path)
        try:
            if self.path is not None:
                # With no busy timeout of SQLite's own: begin() waits in finer steps than its handler does.
                connection.execute("PRAGMA busy_timeout = 0")
                use_write_ahead_log(connection)
                connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
                connection.execute("PRAGMA cache_size = -8000")
                self._file = OpenedFile(self.path)
                migrate(connection, begin, self._retention_days)
            else:
                migrate_in_memory(connection, begin, self._retention_days)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_reader(self) -> sqlite3.Connection:
        connection = connect(self.path)
        connection.execute("PRAGMA query_only = 1")
        return connection


def connect(path: str | None) -> sqlite3.Connection:
    connection = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # we begin and commit ourselves
        check_same_thread=False,  # opened, used and closed by one lane, which may be the caller's thread
        cached_statements=256,
    )
    try:
        # NORMAL would be faster and may lose the last commits when the power fails.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # SQLite does not call its busy handler for this statement, and two processes may open a new file at once.
    mode = _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    if mode != "wal":
        raise Unavailable(
            f"SQLite cannot keep a write-ahead log for this file (it stays in mode {mode!r}). "
            "Put the database on a local disk; network file systems do not work"
        )


def begin(connection: sqlite3.Connection) -> None:
    """Begins a writing transaction, and waits for another process that is in one."""
    _patiently(lambda: connection.execute("BEGIN IMMEDIATE"))


def transact(connection: sqlite3.Connection, job: Job[T]) -> T:
    begin(connection)
    try:
        result = job(connection)
        connection.execute("COMMIT")
    except BaseException:
        # A full disk may have ended the transaction already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _patiently(attempt: Callable[[], T]) -> T:
    # SQLite's own handler sleeps whole milliseconds at first and up to a tenth of a second later; a commit of
    # another process takes a fraction of one.
    waited, pause = 0.0, 0.0001
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or waited >= BUSY_SECONDS:
                raise
        time.sleep(pause)
        waited += pause
        pause = min(pause * 1.5, 0.005)


class _Lane(Protocol):
    """Runs jobs on one connection, one at a time, in the order they came."""

    async def connect(self, opening: Callable[[], sqlite3.Connection]) -> None: ...

    async def run(self, job: Job[T]) -> T: ...

    async def stop(self) -> None: ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]: ...


class _InlineLane:
    def __init__(self, path: str | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    async def connect(self, opening: Callable[[], sqlite3.Connection]) -> None:
        try:
            self._connection = opening()
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    async def run(self, job: Job[T]) -> T:
        if self._connection is None:
            raise Unavailable("the store is closed")
        try:
            return job(self._connection)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    async def stop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002 (nobody looks)
        return lambda: None


_Task = Callable[[], None]


class _ThreadLane:
    def __init__(self, name: str, path: str | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._stopping = False
        self._watchers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._data_version: int | None = None
        self._looks_closely = 0
        # A daemon: whoever forgets to close the store should still be able to leave the program.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def connect(self, opening: Callable[[], sqlite3.Connection]) -> None:
        def connect() -> None:
            self._connection = opening()

        self._thread.start()
        await self._submit(connect)

    async def run(self, job: Job[T]) -> T:
        def with_connection() -> T:
            if self._connection is None:
                raise Unavailable("the store is closed")
            return job(self._connection)

        return await self._submit(with_connection)

    async def stop(self) -> None:
        if not self._thread.is_alive():
            return

        def close() -> None:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

        try:
            # Jobs handed over earlier come first, so nothing in flight is lost.
            await asyncio.shield(self._submit(close))
        finally:
            self._stopping = True
            self._tasks.put(None)
            self._thread.join()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        watcher = (asyncio.get_running_loop(), changed)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        self._watchers.append(watcher)
        # Whatever was written before this moment may have been missed, so the first look always says
        # "changed".
        self._data_version = None
        self._tasks.put(self._look)  # wakes the thread, which from now on looks again and again
        return stop

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._stopping:
            raise Unavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def task() -> None:
            try:
                answer: Callable[[], None] = _answer(future, work())
            except sqlite3.Error as error:
                answer = _refusal(future, translate(error, self._path), error)
            except BaseException as error:
                answer = _refusal(future, error, error.__cause__)
            try:
                loop.call_soon_threadsafe(answer)
            except RuntimeError:
                pass  # the loop that asked is closed; the job is done all the same

        self._tasks.put(task)
        return future

    def _work(self) -> None:
        since_look = 0
        while True:
            try:
                task = self._tasks.get(timeout=self._patience() if self._watchers else None)
            except Empty:
                task = self._look
                self._looks_closely = max(0, self._looks_closely - 1)
            if task is None:
                return
            task()
            # A lane that is never idle looks between its jobs.
            since_look = since_look + 1 if self._watchers and task is not self._look else 0
            if since_look >= _JOBS_BETWEEN_LOOKS:
                since_look = 0
                self._look()

    def _patience(self) -> float:
        return _WATCH_CLOSELY_SECONDS if self._looks_closely else WATCH_SECONDS

    def _look(self) -> None:
        """Looks whether another process has written. SQLite does not count what this connection, the only one of ours,
        wrote itself.
        """
        if self._connection is None:
            return
        try:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return  # a hint; the next look may succeed
        if version != self._data_version:
            self._looks_closely = _LOOKS_CLOSELY
            for loop, changed in tuple(self._watchers):
                try:
                    loop.call_soon_threadsafe(changed)
                except RuntimeError:
                    pass
        self._data_version = version


def _answer(future: asyncio.Future[T], result: T) -> Callable[[], None]:
    def deliver() -> None:
        if not future.done():
            future.set_result(result)

    return deliver


def _refusal(
    future: asyncio.Future[T], error: BaseException | KagziError, cause: BaseException | None
) -> Callable[[], None]:
    def deliver() -> None:
        if not future.done():
            error.__cause__ = cause
            future.set_exception(error)

    return deliver

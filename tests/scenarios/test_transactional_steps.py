"""Steps with a transaction: what they write and what is recorded of them are there together, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, Retry, RunStatus, StepTimeout, Unavailable, WorkflowFailed
from kagzi.api.operations import Chunk, StartStep
from kagzi.engine.transactions import Transaction
from tests.scenarios.conftest import served, until

psycopg = pytest.importorskip("psycopg")
sqlalchemy = pytest.importorskip("sqlalchemy")
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # noqa: E402
from sqlalchemy.orm import Session  # noqa: E402

QUICKLY = Retry.fixed("10ms", attempts=3)


class Books:
    """A table of the user's own, beside Kagzi's."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.postgres = url.startswith("postgresql")
        self.change("CREATE TABLE entries (name text)")

    def change(self, statement: str) -> list[Any]:
        if self.postgres:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []
        file = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)
        try:
            with file:
                return file.execute(statement).fetchall()
        finally:
            file.close()

    def names(self) -> list[str]:
        return sorted(name for (name,) in self.change("SELECT name FROM entries"))

    async def enter(self, name: str) -> None:
        """In an `async def` step."""
        connection = kagzi.connection()
        if self.postgres:
            assert isinstance(connection, asyncpg.Connection)
            await connection.execute("INSERT INTO entries VALUES ($1)", name)
        else:
            assert isinstance(connection, sqlite3.Connection)
            connection.execute("INSERT INTO entries VALUES (?)", (name,))

    def enter_sync(self, name: str) -> None:
        """In a `def` step."""
        connection = kagzi.connection()
        if self.postgres:
            assert isinstance(connection, psycopg.Connection)
            connection.execute("INSERT INTO entries VALUES (%s)", (name,))
        else:
            connection.execute("INSERT INTO entries VALUES (?)", (name,))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Books]:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
    books = Books(url)
    yield books
    books.change("DROP TABLE entries")


async def test_writes_are_there_with_the_result_and_at_the_cost_of_one_commit(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Kagzi(books.url)
    seen: list[list[str]] = []

    @app.step(transaction=True)
    async def enter(name: str) -> str:
        await books.enter(name)
        seen.append(books.names())  # what others see meanwhile
        return name

    @app.step(transaction=True, retry=QUICKLY)
    def enter_sync(name: str) -> int:
        books.enter_sync(name)
        assert kagzi.current().step_id.startswith("enter_sync")
        if kagzi.attempt() < 3:
            raise ValueError("rolls back")
        return kagzi.attempt()

    @app.workflow
    async def two() -> tuple[str, int]:
        return await enter("a"), await enter_sync("b")

    async with app, app.worker():
        committed = _count_commits(monkeypatch)
        applied: list[Any] = []
        store: Any = app.engine.store  # type: ignore[attr-defined]
        apply = store.work.apply

        async def counted(writes: Any) -> Any:
            applied.extend(write for write in writes if isinstance(write, Chunk))
            return await apply(writes)

        monkeypatch.setattr(store.work, "apply", counted)
        run = await two.start()
        assert await run.result(timeout=60) == ("a", 3)
        steps = await run.steps()
    assert books.names() == ["a", "b"]
    assert seen == [[]]
    assert [(step.name, step.attempt, step.status) for step in steps] == [
        ("enter", 1, "COMPLETED"),
        ("enter_sync", 1, "FAILED"),
        ("enter_sync", 2, "FAILED"),
        ("enter_sync", 3, "COMPLETED"),
    ]
    # The end of the run is in the transaction of its last step; only the two failures went another way.
    assert _kinds(committed) == [["CompleteStep"], ["CompleteStep", "CompleteRun"]]
    assert _kinds(applied) == [["FailStep"], ["FailStep"]]


async def test_many_at_once_beside_other_steps(books: Books) -> None:
    """On SQLite nobody else writes meanwhile: neither the run's other steps nor other runs may wait for ever."""
    app = Kagzi(books.url)

    @app.step(transaction=True)
    async def enter(name: str) -> None:
        await books.enter(name)
        kagzi.progress(0.5, name)
        await asyncio.sleep(0)

    @app.step(transaction=True)
    def enter_sync(name: str) -> None:
        books.enter_sync(name)

    @app.step
    async def other(number: int) -> int:
        await asyncio.sleep(0.001 * number)
        return number

    @app.workflow
    async def order(number: int) -> int:
        for turn in range(2):
            await asyncio.gather(
                *(enter(f"{number}/{turn}/{each}") for each in range(3)),
                enter_sync(f"{number}/{turn}/sync"),
                *(other(each) for each in range(5)),
            )
        return number

    async with app, app.worker():
        runs = [await order.start(number) for number in range(6)]
        assert [await run.result(timeout=120) for run in runs] == list(range(6))
    names = books.names()
    assert len(names) == len(set(names)) == 6 * 2 * 4


async def test_what_fails_is_rolled_back(books: Books) -> None:
    app = Kagzi(books.url)
    begun = threading.Event()

    @app.step(transaction=True, timeout="300ms", retry=Retry(attempts=1))
    async def too_long() -> None:
        await books.enter("too long")
        await asyncio.sleep(600)

    @app.step(transaction=True, timeout="300ms", retry=Retry(attempts=1))
    def too_long_sync() -> None:
        books.enter_sync("too long")
        while not kagzi.cancelled():
            threading.Event().wait(0.01)

    @app.step(transaction=True)
    async def cancelled() -> None:
        await books.enter("cancelled")
        begun.set()
        await asyncio.sleep(600)

    @app.step(transaction=True, retry=Retry(attempts=1))
    async def unserializable() -> Any:
        await books.enter("unserializable")
        return object()

    @app.step(transaction=True, retry=Retry(attempts=1))
    async def ends_it() -> None:
        await books.enter("ended")
        connection = kagzi.connection()
        if books.postgres:
            await connection.execute("ROLLBACK")
            await connection.execute("BEGIN")
        else:
            connection.execute("COMMIT")

    steps: dict[str, Callable[[], Any]] = {
        step.name: step for step in (too_long, too_long_sync, cancelled, unserializable, ends_it)
    }

    @app.workflow
    async def one(name: str) -> None:
        await steps[name]()

    async with app, app.worker():
        errors = {}
        for name in ("too_long", "too_long_sync", "unserializable", "ends_it"):
            with pytest.raises(WorkflowFailed) as failed:
                await (await one.start(name)).result(timeout=60)
            errors[name] = str(failed.value)
        run = await one.start("cancelled")
        await until(begun.is_set)
        await run.cancel()
        await until_status(run, RunStatus.CANCELLED)
    assert books.names() == []
    assert "timeout of 0.3 s" in errors["too_long"]
    assert "timeout of 0.3 s" in errors["too_long_sync"]
    assert "ended the transaction of its connection itself" in errors["ends_it"]


async def test_a_commit_that_fails_is_the_failure_of_an_attempt(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Kagzi(books.url)

    @app.step(transaction=True, retry=QUICKLY)
    async def enter(name: str) -> int:
        await books.enter(name)
        return kagzi.attempt()

    @app.workflow
    async def one(name: str, attempts: int) -> int:
        if attempts == 1:
            return await enter.options(retry=Retry(attempts=1))(name)
        return await enter(name)

    commit = Transaction.commit
    todo: list[str] = []

    async def failing(self: Transaction, chunk: Chunk) -> Any:
        what = todo.pop() if todo else "commit"
        if what == "refused":
            await self.roll_back()
            raise ValueError("refused at the commit")
        answer = await commit(self, chunk)
        if what == "unknown":
            raise Unavailable("the connection was lost")
        return answer

    monkeypatch.setattr(Transaction, "commit", failing)
    async with app, app.worker():
        todo[:] = ["refused", "refused"]
        assert await (await one.start("a", 3)).result(timeout=60) == 3
        assert books.names() == ["a"]
        todo[:] = ["refused"]
        with pytest.raises(WorkflowFailed, match="refused at the commit"):
            await (await one.start("b", 1)).result(timeout=60)
        assert books.names() == ["a"]
        todo[:] = ["unknown"]  # it was committed: the next execution sees that
        assert await (await one.start("c", 3)).result(timeout=60) == 1
    assert books.names() == ["a", "c"]


async def test_a_lost_lease_takes_the_writes_along(books: Books) -> None:
    """The token changes under the step, as when another worker has taken the run over."""
    app = Kagzi(books.url, lease="2s")
    table = "kagzi.workflow_runs" if books.postgres else "workflow_runs"
    executions: list[int] = []

    @app.step(transaction=True)
    async def enter() -> None:
        executions.append(len(executions))
        await books.enter(f"execution {len(executions)}")
        if len(executions) == 1:
            statement = f"UPDATE {table} SET token = '00000000-0000-4000-8000-000000000001' WHERE status = 'RUNNING'"
            connection = kagzi.connection()
            await connection.execute(statement) if books.postgres else connection.execute(statement)

    @app.workflow
    async def one() -> None:
        await enter()

    async with app, app.worker():
        await (await one.start()).result(timeout=60)
    assert books.names() == ["execution 2"]


async def test_a_session_of_sqlalchemy(books: Books) -> None:
    url = books.url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    app = Kagzi(books.url, engine=engine)

    @app.step(transaction=True, retry=QUICKLY)
    def enter(name: str) -> int:
        session = kagzi.connection()
        assert isinstance(session, Session)
        session.execute(sqlalchemy.text("INSERT INTO entries VALUES (:name)"), {"name": name})
        session.commit()  # as people are used to; it is Kagzi that commits
        if kagzi.attempt() == 1:
            raise ValueError("rolls back")
        return kagzi.attempt()

    @app.workflow
    async def two() -> int:
        return await enter("a") + await enter("b")

    with pytest.raises(InvalidRequest, match="make the step `def`"):

        @app.step(transaction=True)
        async def not_with_this_engine() -> None: ...

    async with app, app.worker():
        assert await (await two.start()).result(timeout=60) == 4
    assert books.names() == ["a", "b"]
    engine.dispose()


@pytest.mark.postgres
async def test_an_async_session_of_sqlalchemy_and_constraints_that_are_deferred(postgres_database: str) -> None:
    books = Books(postgres_database)
    books.change("ALTER TABLE entries ADD CONSTRAINT once UNIQUE (name) DEFERRABLE INITIALLY DEFERRED")
    engine = create_async_engine(postgres_database.replace("postgresql://", "postgresql+asyncpg://"))
    app = Kagzi(postgres_database, engine=engine)

    @app.step(transaction=True, retry=Retry(attempts=1))
    async def enter(name: str) -> str:
        session = kagzi.connection()
        assert isinstance(session, AsyncSession)
        await session.execute(sqlalchemy.text("INSERT INTO entries VALUES (:name)"), {"name": name})
        return name

    @app.workflow
    async def twice(name: str) -> str:
        first = await enter(name)
        try:
            await enter(name)
        except Exception as error:
            return f"{first}, then {type(error).__name__}"
        return "twice"

    try:
        async with app, app.worker():
            assert "IntegrityError" in await (await twice.start("a")).result(timeout=60)
        assert books.names() == ["a"]
        await engine.dispose()
    finally:
        books.change("DROP TABLE entries")


@pytest.mark.postgres
async def test_a_body_can_neither_end_its_transaction_nor_leave_something_to_the_next(postgres_database: str) -> None:
    books = Books(postgres_database)
    database = f"ALTER DATABASE {postgres_database.rpartition('/')[2]}"
    books.change(f"{database} SET default_transaction_isolation TO serializable")
    app = Kagzi(postgres_database)
    traces = (
        "SELECT pg_advisory_lock(pg_backend_pid())",
        "CREATE TEMPORARY TABLE notes (text text)",
        "SET ROLE pg_monitor",
        "RESET ROLE",
    )
    found = """SELECT current_setting('transaction_isolation'), to_regclass('pg_temp.notes') IS NULL,
        NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"""

    @app.step(transaction=True, retry=Retry(attempts=1))
    def enter_sync(how: str) -> Any:
        connection = kagzi.connection()
        row = connection.execute(found).fetchone()
        for trace in traces:
            connection.execute(trace)
        connection.cursor_factory = psycopg.RawCursor if how == "return" else psycopg.ClientCursor
        if how == "with":
            with connection:
                books.enter_sync("with")
            return list(row)
        connection.execute("INSERT INTO entries VALUES ($$sync$$)")
        if how != "return":
            getattr(connection, how)()
        connection.cursor_factory = psycopg.Cursor
        return list(row)

    @app.step(transaction=True)
    async def enter() -> Any:
        connection = kagzi.connection()
        row = await connection.fetchrow(found)
        for trace in traces:
            await connection.execute(trace)
        await books.enter("async")
        return list(row)

    @app.workflow
    async def one(how: str) -> Any:
        return await (enter() if how == "async" else enter_sync(how))

    clean = ["read committed", True, True]
    try:
        async with app, app.worker():
            for how in ("async", "async"):
                assert await (await one.start(how)).result(timeout=60) == clean
            # A lock that the body forgot goes by itself, also if no other step needs the connection.
            await until(lambda: not books.change("SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"))
            for how in ("return", "with", "return"):
                assert await (await one.start(how)).result(timeout=60) == clean
            for how in ("commit", "rollback", "close"):
                with pytest.raises(WorkflowFailed, match="ended the transaction of its connection itself"):
                    await (await one.start(how)).result(timeout=60)
        assert books.names() == ["async", "async", "sync", "sync", "with"]
    finally:
        books.change(f"{database} RESET default_transaction_isolation")
        books.change("DROP TABLE entries")


async def test_a_transaction_on_sqlite_is_short(tmp_path: Path) -> None:
    books = Books(f"sqlite:///{tmp_path / 'kagzi.db'}")
    app = Kagzi(books.url, lease="3s")
    go_on = threading.Event()
    late: list[BaseException] = []

    @app.step(transaction=True, retry=Retry(attempts=1))
    async def enter() -> None:
        await books.enter("too long")
        await asyncio.sleep(600)

    @app.step(transaction=True, retry=Retry(attempts=1))
    def enter_sync() -> None:
        connection = kagzi.connection()
        cursor = connection.execute("INSERT INTO entries VALUES ('too long') RETURNING name")  # and keeps it
        assert cursor is not None
        go_on.wait()  # deaf to its cancellation
        try:
            connection.execute("INSERT INTO entries VALUES ('later')")
        except BaseException as error:
            late.append(error)
            raise

    @app.step
    async def other() -> str:
        return "done"

    @app.workflow
    async def long(sync: bool) -> None:
        await (enter_sync() if sync else enter())

    @app.workflow
    async def short() -> str:
        return await other()

    async with app, app.worker():
        for sync in (False, True):
            run = await long.start(sync)
            assert await (await short.start()).result(timeout=60) == "done"  # beside it, or after it
            with pytest.raises(WorkflowFailed, match="open for longer than 1 s"):
                await run.result(timeout=60)
        assert await (await short.start()).result(timeout=60) == "done"  # while the thread still runs
        go_on.set()
        await until(lambda: late)
    assert isinstance(late[0], StepTimeout)
    assert books.names() == []


async def test_a_run_is_started_in_the_transaction_of_a_step(books: Books) -> None:
    app = Kagzi(books.url)

    @app.workflow
    async def ship(name: str) -> str:
        return f"shipped {name}"

    @app.step(transaction=True, retry=QUICKLY)
    async def order(name: str) -> None:
        await books.enter(name)
        await ship.options(id=f"{name}-{kagzi.attempt()}", connection=kagzi.connection()).start(name)
        if kagzi.attempt() == 1:
            raise ValueError("rolls back")

    @app.workflow
    async def one() -> None:
        await order("book")

    async with app, app.worker():
        await (await one.start()).result(timeout=60)
        assert await (await app.find("book-2", ship)).result(timeout=60) == "shipped book"
        with pytest.raises(kagzi.NotFound):
            await app.find("book-1")


async def test_what_cannot_have_a_transaction_says_so(tmp_path: Path) -> None:
    app = Kagzi("memory://")

    @app.step(transaction=True)
    async def enter() -> None:
        kagzi.connection()

    @app.workflow
    async def one() -> None:
        await enter()

    async with app, app.worker():
        with pytest.raises(WorkflowFailed, match="memory:// has no tables of yours"):
            await (await one.start()).result(timeout=60)
    async with served(f"sqlite:///{tmp_path / 'kagzi.db'}") as address:
        app.url = address
        async with app:
            with pytest.raises(InvalidRequest, match="need the database itself, and this app uses a server: enter"):
                async with app.worker():
                    pass
    with pytest.raises(InvalidRequest, match=r"kagzi.connection\(\) is for steps"):
        await enter.fn()
    with pytest.raises(InvalidRequest, match="transaction must be True or False"):
        app.step(transaction="yes")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="engine must be one of SQLAlchemy 2"):
        Kagzi("memory://", engine="postgresql://")


def _kinds(chunks: list[Chunk]) -> list[list[str]]:
    """What each chunk says, but for bodies that show as RUNNING on a slow machine."""
    kinds = [[type(each).__name__ for each in chunk.operations if type(each) is not StartStep] for chunk in chunks]
    return [each for each in kinds if each]


def _count_commits(monkeypatch: pytest.MonkeyPatch) -> list[Chunk]:
    commit, chunks = Transaction.commit, []

    async def counted(self: Transaction, chunk: Chunk) -> Any:
        chunks.append(chunk)
        return await commit(self, chunk)

    monkeypatch.setattr(Transaction, "commit", counted)
    return chunks


async def until_status(run: Any, status: RunStatus) -> None:
    async with asyncio.timeout(60):
        while (await run.get()).status is not status:
            await asyncio.sleep(0.02)

"""What is SQLite's own: files, threads, full disks, and two processes on one file."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from kagzi.api.operations import CancelAnswer, CancelRun, ChunkAnswer, CompleteRun, Started
from kagzi.core.run import RunStatus
from kagzi.core.step import StepStatus
from kagzi.errors import InvalidRequest, Locked, MissingDependency, SchemaMismatch, Unavailable
from kagzi.store.sqlite import SqliteStore, connection, schema
from kagzi.store.sqlite.statements import SQL, execute, unnumbered, widened
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, Bench


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kagzi.db"


@pytest.fixture
async def bench(path: Path) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    store = SqliteStore(str(path), now=clock.now)
    await store.open()
    try:
        yield Bench(store, clock)
    finally:
        await store.close()


def raw(store: object) -> sqlite3.Connection:
    """The writer's connection, to make trouble with."""
    found = store._database._writer._connection  # type: ignore[attr-defined]
    assert isinstance(found, sqlite3.Connection)
    return found


class TestFiles:
    async def test_the_file_and_its_directories_belong_to_us_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "deep" / "kagzi.db"
        store = SqliteStore(str(path))
        await store.open()
        try:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.with_name("kagzi.db-wal").stat().st_mode) == 0o600
            for directory in (path.parent, path.parent.parent):
                assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        finally:
            await store.close()

    async def test_commits_are_durable(self, bench: Bench) -> None:
        writer = raw(bench.store)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL

    @pytest.mark.parametrize("inline", [False, True])
    async def test_something_else_is_refused_and_left_alone(self, path: Path, inline: bool) -> None:
        path.write_bytes(b"dear diary, today I will not be a database\n" * 100)
        before = path.read_bytes()

        with pytest.raises(InvalidRequest, match="not an SQLite database"):
            await SqliteStore(str(path), inline=inline).open()

        assert path.read_bytes() == before

    async def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="is a directory"):
            await SqliteStore(str(tmp_path)).open()

    async def test_a_path_below_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InvalidRequest, match="not a directory"):
            await SqliteStore(str(tmp_path / "file" / "kagzi.db")).open()

    @pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory that not even root may write")
    async def test_a_directory_that_cannot_be_written_is_named(self) -> None:
        with pytest.raises(Unavailable, match="may be written"):
            await SqliteStore("/proc/kagzi/kagzi.db").open()

    @pytest.mark.parametrize("replaced", [False, True])
    async def test_nothing_is_said_to_be_stored_in_a_file_that_is_gone(
        self, bench: Bench, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
    ) -> None:
        await bench.start()
        monkeypatch.chdir(tmp_path.parent)  # which changes nothing
        await bench.start()

        path.rename(tmp_path / "moved.db")
        if replaced:
            path.touch()

        with pytest.raises(SchemaMismatch, match=r"kagzi\.db was deleted, moved or replaced while it was open"):
            await bench.start()
        with pytest.raises(SchemaMismatch, match="start them again"):
            await bench.claims()

    async def test_a_failed_open_leaves_no_thread_and_can_be_tried_again(self, path: Path) -> None:
        threads = threading.active_count()
        path.write_bytes(b"not a database" * 100)
        store = SqliteStore(str(path))
        with pytest.raises(InvalidRequest):
            await store.open()
        assert threading.active_count() == threads

        path.unlink()
        await store.open()
        await store.close()


class TestMigrating:
    async def test_a_newer_schema_is_refused(self, path: Path) -> None:
        await _open_and_close(path)
        with sqlite3.connect(path) as other:
            other.execute("INSERT INTO schema_migrations (number, name, checksum) VALUES (9999, 'later', 'x')")
        other.close()

        with pytest.raises(SchemaMismatch, match="Upgrade Kagzi"):
            await SqliteStore(str(path)).open()

    async def test_an_edited_migration_is_refused(self, path: Path) -> None:
        await _open_and_close(path)
        with sqlite3.connect(path) as other:
            other.execute("UPDATE schema_migrations SET checksum = 'x'")
        other.close()

        with pytest.raises(SchemaMismatch, match="another content"):
            await SqliteStore(str(path)).open()

    def test_an_old_sqlite_is_refused(self) -> None:
        with pytest.raises(MissingDependency, match=r"3\.34\.1.*3\.35"):
            schema.check_version((3, 34, 1))

    async def test_a_migration_that_fails_leaves_nothing(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        initial, *others = schema._known()
        broken = type(initial)(1, "initial", "x", initial.sql + "\nCREATE TABLE workers (x);")
        monkeypatch.setattr(schema, "_known", lambda: (broken, *others))
        with pytest.raises(Unavailable):
            await SqliteStore(str(path)).open()
        monkeypatch.undo()

        await _open_and_close(path)

    async def test_a_database_of_the_first_version_is_brought_up_to_date(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = schema._known()[:1]
        monkeypatch.setattr(schema, "_known", lambda: first)
        with closing(sqlite3.connect(path, isolation_level=None)) as new:
            schema.migrate(new, lambda connection: connection.execute("BEGIN IMMEDIATE"))
        with sqlite3.connect(path) as old:
            old.execute(
                "INSERT INTO workflow_runs (namespace, run_id, task_queue, workflow_type, version, status, created_at,"
                " started_at, available_at, claim_key, input) VALUES ('default', ?, 'orders', 'checkout', '1',"
                " 'SLEEPING', 1, 1, 9, 9, x'00')",
                ("00000000-0000-7000-8000-000000000001",),
            )
            old.execute(
                "INSERT INTO step_runs (namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at,"
                " finished_at, input, input_hash, output)"
                " VALUES ('default', ?, 'charge', 1, 'FUNCTION', 'COMPLETED', 1, 2, 3, x'5b5d', 4, x'37')",
                ("00000000-0000-7000-8000-000000000001",),
            )
        old.close()
        monkeypatch.undo()

        store = SqliteStore(str(path), now=lambda: 5)
        await store.open()
        try:
            cancel = CancelRun(namespace="default", run_id="00000000-0000-7000-8000-000000000001", grace=2)
            (answer,) = (await store.work.apply([cancel])).answers
            assert isinstance(answer, CancelAnswer)
            assert answer.effective
            assert (await store.overview.horizon([])).cancel == 7
            (step,) = await store.runs.steps("default", "00000000-0000-7000-8000-000000000001")
            assert (step.step_id, step.status, step.completed_seq) == ("charge", StepStatus.COMPLETED, 1)
            assert (step.started_at, step.finished_at) == (2, 3)
            assert (step.input, step.input_hash, step.output) == (b"[]", 4, b"7")
        finally:
            await store.close()

    @pytest.mark.parametrize(("column", "value"), [("kind", "DREAM"), ("status", "LOST")])
    async def test_a_step_is_of_a_known_kind_and_status(self, bench: Bench, column: str, value: str) -> None:
        row = {"kind": "FUNCTION", "status": "FAILED", column: value}
        with pytest.raises(sqlite3.IntegrityError, match=f"step_runs_{column}"):
            raw(bench.store).execute(
                "INSERT INTO step_runs (namespace, run_id, step_id, attempt, started_at, kind, status)"
                " VALUES ('default', 'x', 'a', 1, 1, :kind, :status)",
                row,
            )

    async def test_tables_are_made_without_strict_where_sqlite_does_not_know_it(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
        store = SqliteStore(str(path), inline=True)  # those in memory are copies of one that was made before
        await store.open()
        try:
            made = raw(store).execute("SELECT group_concat(sql) FROM sqlite_master").fetchone()[0]
            assert "STRICT" not in made
            assert "WITHOUT ROWID" in made
        finally:
            await store.close()


class TestTrouble:
    async def test_what_fails_at_its_commit_is_not_acknowledged(self, bench: Bench) -> None:
        """As with a disk that is full: what is written goes to memory, and to the disk with the commit."""
        claim = await bench.started_claim()
        before = await bench.state(claim.run_id)
        # A constraint that SQLite looks at with the commit, and not before.
        raw(bench.store).executescript(
            "PRAGMA foreign_keys = ON; CREATE TABLE parents (id INTEGER PRIMARY KEY);"
            "CREATE TABLE children (id INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED);"
            "CREATE TRIGGER orphan AFTER INSERT ON step_runs BEGIN INSERT INTO children VALUES (1); END;"
        )

        with pytest.raises(Unavailable):
            await bench.send(claim, bench.completed("a", 1))

        assert await bench.state(claim.run_id) == before
        raw(bench.store).executescript("DROP TRIGGER orphan")
        await bench.done(claim, bench.completed("a", 1))

    async def test_a_full_disk_applies_nothing_and_is_got_over(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        before = await bench.state(claim.run_id)
        writer = raw(bench.store)
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        chunk = bench.chunk(claim, bench.completed("a", 1, output=b"x" * 200_000), CompleteRun(output=b"1"))

        with pytest.raises(Unavailable, match="disk is full"):
            await bench.apply([bench.start_run(), chunk])

        assert await bench.state(claim.run_id) == before
        writer.execute("PRAGMA max_page_count = 1000000")
        assert await bench.answer(chunk) is ChunkAnswer.DONE

    async def test_a_locked_file_applies_nothing_and_is_got_over(
        self, bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
        start = bench.start_run()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(Locked, match=r"another process|\(this one\)"):
                await bench.answer(start)
            # Readers do not mind.
            assert await bench.store.runs.get(NAMESPACE, start.run_id) is None
        finally:
            other.execute("ROLLBACK")
            other.close()
        assert isinstance(await bench.answer(start), Started)

    @pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell who holds a lock")
    async def test_a_process_that_keeps_the_file_locked_is_named(
        self, bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
        program = (
            "import sqlite3, sys; other = sqlite3.connect(sys.argv[1], isolation_level=None);"
            " other.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()"
        )
        arguments = [sys.executable, "-c", program, str(path)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            with pytest.raises(Locked, match=rf"process {holder.pid} \(python") as raised:
                await bench.start()
            holder.communicate()
        assert "sqlite3.connect" not in str(raised.value)  # arguments may be secrets
        await bench.start()

    async def test_a_short_lock_is_waited_for(self, bench: Bench, path: Path) -> None:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.05, lambda: other.execute("COMMIT"))
        release.start()
        try:
            await bench.start()
        finally:
            release.join()
            other.close()

    @pytest.mark.parametrize("bad", [{"priority": 2**70}, {"task_queue": "\ud800"}, {"version": None}])
    async def test_a_value_no_column_takes_fails_alone(self, bench: Bench, bad: dict[str, object]) -> None:
        claim = await bench.started_claim()
        good, refused = bench.start_run(), bench.start_run(**bad)
        chunk = bench.chunk(claim, bench.completed("a", 1), CompleteRun(output=b"1"))

        answers = await bench.apply([good, refused, chunk])

        assert isinstance(answers[0], Started)
        assert isinstance(answers[1], InvalidRequest)
        assert answers[2] is ChunkAnswer.DONE
        assert await bench.store.runs.get(NAMESPACE, refused.run_id) is None

    async def test_nothing_of_a_run_is_applied_after_a_refused_chunk(self, bench: Bench) -> None:
        claim, other = await bench.started_claim(), await bench.started_claim()
        chunks = [
            bench.chunk(claim, bench.completed("a", 1)),
            bench.chunk(claim, bench.completed("b", 2**70)),
            bench.chunk(claim, CompleteRun(output=b"1")),
            bench.chunk(other, CompleteRun(output=b"1")),
        ]

        answers = await bench.apply(chunks)

        assert [isinstance(answer, InvalidRequest) for answer in answers] == [False, True, True, False]
        run, steps = await bench.state(claim.run_id)
        assert (run.status, [step.step_id for step in steps]) == (RunStatus.RUNNING, ["a"])
        assert (await bench.run(other.run_id)).status is RunStatus.COMPLETED


class TestThreads:
    async def test_closing_ends_what_was_begun_and_leaves_no_thread(self, path: Path) -> None:
        threads = set(threading.enumerate())
        store = SqliteStore(str(path))
        await store.open()
        bench = Bench(store, VirtualClock())
        starts = [bench.start_run() for _ in range(5)]
        tasks = [asyncio.create_task(bench.answer(start)) for start in starts]
        await asyncio.sleep(0)
        await store.close()

        assert all(isinstance(answer, Started) for answer in await asyncio.gather(*tasks))
        assert not set(threading.enumerate()) - threads
        with pytest.raises(Unavailable, match="closed"):
            await bench.start()
        with pytest.raises(Unavailable, match="closed"):
            await store.runs.get(NAMESPACE, starts[0].run_id)
        await store.close()

    async def test_inline_needs_no_thread(self) -> None:
        threads = set(threading.enumerate())
        store = SqliteStore(None, inline=True)
        await store.open()
        await Bench(store, VirtualClock()).started_claim()
        assert not set(threading.enumerate()) - threads
        await store.close()

    async def test_the_last_sibling_closes_the_database(self) -> None:
        store = SqliteStore(None)
        await store.open()
        sibling = store.sibling()
        await sibling.open()
        run_id = await Bench(store, VirtualClock()).start()

        await store.close()

        assert await sibling.runs.get(NAMESPACE, run_id) is not None
        await sibling.close()
        with pytest.raises(Unavailable):
            await sibling.runs.get(NAMESPACE, run_id)

    async def test_an_error_of_ours_reaches_the_caller_and_not_the_thread(self, bench: Bench) -> None:
        def backoff(crashes: int) -> int:
            raise ZeroDivisionError(crashes)

        claim = await bench.started_claim()
        bench.clock.advance(LEASE)
        with pytest.raises(ZeroDivisionError):
            await bench.store.duties.recover_runs(100, 3, backoff)

        assert (await bench.run(claim.run_id)).status is RunStatus.RUNNING
        assert len(await bench.recover()) == 1


class TestTwoProcesses:
    async def test_another_connections_commit_is_noticed_and_our_own_is_not(self, bench: Bench, path: Path) -> None:
        noticed = asyncio.Event()
        listening = asyncio.create_task(bench.store.wakeups.listen(_ignore, _ignore, noticed.set))
        await asyncio.wait_for(noticed.wait(), 10)  # whatever was before we listened
        noticed.clear()

        for _ in range(30):
            await bench.start()
        await asyncio.sleep(5 * connection.WATCH_SECONDS)
        assert not noticed.is_set()

        other = SqliteStore(str(path))
        await other.open()
        await other.namespaces.ensure("tenant")
        await asyncio.wait_for(noticed.wait(), 10)
        await other.close()
        listening.cancel()
        await asyncio.wait([listening])

    @pytest.mark.faults
    async def test_what_a_killed_process_was_told_is_there(self, bench: Bench, path: Path) -> None:
        script = (
            "import asyncio, sys\n"
            "from kagzi.store.sqlite import SqliteStore\n"
            "from kagzi.testing.clock import VirtualClock\n"
            "from kagzi.testing.conformance.bench import Bench\n"
            "async def main():\n"
            "    store = SqliteStore(sys.argv[1]); await store.open()\n"
            "    bench = Bench(store, VirtualClock())\n"
            "    while True: print(await bench.start(), flush=True)\n"
            "asyncio.run(main())\n"
        )
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(20)]
        # This process writes to the same file meanwhile.
        mine = await bench.start(run_id="ffffffff-0000-7000-8000-000000000000")
        os.kill(process.pid, signal.SIGKILL)
        told += process.stdout.read().split("\n")[:-1]
        process.wait()
        process.stdout.close()

        for run_id in [mine, *told]:
            assert await bench.store.runs.get(NAMESPACE, run_id) is not None
        await bench.start(run_id="ffffffff-0000-7000-8000-000000000001")


def test_no_statement_reads_a_whole_table_of_runs_or_steps() -> None:
    database = connection.connect(None)
    schema.migrate(database, connection.begin)
    for name, statement in SQL.items():
        if "VALUES (?, ?" in statement:
            statement = widened(name, 4)
        statement, _ = unnumbered(statement)
        plan = database.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * statement.count("?")).fetchall()
        for *_, detail in plan:
            whole = re.match(
                r"SCAN (workflow_runs|step_runs|workflow_payloads|[rsp])\b(?! USING INDEX workflow_runs_leased)", detail
            )
            # Counting what waits is for people, seldom, and bounded by its LIMIT.
            bounded = name in ("survey", "oldest_due") and "USING INDEX workflow_runs_claim" in detail
            bounded = bounded or (name == "is_any_aside" and "USING INDEX workflow_runs_aside" in detail)
            assert whole is None or bounded, f"{name}: {detail}"
            # By more than its namespace, which is most of the table.
            assert name != "find_debounced" or re.search(r"run_id=|debounce_key=", detail) or "SEARCH" not in detail, (
                detail
            )
    database.close()


def test_no_statement_names_its_values() -> None:
    """Python 3.12.0 to 3.12.3 take a number for a name, and warn of names among values that come in a sequence."""
    named = [name for name, text in SQL.items() if re.search(r"\?\d|(?<!')[:@$]\w", unnumbered(text)[0])]
    assert named == []


def test_values_reach_a_statement_where_it_numbers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SQL, "as numbered", "SELECT ?1, ?2, ?3")
    monkeypatch.setitem(SQL, "otherwise", "SELECT ?3, ?1, ?3, ?2 + ?11")
    with closing(sqlite3.connect(":memory:")) as database:
        assert execute(database, "as numbered", (1, 2, 3)).fetchone() == (1, 2, 3)
        assert execute(database, "otherwise", tuple(range(1, 12))).fetchone() == (3, 1, 3, 13)


async def _open_and_close(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.open()
    await store.close()


def _ignore(*_: object) -> None:
    pass


async def test_a_finished_run_is_guarded_in_every_column(bench: Bench) -> None:
    """What a column that a migration adds needs: a new `finished_gives_its_id_only` that compares it, too. The trigger
    that every update fires, `finished_is_final`, looks at two columns only."""
    rows = raw(bench.store).execute("PRAGMA table_info(workflow_runs)").fetchall()
    (text,) = (
        raw(bench.store).execute("SELECT sql FROM sqlite_master WHERE name = 'finished_gives_its_id_only'").fetchone()
    )
    columns = {name for _, name, *_ in rows}
    for side in ("NEW", "OLD"):
        assert columns == set(re.findall(rf"\b{side}\.(\w+)", text)) | ({"former_id"} if side == "OLD" else set())

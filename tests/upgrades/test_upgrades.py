"""Databases that earlier versions have left behind are opened and brought up to date, and their live runs go on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kagzi import RunStatus, WorkflowCancelled, WorkflowFailed
from tests.upgrades.program import LATER, Program

DATABASES = Path(__file__).parent / "databases"
# The last code before signals, and the first with them (`tests.upgrades.make`).
EARLIER = ("before_signals", "with_signals")
RESULTS: dict[str, Any] = {
    "pending": "pending",
    "first-sleep": "first-sleep",
    "first-sleep-beside": ["first-sleep-beside"],
    "between": ["between-1", "between-2"],
    "retrying": "retrying",
    "running": ["running-1", "running-2"],
    "completed": "completed",
}
# Bodies that have returned are not run again; one that hung when its process died is, and one that failed is tried
# again.
CALLED = [
    "between-2",
    "first-sleep",
    "first-sleep-beside",
    "first-sleep-beside-once",
    "pending",
    "retrying",
    "running-2",
]


@pytest.fixture(params=EARLIER)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where nothing is yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'kagzi.db'}"
    found: str = request.getfixturevalue("fresh_database")
    return found


@pytest.fixture
async def stored(version: str, url: str) -> str:
    """The URL of a database with what this version has left behind."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.executescript((DATABASES / f"{version}.sqlite.sql").read_text())
    else:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute((DATABASES / f"{version}.postgres.sql").read_text())
        finally:
            await connection.close()
    return url


async def test_the_live_runs_of_an_earlier_version_go_on(version: str, stored: str) -> None:
    program = Program(stored, making=False)
    with_signals = version == "with_signals"
    async with program.app as app:
        runs = {id: await app.find(id) for id in program.workflows if with_signals or not id.startswith("waiting")}
        # Not of those whose process died: their leases have ended, and who opens the database takes them back.
        assert (await runs["pending"].get()).status is RunStatus.PENDING
        assert (await runs["first-sleep"].get()).status is RunStatus.SLEEPING
        async with app.worker(queues=["default", LATER]):
            assert {id: await runs[id].result(timeout=60) for id in RESULTS} == RESULTS
            for id in ("cancelled", "cleaning-up"):
                with pytest.raises(WorkflowCancelled):
                    await runs[id].result(timeout=60)
            with pytest.raises(WorkflowFailed, match="failed"):
                await runs["failed"].result(timeout=60)
            if with_signals:
                await runs["waiting"].signal("go", "went")
                assert await runs["waiting"].result(timeout=60) == ["waiting", "went"]
                assert await runs["waiting-with-timeout"].result(timeout=60) == ["waiting-with-timeout", "nothing"]
        assert sorted(word for word in program.called if word != "cleaning-up") == CALLED


async def test_a_first_sleep_that_an_earlier_version_began_is_told_as_one(stored: str) -> None:
    program = Program(stored, making=False)
    async with program.app as app:
        run = await app.find("first-sleep")
        before = await run.get()
        async with app.worker():
            await run.result(timeout=60)
        steps = await run.steps()
        assert [(step.name, step.kind.value) for step in steps] == [("sleep", "SLEEP"), ("note", "FUNCTION")]
        assert steps[0].started_at == before.started_at

"""kill -9 between the body of a transactional step and its commit, and a worker that sleeps through its lease: each
effect is there once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns import length
from tests.faults.processes import ROOT, until
from tests.faults.transactional import STEPS, make_held

psycopg = pytest.importorskip("psycopg")

KILLS = length(4, 200)
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
    _ask(url, "CREATE TABLE entries (run text, number integer)")
    yield url
    _ask(url, "DROP TABLE entries")


def _ask(url: str, statement: str) -> list[Any]:
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []
    file = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    try:
        with file:
            return file.execute(statement).fetchall()
    finally:
        file.close()


def _check_once(url: str) -> None:
    entries = _ask(url, "SELECT run, count(*), count(DISTINCT number) FROM entries GROUP BY run")
    assert [entry for entry in entries if entry[1:] != (STEPS, STEPS)] == []
    assert len(entries) == max(3, KILLS)


@pytest.mark.timeout(length(300, 3600))
def test_each_effect_is_there_once_however_often_workers_are_killed(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.transactional", url, str(KILLS), "7"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=length(240, 3000),
    )
    assert done.returncode == 0, done.stderr
    assert f"killed {KILLS} times" in done.stdout, done.stdout
    print(done.stdout)
    _check_once(url)


@pytest.mark.postgres
async def test_the_writes_of_a_worker_that_slept_through_its_lease_are_rolled_back(
    postgres_database: str, tmp_path: Path
) -> None:
    url = postgres_database
    _ask(url, "CREATE TABLE entries (run text, number integer)")
    command = [sys.executable, "-m", "tests.faults.transactional", url, str(tmp_path)]
    workers: list[subprocess.Popen[bytes]] = []

    async def started() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            worker = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=log)
        workers.append(worker)
        await until((tmp_path / f"begun-{worker.pid}").exists, "its body has written")
        return worker

    app, hold = make_held(url, tmp_path)
    try:
        async with app:
            run = await hold.start()
            first = await started()
            first.send_signal(signal.SIGSTOP)
            second = await started()
            (tmp_path / "go-on").touch()
            assert await run.result(timeout=60) == second.pid
            first.send_signal(signal.SIGCONT)
            await until(lambda: "is let go of" in (tmp_path / "log").read_text(), "the first worker drops the run")
            first.terminate()
            await until(lambda: first.poll() is not None, "the first worker ends")
        assert _ask(url, "SELECT number FROM entries") == [(second.pid,)]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        _ask(url, "DROP TABLE entries")

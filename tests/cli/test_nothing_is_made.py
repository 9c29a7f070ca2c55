"""Commands that only look make no database: what they were asked about may be a typing error."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import asyncpg
import pytest

from tests.cli.conftest import Shell

UUID = "01900000-0000-7000-8000-000000000000"
LOOKING = [
    ("runs", "list"),
    ("runs", "show", UUID),
    ("runs", "watch", "order-42"),
    ("runs", "cancel", UUID),
    ("workers", "list"),
    ("namespaces", "list"),
    ("keys", "list"),
    ("audit",),
]


def refused(shell: Shell, *arguments: str) -> None:
    done = shell(*arguments)
    assert done.code == 3, done
    assert "there is no database of Kagzi's at " in done.err


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_looking_into_a_file_that_is_not_there(shell: Shell, command: tuple[str, ...]) -> None:
    before = set(shell.directory.rglob("*"))
    refused(shell, *command)
    refused(shell, *command, "--url", "sqlite:///typo/typo.db")
    assert set(shell.directory.rglob("*")) == before


def test_a_file_of_another_program_stays_as_it_is(shell: Shell) -> None:
    path = Path(shell.directory, "other.db")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE things (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    refused(shell, "runs", "list", "--url", "sqlite:///other.db")
    assert path.read_bytes() == before


@pytest.mark.postgres
async def test_an_empty_postgresql_stays_empty(shell: Shell, fresh_database: str) -> None:
    refused(shell, "runs", "list", "--url", fresh_database)
    connection = await asyncpg.connect(fresh_database)
    assert await connection.fetchval("SELECT to_regnamespace('kagzi') IS NULL")
    await connection.close()


def test_starting_makes_one_and_looking_finds_it(shell: Shell) -> None:
    url = ("--url", "sqlite:///new.db")
    assert shell("start", "checkout", "--id", UUID, *url).code == 0
    assert shell("runs", "list", *url).out.split("\t")[1] == UUID
    assert shell("runs", "show", UUID, *url).code == 0  # by an id of its own that looks like one of Kagzi's


def test_commands_look_where_the_app_lives(shell: Shell) -> None:
    Path(shell.directory, "store.py").write_text(
        'from kagzi import Kagzi\napp = Kagzi("sqlite:///store.db", namespace="default")\n'
    )
    assert shell("start", "checkout", "--id", "order-1", KAGZI_APP="store.py").code == 0
    assert not Path(shell.directory, ".kagzi").exists()
    assert "order-1" in shell("runs", "list", "--url", "sqlite:///store.db").out
    Path(shell.directory, "kagzi.toml").write_text('app = "store.py"\n')
    assert "order-1" in shell("runs", "list").out
    assert shell("runs", "list", KAGZI_URL="sqlite:///elsewhere.db").code == 3
    report = shell("doctor", "--json", "--quick", KAGZI_APP="store.py").json
    assert next(each["source"] for each in report["settings"] if each["name"] == "KAGZI_URL") == "the app store.py"


def test_an_app_that_cannot_be_imported_is_no_reason_to_look_elsewhere(shell: Shell) -> None:
    Path(shell.directory, "store.py").write_text("import nothing_of_that_name\n")
    done = shell("start", "checkout", KAGZI_APP="store.py")
    assert done.code == 2, done
    assert "store.py raises ModuleNotFoundError when it is imported" in done.err
    assert not Path(shell.directory, ".kagzi").exists()

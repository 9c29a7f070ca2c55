"""Statements and their fragments, as both stores read them from their files."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from kagzi.core.run import AGEING
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.sql import parse_statements
from kagzi.store.sqlite.run_rows import claim_key
from kagzi.store.sqlite.statements import SQL

FRAGMENTS = """
-- fragment: key(at, now)
-- A key.
CASE WHEN {at} > {now} THEN {at} ELSE {{AGEING}} END

-- fragment: shown
-- Columns.
a, {{key(a, coalesce(b, 0))}}
"""


def test_a_fragment_stands_where_a_statement_names_it() -> None:
    statements = parse_statements({"a.sql": FRAGMENTS, "b.sql": "-- name: read\n-- Reads.\nSELECT {{shown}} FROM t;\n"})
    assert statements == {
        "read": f"SELECT a, CASE WHEN a > coalesce(b, 0) THEN a ELSE {AGEING} END FROM t",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- name: read\n-- Reads.\nSELECT {{missing}};", "read: there is no fragment called missing"),
        ("-- name: read\n-- Reads.\nSELECT {{key(1)}};", "read: key takes 2 values, not 1"),
        ("-- name: read\nSELECT 1;", "b.sql: read has no sentence"),
        ("-- name: read\n-- Reads.\n", "b.sql: read is empty"),
        ("-- name: key\n-- Reads.\nSELECT 1;", "b.sql: a name called key exists already"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_statements({"a.sql": FRAGMENTS, "b.sql": text})


@pytest.mark.parametrize("package", ["sqlite", "postgres"])
def test_what_a_priority_is_worth_stands_in_one_place(package: str) -> None:
    """As a number it could differ from the one in `core.run`."""
    folder = files(f"kagzi.store.{package}").joinpath("sql")
    assert [file.name for file in folder.iterdir() if str(AGEING) in file.read_text()] == []
    assert str(AGEING) in (STATEMENTS if package == "postgres" else SQL)["repeat_run"]


def test_no_statement_has_a_fragment_left_in_it() -> None:
    assert [name for name, text in {**STATEMENTS, **SQL}.items() if "{{" in text] == []


def test_a_run_that_is_due_has_a_key_in_the_past() -> None:
    assert claim_key(5, 1, 4) == 5
    assert claim_key(4, 1, 4) == 4 - AGEING


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_what_tells_a_template_from_a_run_stands_once(store: str) -> None:
    """The fragment `is_run`; schedules, and the horizon that sees when they are due, speak of templates themselves."""
    folder = files(f"kagzi.store.{store}").joinpath("sql")
    own = {"schedules.sql"}
    said = [
        f"{file.name}: {line}"
        for file in folder.iterdir()
        if file.name not in own
        for line in file.read_text(encoding="utf-8").splitlines()
        if "'SCHEDULED'" in line and "status = 'SCHEDULED'" not in line
    ]
    assert said == ["fragments.sql: {r}.status NOT IN ('SCHEDULED', 'PAUSED')"]

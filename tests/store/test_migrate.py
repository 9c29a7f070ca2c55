"""Reading migrations; applying them is tested with each store."""

from __future__ import annotations

import pytest

from kagzi.store.migrate import IndexStatement, load_migrations, parse_migration

BUILD = "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS runs_firing\n    ON kagzi.runs (namespace) WHERE fired"


def test_a_migration_may_build_indexes_beside_the_work() -> None:
    online = f"-- Two of them.\n{BUILD};\n-- The old one.\nDROP INDEX CONCURRENTLY IF EXISTS kagzi.runs_old;\n"
    migration = parse_migration("0008_search.sql", "SELECT 1;", online)
    build, drop = migration.online
    assert build == IndexStatement("runs_firing", "runs", BUILD)
    assert build.inline == BUILD.replace("CONCURRENTLY ", "")
    assert (drop.index, drop.table) == ("runs_old", None)
    assert drop.inline == "DROP INDEX IF EXISTS kagzi.runs_old"


def test_what_is_built_beside_the_work_is_part_of_the_checksum_whatever_the_ends_of_lines() -> None:
    alone = parse_migration("0008_search.sql", "SELECT 1;")
    more = parse_migration("0008_search.sql", "SELECT 1;", f"{BUILD};\n")
    assert alone.checksum != more.checksum
    assert (
        more.checksum == parse_migration("0008_search.sql", "SELECT 1;", f"{BUILD};\n".replace("\n", "\r\n")).checksum
    )


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX runs_firing ON kagzi.runs (namespace)",
        "CREATE INDEX CONCURRENTLY runs_firing ON kagzi.runs (namespace)",
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_firing ON runs (namespace)",
        "DROP INDEX kagzi.runs_firing",
        "UPDATE kagzi.runs SET fired = false",
    ],
)
def test_nothing_else_is_done_there(statement: str) -> None:
    with pytest.raises(ValueError, match=r"0008_search\.online\.sql: a statement is neither CREATE"):
        parse_migration("0008_search.sql", "SELECT 1;", f"{statement};")


def test_both_stores_have_the_same_number_of_migrations() -> None:
    assert len(load_migrations("kagzi.store.sqlite")) == len(load_migrations("kagzi.store.postgres"))


def test_sqlite_builds_its_indexes_in_migrations() -> None:
    assert not any(migration.online for migration in load_migrations("kagzi.store.sqlite"))

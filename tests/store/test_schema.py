"""The tables as people read them are those that the migrations make."""

from __future__ import annotations

import pytest

from scripts.schema import POSTGRES, SQLITE, postgres_schema, sqlite_schema

STALE = "run: python -m scripts.schema"


def test_the_schema_of_sqlite_is_current() -> None:
    assert SQLITE.read_text(encoding="utf-8") == sqlite_schema(), STALE


@pytest.mark.postgres
async def test_the_schema_of_postgres_is_current(fresh_database: str) -> None:
    assert POSTGRES.read_text(encoding="utf-8") == await postgres_schema(fresh_database), STALE

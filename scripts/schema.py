"""The tables of both stores as all migrations together leave them: python -m scripts.schema

Writes `src/kagzi/store/sqlite/schema.sql` and `src/kagzi/store/postgres/schema.sql`, for people to read; databases are
made by the migrations alone. A test compares the files with what this module reads from fresh databases.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from kagzi.store.postgres.store import PostgresStore
from kagzi.store.sqlite.schema import migrate
from kagzi.testing.postgres import postgres_for_tests
from scripts.processes import ROOT

SQLITE: Final = ROOT / "src/kagzi/store/sqlite/schema.sql"
POSTGRES: Final = ROOT / "src/kagzi/store/postgres/schema.sql"
_HEADER: Final = """\
-- Made from the migrations, for people to read: python -m scripts.schema
-- Each table is followed by its indexes and triggers.
"""
# Comments of applied migrations that are no longer right. The migrations themselves are never edited.
_CORRECTIONS: Final = {"NULL when born RUNNING": "NULL if that worker is in the engine's process"}

_FUNCTIONS: Final = """
SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p
WHERE p.pronamespace = 'kagzi'::regnamespace ORDER BY p.proname
"""
_TABLES: Final = """
SELECT c.oid, c.relname AS name, c.reloptions AS options FROM pg_class AS c
WHERE c.relnamespace = 'kagzi'::regnamespace AND c.relkind = 'r' ORDER BY c.relname
"""
_COLUMNS: Final = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
       a.attidentity = 'a' AS numbered, pg_get_expr(d.adbin, d.adrelid) AS value
FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Since PostgreSQL 18 `NOT NULL` is a constraint, too; it stands with its column.
_CONSTRAINTS: Final = """
SELECT c.conname AS name, pg_get_constraintdef(c.oid, true) AS definition FROM pg_constraint AS c
WHERE c.conrelid = $1 AND c.contype <> 'n' ORDER BY c.contype <> 'p', c.conname
"""
_INDEXES: Final = """
SELECT pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = $1 AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = i.indexrelid) ORDER BY c.relname
"""
_TRIGGERS: Final = """
SELECT pg_get_triggerdef(t.oid, true) FROM pg_trigger AS t
WHERE t.tgrelid = $1 AND NOT t.tgisinternal ORDER BY t.tgname
"""


def sqlite_schema() -> str:
    """Returns the schema of a fresh SQLite database. SQLite keeps its statements as they were written."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, lambda each: each.execute("BEGIN IMMEDIATE"))
        rows = connection.execute(
            "SELECT tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
            " ORDER BY tbl_name, type <> 'table', type, name"
        ).fetchall()
    parts = ["\n".join(f"{sql};" for _, sql in group) for _, group in groupby(rows, key=lambda row: row[0])]
    text = "\n\n".join([_HEADER, *parts]).replace("\n\n\n", "\n\n") + "\n"
    for wrong, right in _CORRECTIONS.items():
        text = text.replace(wrong, right)
    return text


async def postgres_schema(url: str) -> str:
    """Returns the schema of a fresh PostgreSQL database, which is migrated first; as the catalogue tells it."""
    store = PostgresStore(url)
    await store.open()
    await store.close()
    connection = await asyncpg.connect(url)
    try:
        functions = [f"{row[0].rstrip()};" for row in await connection.fetch(_FUNCTIONS)]
        tables = [await _table(connection, row) for row in await connection.fetch(_TABLES)]
    finally:
        await connection.close()
    return "\n\n".join([_HEADER.rstrip(), *functions, *tables]) + "\n"


async def _table(connection: asyncpg.Connection[Any], table: asyncpg.Record) -> str:
    lines = [_column(row) for row in await connection.fetch(_COLUMNS, table["oid"])]
    for row in await connection.fetch(_CONSTRAINTS, table["oid"]):
        lines.append(f"CONSTRAINT {row['name']} {row['definition']}")
    options = f" WITH ({', '.join(table['options'])})" if table["options"] else ""
    statements = [f"CREATE TABLE kagzi.{table['name']} (\n    " + ",\n    ".join(lines) + f"\n){options};"]
    for query in (_INDEXES, _TRIGGERS):
        statements += [f"{row[0]};" for row in await connection.fetch(query, table["oid"])]
    return "\n".join(statements)


def _column(row: asyncpg.Record) -> str:
    required = " NOT NULL" if row["required"] else ""
    numbered = " GENERATED ALWAYS AS IDENTITY" if row["numbered"] else ""
    value = f" DEFAULT {row['value']}" if row["value"] is not None else ""
    return f"{row['name']} {row['type']}{required}{numbered}{value}"


async def in_database(server: str) -> str:
    """Returns the schema as a database of its own on this server has it."""
    name = f"kagzi_schema_{uuid4().hex}"
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        try:
            return await postgres_schema(urlsplit(server)._replace(path=f"/{name}").geturl())
        finally:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    write(SQLITE, sqlite_schema())
    with postgres_for_tests() as url:
        write(POSTGRES, asyncio.run(in_database(url)))

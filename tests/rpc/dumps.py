"""Everything a database holds, in a few words that change when a row does."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any, Protocol

# Payloads count by their length alone: some are large, and nobody changes one into another of its size.
# Whoever calls about a run is heard of, and its lease renewed, whatever comes of the call.
_HEARD_OF = ("lease_expires_at", "poll")
# What workers declare is looked at again every second, beside any call.
_BESIDE = ("limits",)
_CLEARED = ("workflow_runs", "workflow_payloads", "step_runs", "workers", "worker_events", "jobs")


class Dump(Protocol):
    async def __call__(self) -> dict[str, str]:
        """A word for each table."""
        ...

    async def clear(self) -> None:
        """Forget what the default namespace holds: few rows are quickly looked at."""
        ...


class SqliteDump:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=10, isolation_level=None)
        self._tables: dict[str, str] = {}
        for (table,) in self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall():
            if table in _BESIDE:
                continue
            columns = [(row[1], row[2]) for row in self._connection.execute(f"PRAGMA table_info({table})")]
            kept = [
                f"length({column})" if kind == "BLOB" else column for column, kind in columns if column not in _HEARD_OF
            ]
            self._tables[table] = f"SELECT {', '.join(kept)} FROM {table}"
        self._version = -1
        self._last: dict[str, str] = {}

    async def __call__(self) -> dict[str, str]:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._last = {
                table: hashlib.sha256(repr(self._connection.execute(query).fetchall()).encode()).hexdigest()
                for table, query in self._tables.items()
            }
        return self._last

    async def clear(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for table in _CLEARED:
            self._connection.execute(f"DELETE FROM {table} WHERE namespace = 'default'")
        self._connection.execute("COMMIT")
        self._version = -1

    async def close(self) -> None:
        self._connection.close()


class PostgresDump:
    def __init__(self, connection: Any, query: str) -> None:
        self._connection = connection
        self._query = query

    @classmethod
    async def connect(cls, url: str) -> PostgresDump:
        import asyncpg

        connection = await asyncpg.connect(url)
        tables: dict[str, list[str]] = {}
        for table, column, kind in await connection.fetch(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'kagzi'"
        ):
            if column not in _HEARD_OF and table not in _BESIDE:
                tables.setdefault(table, []).append(f"length({column})" if kind == "bytea" else column)
        parts = [
            f"SELECT '{table}' AS name, md5(string_agg(word, '|' ORDER BY word)) AS word"
            f" FROM (SELECT ROW({', '.join(columns)})::text AS word FROM kagzi.{table}) AS rows"
            for table, columns in tables.items()
        ]
        return cls(connection, " UNION ALL ".join(parts))

    async def __call__(self) -> dict[str, str]:
        return {row["name"]: row["word"] for row in await self._connection.fetch(self._query)}

    async def clear(self) -> None:
        for table in _CLEARED:
            await self._connection.execute(f"DELETE FROM kagzi.{table} WHERE namespace = 'default'")

    async def close(self) -> None:
        await self._connection.close()

"""The store in an SQLite file, or in memory."""

from kagzi.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]

"""Translates SQLite's errors into those of Kagzi."""

from __future__ import annotations

import sqlite3

from kagzi.errors import InvalidRequest, KagziError, Locked, Unavailable
from kagzi.store.sqlite.holders import holder_of

_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full. Nothing was written; free some space and try again",
    sqlite3.SQLITE_IOERR: "the disk refused to read or write. Check the disk and try again",
    sqlite3.SQLITE_READONLY: "the file or its directory is read-only. Kagzi needs to write to both",
    sqlite3.SQLITE_PERM: "the file or its directory may not be written. Kagzi needs to write to both",
    sqlite3.SQLITE_CANTOPEN: (
        "the file cannot be opened. Check that it may be read and written, and that its directory exists and may be "
        "written"
    ),
    sqlite3.SQLITE_CORRUPT: "the file is damaged. Restore it from a backup",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
}


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: sqlite3.Error, path: str | None) -> KagziError:
    where = path or "the database in memory"
    if _code(error) == sqlite3.SQLITE_NOTADB:
        return InvalidRequest(
            f"{where} is not an SQLite database. Give the path of a new file, or of one that Kagzi made"
        )
    if is_busy(error):
        holder = holder_of(path)
        return Locked(
            f"cannot use {where}: {holder or 'another process'} has been writing to it for too long. Try again; if it "
            f"stays so, {'end that process' if holder else 'look for a program that holds it open'}"
        )
    reason = _REASONS.get(_code(error), f"{error}")
    return Unavailable(f"cannot use {where}: {reason}")


def _code(error: sqlite3.Error) -> int:
    # The low byte is the kind of trouble, the rest says where it was met. Errors of the Python module have
    # none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

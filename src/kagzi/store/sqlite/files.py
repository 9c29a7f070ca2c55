"""Makes the database's file, readable by nobody else, and notices that it is gone or cannot be written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from kagzi.errors import InvalidRequest, SchemaMismatch, Unavailable

# Less than this is no room for a transaction and its part of the log.
_LITTLE_ROOM: Final = 1 << 20


class OpenedFile:
    """The file that was opened. What is written after it was deleted or replaced is lost when it is closed."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)  # the program may go to another directory
        found = os.stat(self._path)
        self._identity = (found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raises if its name does not lead to it any more."""
        try:
            found = os.stat(self._path)
        except OSError:
            pass  # if it cannot be looked at, it cannot be said to be there
        else:
            if (found.st_dev, found.st_ino) == self._identity:
                return
        raise SchemaMismatch(
            f"{self._path} was deleted, moved or replaced while it was open, so nothing that is written is kept. Stop "
            "every process that uses it, put the file back (from a backup, if need be), and start them again"
        )


def write_trouble(path: str | None) -> str | None:
    """Says why the database cannot be written, as far as the file system tells. None if it has nothing against it."""
    if path is None or not os.path.exists(path):
        return None
    directory = os.path.dirname(os.path.abspath(path))
    if not (os.access(path, os.W_OK) and os.access(directory, os.W_OK | os.X_OK)):
        return f"nothing can be written: {path} or its directory is read-only for this process"
    if shutil.disk_usage(directory).free < _LITTLE_ROOM:
        return f"nothing can be written: the disk of {path} is full; free some space"
    return None


def prepare_file(path: str) -> None:
    """Make the file (0600) and the directories above it (0700) where they do not exist.

    A file that exists is not touched: closing any descriptor of it would drop the locks that SQLite
    connections of this process hold on it.
    """
    if "\0" in path:
        raise InvalidRequest("the path of the database contains a NUL byte; remove it")
    file = Path(path)
    try:
        _make_directories(file.parent)
        if file.is_dir():
            raise InvalidRequest(f"{path} is a directory; give the path of a file")
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            pass
    except (NotADirectoryError, FileExistsError):
        raise InvalidRequest(f"{path} cannot be made: something above it is a file, not a directory") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Unavailable(f"{path} cannot be made: {reason}. Check that its directory may be written") from error


def _make_directories(directory: Path) -> None:
    # Not mkdir(parents=True): that gives the directories in between the default mode.
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        if directory.parent == directory:
            break
        directory = directory.parent
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            if not each.is_dir():  # else another process was faster
                raise

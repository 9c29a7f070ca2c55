"""Owners of files: a file that another user left in a directory we happen to be in must not decide what we do.

As git does with repositories: a file counts if it belongs to the user of this process or to root.
"""

from __future__ import annotations

import getpass
import os
import stat
from pathlib import Path

_ROOT = 0


def is_trusted(path: Path) -> bool:
    """Says whether the file, and the link that leads to it, belong to our user or to root."""
    return all(_is_ours(status) for status in (path.lstat(), path.stat()))


def read_trusted(path: Path) -> bytes | None:
    """Returns the bytes of a file that belongs to our user or to root, None of one that does not."""
    with path.open("rb") as file:
        # Of what was opened, since another file may have the name by now.
        status = os.fstat(file.fileno())
        trusted = _is_ours(status) and (not stat.S_ISLNK((link := path.lstat()).st_mode) or _is_ours(link))
        return file.read() if trusted else None


def _is_ours(status: os.stat_result) -> bool:
    # Windows has no such users; who may write where is a matter of its access lists.
    return not hasattr(os, "geteuid") or status.st_uid in (_ROOT, os.geteuid())


def user_name() -> str:
    """Returns the name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have users without names
        return str(os.getuid()) if hasattr(os, "getuid") else "somebody"

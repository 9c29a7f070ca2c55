"""Tells who holds the write lock of a database file, where the system shows that (Linux)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
_WRITE_LOCK: Final = ("120", "120")  # the bytes of the -shm file that a writer locks in WAL mode


def holder_of(path: str | None) -> str | None:
    """Names the process that is in a writing transaction; None if there is none, or it cannot be seen."""
    if path is None:
        return None
    try:
        found = os.stat(f"{path}-shm")
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for fields in map(str.split, lines):
        # 1: POSIX  ADVISORY  WRITE 19893 fe:00:10019336 120 120
        if fields[1:4] == ["POSIX", "ADVISORY", "WRITE"] and fields[5:] == [place, *_WRITE_LOCK]:
            pid = fields[4]
            return f"process {pid}{' (this one)' if int(pid) == os.getpid() else _named(pid)}"
    return None


def _named(pid: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    # The program and what it runs, and no more: arguments may be secrets.
    name = " ".join(os.path.basename(word) for word in words[:2] if not word.startswith("-"))
    return f" ({name[:60]})" if name else ""

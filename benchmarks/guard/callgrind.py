"""Counts instructions with valgrind's callgrind, segment by segment.

A count does not depend on how fast the machine is or what else it does. The same program on the same data gives the
same count to a few in ten thousand.

A program marks where a segment ends by calling a function that nothing else calls: `os.getppid()` in Python,
`pg_backend_pid()` in PostgreSQL. Callgrind then writes what it has counted since the last mark into a file.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PYTHON_MARK: Final = "getppid"
POSTGRES_MARK: Final = "pg_backend_pid"

_NAMED: Final = re.compile(r"(c?ob)=\((\d+)\)(?: (.*))?")

Counts = Mapping[str, int]  # instructions by the program or library they belong to


class CannotCount(Exception):
    """There is no valgrind on this machine, or it does not see the marks."""


def command(mark: str, out: Path) -> list[str]:
    """Returns what stands before the command to be counted. %p in `out` becomes the id of the process."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise CannotCount("valgrind is missing (Debian: apt install valgrind)")
    return [valgrind, "--quiet", "--tool=callgrind", f"--dump-before={mark}", f"--callgrind-out-file={out}"]


def segments(out: Path) -> list[Counts]:
    """Returns what a process has counted up to its first mark, from there to the second, and so on. What came after the
    last one is not told."""
    files = sorted(out.parent.glob(f"{out.name}.*"), key=lambda path: int(path.suffix[1:]))
    if not files:
        raise CannotCount("valgrind sees no marks: this build hides the names of its functions; use one of Debian's")
    return [read(path.read_text(errors="replace")) for path in files]


def read(text: str) -> Counts:
    """Reads one file of callgrind: what each object file spent in its own functions."""
    counts: dict[str, int] = defaultdict(int)
    names: dict[str, str] = {}
    current = ""
    called = False  # the next line of numbers is what a call cost, which its callee is charged with
    for line in text.splitlines():
        if line.startswith(("ob=", "cob=")):
            found = _NAMED.match(line)
            assert found is not None, line
            if found[3] is not None:
                names[found[2]] = Path(found[3]).name
            if found[1] == "ob":
                current = names[found[2]]
        elif line.startswith("calls="):
            called = True
        elif line[:1] in "0123456789+-*" and line:
            if not called:
                counts[current] += int(line.split()[1])
            called = False
    return counts

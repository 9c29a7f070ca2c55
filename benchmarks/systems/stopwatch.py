"""When each run first came to its first line, and when it came to its last.

Workflow functions hold the `stopwatch` of their process. Where workers have processes of their own, these append to a
file that the process with the callers follows; the clock is the system's monotonic one, the same for all of them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

SHARED = "BENCH_STOPWATCH"


class Stopwatch:
    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._ended: dict[int, float] = {}
        shared = os.environ.get(SHARED)
        self._out = os.open(shared, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if shared else None
        self._followed: Path | None = None
        self._position = 0

    def begin(self, x: int, ago: float = 0.0) -> None:
        self._note("began", x, time.perf_counter() - ago)

    def end(self, x: int) -> None:
        self._note("ended", x, time.perf_counter())

    def follow(self, path: Path) -> None:
        """Take what other processes write to `path` for one's own."""
        self._followed = path

    def seconds(self) -> dict[int, float]:
        """How long each run that has come to its end took from its first line."""
        self._catch_up()
        return {x: ended - self._began[x] for x, ended in self._ended.items()}

    def _note(self, what: str, x: int, at: float) -> None:
        if self._out is not None:
            os.write(self._out, f"{what} {x} {at!r}\n".encode())
        elif what == "began":
            # A function that is replayed comes to its first line again; the first time counts.
            self._began[x] = min(at, self._began.get(x, at))
        else:
            self._ended[x] = max(at, self._ended.get(x, at))

    def _catch_up(self) -> None:
        if self._followed is None or not self._followed.exists():
            return
        with self._followed.open() as file:
            file.seek(self._position)
            for line in file:
                what, x, at = line.split()
                self._note(what, int(x), float(at))
            self._position = file.tell()


stopwatch = Stopwatch()

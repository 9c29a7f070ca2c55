"""Has the program and the server of the guard counted."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.environments import ROOT
from benchmarks.guard import backend, embedded
from benchmarks.guard.callgrind import POSTGRES_MARK, PYTHON_MARK, Counts, command, segments
from kagzi.testing.postgres import PostgresServer

CALIBRATION: Final = "calibration"
PYTHON: Final = "Python"
SQLITE: Final = "SQLite"
POSTGRESQL: Final = "PostgreSQL"

# Nothing happens in the background, and no page is written whole because it is the first time.
_SETTINGS: Final = {"autovacuum": "off", "fsync": "off", "full_page_writes": "off", "checkpoint_timeout": "1h"}
_LONGEST_SECONDS: Final = 900.0  # on a busy machine; half a minute on a quiet one

Costs = Mapping[str, float]  # instructions by what they were spent for


@dataclass(frozen=True, slots=True)
class Measured:
    """What was counted of one part (Python, SQLite, PostgreSQL), in the version `version`."""

    part: str
    version: str
    costs: Costs


def measure() -> list[Measured]:
    with tempfile.TemporaryDirectory(prefix="kagzi-guard-") as directory, PostgresServer(settings=_SETTINGS) as server:
        return _measure(Path(directory), server)


def _measure(directory: Path, server: PostgresServer) -> list[Measured]:
    # Once without counting: the tables and the bytecode are made by it.
    _program(server.url, directory)
    server.stop("fast")
    out = server.directory / "counts.%p"
    counted = server.directory / "counted"
    counted.write_text(
        f'#!/bin/sh\nexec {shlex.join([*command(POSTGRES_MARK, out), str(server.bin_dir / "postgres")])} "$@"\n'
    )
    counted.chmod(0o755)
    server.start(program=counted)
    mine = directory / "counts"
    version, before = _program(server.url, directory, *command(PYTHON_MARK, mine))
    server.stop("fast")
    here = dict(zip([*embedded.UNITS, *backend.SEGMENTS], segments(mine)[1::2], strict=True))
    backends = {pid: segments(server.directory / f"counts.{pid}") for marks in before.values() for pid in marks}
    there = {
        segment: sum(sum(backends[pid][number].values()) for pid, number in marks.items())
        for segment, marks in before.items()
    }
    python, sqlite = _embedded(here)
    python |= _without_marks({name: sum(here[name].values()) for name in backend.SEGMENTS})
    postgresql = _without_marks(there)
    postgresql[CALIBRATION] = there[backend.CALIBRATION]
    return [
        Measured(PYTHON, ".".join(map(str, sys.version_info[:2])), python),
        Measured(SQLITE, sqlite3.sqlite_version, sqlite),
        Measured(POSTGRESQL, version, postgresql),
    ]


def _program(url: str, directory: Path, *before: str) -> tuple[str, Mapping[str, Mapping[str, int]]]:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "PYTHONPYCACHEPREFIX": str(directory / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    done = subprocess.run(
        [*before, sys.executable, "-m", "benchmarks.guard.program", url],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        timeout=_LONGEST_SECONDS,
        check=True,
    )
    version, marks = json.loads(done.stdout)
    return version, marks


def _embedded(here: Mapping[str, Counts]) -> tuple[dict[str, float], dict[str, float]]:
    """Returns what Python with all its modules, and what SQLite has spent on a unit of each segment."""
    python: dict[str, float] = {}
    sqlite: dict[str, float] = {}
    for name, units in embedded.UNITS.items():
        counts = here[name]
        inside = sum(count for library, count in counts.items() if library.startswith("libsqlite3"))
        python[name] = (sum(counts.values()) - inside) / units
        sqlite[name] = inside / units
    return python, sqlite


def _without_marks(counts: Mapping[str, int]) -> dict[str, float]:
    """Returns what one statement costs."""
    nothing = counts[backend.NOTHING]
    statements = (name for name in counts if name not in (backend.NOTHING, backend.CALIBRATION))
    return {name: (counts[name] - nothing) / backend.TIMES for name in statements}

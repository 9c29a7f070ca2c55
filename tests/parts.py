"""The two parts of the suite: what computes, and what waits for processes, databases, servers and real time.

`make test` runs one after the other, each with as many processes as suit it: those of the first keep a core busy each,
those of the second hardly ever. `pytest --part computing` runs one of them alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent
PARTS: Final = ("computing", "waiting")
# Folders and files below tests/; everything else waits.
COMPUTING: Final = frozenset(
    {
        "access",
        "coordinator",
        "core",
        "engine",
        "http/test_schemathesis.py",
        "sdk",
        "simulation",
        "typing",
    }
)


def part_of(path: Path) -> str | None:
    """Returns the part that a file or folder belongs to; None for a folder with files of both."""
    name = path.relative_to(ROOT).as_posix()
    if any(name == each or name.startswith(f"{each}/") for each in COMPUTING):
        return "computing"
    if path.is_dir() and any(name == "." or each.startswith(f"{name}/") for each in COMPUTING):
        return None
    return "waiting"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=PARTS, help="run only what computes, or only what waits (tests/parts.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the other part unread: importing all of it takes each process many seconds."""
    part = config.getoption("--part")
    if part is None or not collection_path.is_relative_to(ROOT):
        return None
    return True if part_of(collection_path) not in (None, part) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what was named on the command line and belongs to the other part."""
    part = config.getoption("--part")
    if part is None:
        return
    others = [item for item in items if part_of(item.path) != part]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if part_of(item.path) == part]

"""The three parts of the suite: what computes, what waits, and what has to have the cores to itself.

`make test` runs the first two beside each other, each with as many processes as suit it: those that compute keep a core
busy and yield it to those that wait. The third comes afterwards and is a single one, because it measures. `pytest
--part computing` runs one of them by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent
PARTS: Final = ("computing", "waiting", "alone")
# Folders and files below tests/; everything else waits for processes, databases, servers and real time.
COMPUTING: Final = frozenset(
    {
        "access",
        "contrib",  # also because its libraries take seconds to import, in two processes instead of all
        "coordinator",
        "core",
        "engine",
        "http/test_schemathesis.py",
        "sdk",
        "simulation",
        "typing",
    }
)
# Files whose tests hold a bound of time or memory that others on the same cores would break. They print what they
# measure (tests/measures.py). A test that only waits, however long, does not belong here.
ALONE: Final = frozenset(
    {
        "faults/test_floods.py",
        "faults/test_strangers.py",
        "scenarios/test_news.py",
    }
)
_NAMED: Final = {"computing": COMPUTING, "alone": ALONE}


def part_of(path: Path) -> str | None:
    """Returns the part that a file or folder belongs to; None for a folder with files of several."""
    name = path.relative_to(ROOT).as_posix()
    for part, those in _NAMED.items():
        if any(name == each or name.startswith(f"{each}/") for each in those):
            return part
    if path.is_dir() and any(name == "." or each.startswith(f"{name}/") for those in _NAMED.values() for each in those):
        return None
    return "waiting"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=PARTS, help="run only what computes, waits or is alone (tests/parts.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the other parts unread: importing all of them takes each process many seconds."""
    part = config.getoption("--part")
    if part is None or not collection_path.is_relative_to(ROOT):
        return None
    return True if part_of(collection_path) not in (None, part) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what was named on the command line and belongs to another part."""
    part = config.getoption("--part")
    if part is None:
        return
    others = [item for item in items if part_of(item.path) != part]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if part_of(item.path) == part]

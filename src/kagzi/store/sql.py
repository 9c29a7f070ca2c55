"""Named statements, kept in `.sql` files beside the store that speaks them.

    -- name: claim_runs
    -- Lease the due runs which have waited longest.
    WITH candidates AS (...

A statement begins at its `-- name:` line, is introduced by at least one sentence of comment, and ends where
the next one begins. The text reaches the database without its introduction and without the semicolon.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import LiteralString

_HEADER = re.compile(r"^-- name: *(\S+) *$", re.MULTILINE)


def load_statements(package: str) -> dict[str, LiteralString]:
    """Every statement in the `sql` folder of a package, by name.

    They come from files of ours and never from a caller, hence LiteralString.
    """
    found: dict[str, LiteralString] = {}
    folder = files(package).joinpath("sql")
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        for name, text in parse_statements(file.read_text(encoding="utf-8"), file.name).items():
            if name in found:
                raise ValueError(f"{file.name}: a statement named {name} exists already")
            found[name] = text
    return found


def parse_statements(text: str, file_name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    # split() alternates between what lies before a header, the name in it, and what follows it.
    parts = _HEADER.split(text)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = body.strip().splitlines()
        start = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
        statement = "\n".join(lines[start:]).strip().removesuffix(";").rstrip()
        if start == 0:
            raise ValueError(f"{file_name}: {name} has no sentence that introduces it")
        if not statement:
            raise ValueError(f"{file_name}: {name} is empty")
        if name in found:
            raise ValueError(f"{file_name}: a statement named {name} exists already")
        found[name] = statement
    return found

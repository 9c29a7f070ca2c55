"""The public surface as type checkers see it: exact inference, and mistakes found on their lines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


GOOD, MISTAKES = HERE / "good.py", HERE / "mistakes.py"

# Line -> message of every error in a file.
Found = dict[int, str]


def mypy() -> dict[Path, Found]:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", GOOD, MISTAKES],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[Path, Found] = {}
    for line in done.stdout.splitlines():
        match = re.match(r"(.+?):(\d+): error: (.*)", line)
        if match:
            found.setdefault(Path(ROOT, match[1]).resolve(), {})[int(match[2])] = match[3]
    return found


def basedpyright() -> dict[Path, Found]:
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error", "-p", ROOT, GOOD, MISTAKES],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[Path, Found] = {}
    for problem in json.loads(done.stdout)["generalDiagnostics"]:
        if problem["severity"] == "error":
            line = problem["range"]["start"]["line"] + 1
            found.setdefault(Path(problem["file"]).resolve(), {})[line] = problem["message"]
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "MYPYPATH": str(ROOT / "src"), "PYTHONPATH": str(ROOT / "src")}


@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, basedpyright])
def test_right_programs_get_exact_types_and_mistakes_are_reported_where_they_are(
    check: Callable[[], dict[Path, Found]],
) -> None:
    found = check()
    assert found.keys() == {MISTAKES}, found
    marked = {number for number, line in enumerate(MISTAKES.read_text().splitlines(), 1) if "# error:" in line}
    assert marked
    missed, extra = marked - found[MISTAKES].keys(), found[MISTAKES].keys() - marked
    assert not missed, f"not reported: lines {sorted(missed)}"
    assert not extra, "\n".join(f"{line}: {found[MISTAKES][line]}" for line in sorted(extra))

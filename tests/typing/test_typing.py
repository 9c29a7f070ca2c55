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

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(file: Path) -> dict[int, str]:
    """Line -> message of every error mypy --strict reports in this file."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", str(file)],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(r"(.+?):(\d+): error: (.*)", line)
        if match:
            assert Path(ROOT, match[1]).resolve() == file.resolve(), line
            found[int(match[2])] = match[3]
    return found


def basedpyright(file: Path) -> dict[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error", "-p", str(ROOT), str(file)],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    problems = json.loads(done.stdout)["generalDiagnostics"]
    return {
        problem["range"]["start"]["line"] + 1: problem["message"]
        for problem in problems
        if problem["severity"] == "error"
    }


def _environment() -> dict[str, str]:
    return {**os.environ, "MYPYPATH": str(ROOT / "src"), "PYTHONPATH": str(ROOT / "src")}


CHECKERS = [mypy, basedpyright]


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKERS)
def test_right_programs_get_exact_types(check: Callable[[Path], dict[int, str]]) -> None:
    found = check(HERE / "good.py")
    assert not found, "\n".join(f"{line}: {message}" for line, message in sorted(found.items()))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKERS)
def test_mistakes_are_reported_where_they_are(check: Callable[[Path], dict[int, str]]) -> None:
    file = HERE / "mistakes.py"
    marked = {n for n, line in enumerate(file.read_text().splitlines(), 1) if "# error:" in line}
    found = check(file)
    missed, extra = marked - found.keys(), found.keys() - marked
    assert not missed, f"not reported: lines {sorted(missed)}"
    assert not extra, "\n".join(f"{line}: {found[line]}" for line in sorted(extra))

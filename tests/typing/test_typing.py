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

# Programs that people copy: those in the documents which import what they use.
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# Line -> message of every error in a file.
Found = dict[int, str]


def write_examples(directory: Path) -> list[Path]:
    written = []
    for page in PAGES:
        for number, code in enumerate(_FENCE.findall(page.read_text())):
            if "import Kagzi" in code:
                written.append(directory / f"{page.stem.replace('-', '_')}_{number}.py")
                written[-1].write_text(code)
    return written


def mypy(examples: list[Path]) -> dict[Path, Found]:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary"]
    done = subprocess.run(
        [*command, GOOD, MISTAKES, *examples],
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


def basedpyright(examples: list[Path]) -> dict[Path, Found]:
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error", "-p", ROOT]
    done = subprocess.run(
        [*command, GOOD, MISTAKES, *examples],
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
    check: Callable[[list[Path]], dict[Path, Found]], tmp_path: Path
) -> None:
    examples = write_examples(tmp_path)
    assert len(examples) > 10
    found = check(examples)
    assert found.keys() == {MISTAKES}, found
    marked = {number for number, line in enumerate(MISTAKES.read_text().splitlines(), 1) if "# error:" in line}
    assert marked
    missed, extra = marked - found[MISTAKES].keys(), found[MISTAKES].keys() - marked
    assert not missed, f"not reported: lines {sorted(missed)}"
    assert not extra, "\n".join(f"{line}: {found[MISTAKES][line]}" for line in sorted(extra))

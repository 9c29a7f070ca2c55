"""The suite in its parts (tests/parts.py): python -m scripts.suite PART:PROCESSES ... -- [arguments for pytest]

What fails beside other tests is run once more, alone. A test that passes then does not fail the suite, but is named at
its end: it hides a race, or a bound of time that a busy machine breaks, and wants to be put right. More than a few
failures are no accident, and are not run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.processes import ROOT

FEW = 3
PASSED, FAILED, INTERRUPTED, NOTHING_FOUND = 0, 1, 2, 5  # what pytest exits with


@dataclass
class Outcome:
    code: int
    passed_alone: list[str] = field(default_factory=list)


def run(python: str | Path, name: str, options: Sequence[str], arguments: Sequence[str]) -> Outcome:
    """Runs pytest, and what failed once more; `name` keeps what it remembers apart from that of other runs."""
    memory = ROOT / ".pytest_cache" / name
    remembered = memory / "v" / "cache" / "lastfailed"
    remembered.unlink(missing_ok=True)
    pytest = [python, *options, "-o", f"cache_dir={memory}"]
    code = subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
    if code != FAILED or not remembered.exists():
        return Outcome(code)
    failed = sorted(json.loads(remembered.read_text()))
    if len(failed) > FEW:
        return Outcome(code)
    print(f"Once more, alone: {', '.join(failed)}", flush=True)
    again = subprocess.run([*pytest, "-n", "0", *failed], cwd=ROOT, check=False).returncode
    return Outcome(PASSED, failed) if again == PASSED else Outcome(code)


def tell(passed_alone: Sequence[str]) -> None:
    for test in passed_alone:
        print(f"FLAKY: failed beside others and passed alone: {test}", flush=True)


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    codes, passed_alone = [], []
    for part, processes in (named.split(":") for named in arguments[:split]):
        options = ["-m", "pytest", "--part", part]
        outcome = run(sys.executable, part, options, ["-n", processes, "--dist", "worksteal", *arguments[split + 1 :]])
        if outcome.code == INTERRUPTED:
            return INTERRUPTED
        codes.append(outcome.code)
        passed_alone += outcome.passed_alone
    tell(passed_alone)
    # The arguments may choose tests of one part only.
    return max((code for code in codes if code != NOTHING_FOUND), default=NOTHING_FOUND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

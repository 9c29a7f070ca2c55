"""The suite in its parts (tests/parts.py): python -m scripts.suite PART:PROCESSES ... -- [arguments for pytest]

Parts joined by a plus run beside each other: computing:2+waiting:6 alone:0. The last of them is the one whose bounds of
time count, and it is seen while it runs. The others take what it leaves of the cores, and are shown when they are done.

What fails beside other tests is run once more, alone. A test that passes then does not fail the suite, but is named at
its end: it hides a race, or a bound of time that a busy machine breaks, and wants to be put right. More than a few
failures are no accident, and are not run again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from scripts.processes import ROOT

FEW = 3
PASSED, FAILED, INTERRUPTED, NOTHING_FOUND = 0, 1, 2, 5  # what pytest exits with
# So that tests which compute do not make those late that wait for real time.
_YIELDING = ["nice", "-n", "10"]


@dataclass
class Outcome:
    code: int
    passed_alone: list[str] = field(default_factory=list)


class Session:
    """One run of pytest, and what failed in it; `name` keeps what it remembers apart from that of others."""

    def __init__(self, python: str | Path, name: str, options: Sequence[str]) -> None:
        memory = ROOT / ".pytest_cache" / name
        self._remembered = memory / "v" / "cache" / "lastfailed"
        self._pytest = [str(python), *options, "-o", f"cache_dir={memory}"]
        self._code = PASSED

    def run(self, arguments: Sequence[str]) -> None:
        self._run([*self._pytest, *arguments], None)

    def run_behind(self, arguments: Sequence[str]) -> None:
        """Takes the cores that others leave, and shows what it printed at the end."""
        yielding = _YIELDING if shutil.which("nice") else []
        with tempfile.TemporaryFile() as output:
            self._run([*yielding, *self._pytest, *arguments], output)
            output.seek(0)
            print(f"\n{output.read().decode(errors='replace')}", flush=True)

    def again(self) -> Outcome:
        """Runs what failed once more, alone, if it is not too much."""
        if self._code != FAILED or not self._remembered.exists():
            return Outcome(self._code)
        failed = sorted(json.loads(self._remembered.read_text()))
        if len(failed) > FEW:
            return Outcome(self._code)
        print(f"Once more, alone: {', '.join(failed)}", flush=True)
        again = subprocess.run([*self._pytest, "-n", "0", *failed], cwd=ROOT, check=False).returncode
        return Outcome(PASSED, failed) if again == PASSED else Outcome(self._code)

    def _run(self, command: Sequence[str], output: IO[bytes] | None) -> None:
        self._remembered.unlink(missing_ok=True)
        self._code = subprocess.run(
            command, cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT if output else None
        ).returncode


def run(python: str | Path, name: str, options: Sequence[str], arguments: Sequence[str]) -> Outcome:
    """Runs pytest, and what failed once more."""
    session = Session(python, name, options)
    session.run(arguments)
    return session.again()


def compile_tests(parts: Sequence[str], arguments: Sequence[str]) -> None:
    """Has one process for each part read its tests in a fresh clone, for the bytecode that this leaves behind: the
    processes of the suite start together, and each would rewrite the asserts of every file for itself."""
    if any((ROOT / "tests" / "__pycache__").glob("*.pyc")):
        return
    reading = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "--part", part, "--collect-only", "-p", "no:cacheprovider", *arguments],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the suite will say what is wrong
        )
        for part in parts
    ]
    for each in reading:
        each.wait()


def run_beside(named: str, arguments: Sequence[str]) -> list[Outcome]:
    """Runs parts beside each other, and then what failed in any of them."""
    parts = [part.split(":") for part in named.split("+")]
    sessions = [Session(sys.executable, part, ["-m", "pytest", "--part", part]) for part, _ in parts]
    compile_tests([part for part, _ in parts], arguments)
    options = [["-n", processes, "--dist", "worksteal", *arguments] for _, processes in parts]
    with ThreadPoolExecutor(max_workers=len(sessions)) as threads:
        behind = [
            threads.submit(session.run_behind, given)
            for session, given in zip(sessions[:-1], options[:-1], strict=True)
        ]
        sessions[-1].run(options[-1])
        for each in behind:
            each.result()
    return [session.again() for session in sessions]


def tell(passed_alone: Sequence[str]) -> None:
    for test in passed_alone:
        print(f"FLAKY: failed beside others and passed alone: {test}", flush=True)


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    outcomes: list[Outcome] = []
    for named in arguments[:split]:
        outcomes += run_beside(named, arguments[split + 1 :])
        if any(outcome.code == INTERRUPTED for outcome in outcomes):
            return INTERRUPTED
    tell([test for outcome in outcomes for test in outcome.passed_alone])
    # The arguments may choose tests of one part only.
    return max((outcome.code for outcome in outcomes if outcome.code != NOTHING_FOUND), default=NOTHING_FOUND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

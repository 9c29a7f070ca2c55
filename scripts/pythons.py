"""A quick part of the suite on every Python of this machine: python -m scripts.pythons [arguments for pytest]

Takes every CPython from 3.11 up that is on PATH or among pyenv's, each minor version once, with an environment of its
own in .venv-pythons/; but not the version that runs this, on which `make test` runs everything. Says which supported
versions were not found. Exit code 1 if a test failed somewhere, or an environment could not be made.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.processes import ROOT, table
from scripts.suite import PASSED, run, tell

ENVIRONMENTS = ROOT / ".venv-pythons"
OLDEST = (3, 11)
# What depends on the interpreter: its sqlite3, its asyncio, its exceptions and annotations, gRPC on top of them.
TESTS = ("tests/core", "tests/sdk", "tests/scenarios", "tests/store/sqlite", "tests/store/test_conformance.py")
# Random examples and years of calendars take long and find the same on every one of them.
QUICK = "not postgres and not faults and not slow and not hypothesis"
LEFT_OUT = ("tests/core/test_cron.py", "tests/sdk/replay/test_random_programs.py", "tests/sdk/replay/test_mutants.py")
_ASK = (
    "import sys, sysconfig, venv, ensurepip; assert sys.implementation.name == 'cpython'; "
    "print(*sys.version_info[:3], sysconfig.get_config_var('abiflags') or '-')"
)
_NAMES = re.compile(r"python(3(\.\d+t?)?)?")


@dataclass(frozen=True, order=True)
class Python:
    version: tuple[int, int, int]
    flags: str
    path: Path

    @property
    def series(self) -> str:
        return f"{self.version[0]}.{self.version[1]}{self.flags}"

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version)) + self.flags


def find(environment: Mapping[str, str]) -> list[Python]:
    """Returns one interpreter of each minor version, the oldest first. The one that runs this stands for its own."""
    found: dict[str, Python] = {}
    for path in _candidates(environment):
        python = ask(path)
        if python is not None and python.version >= OLDEST:
            found.setdefault(python.series, python)
    return sorted(found.values())


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    yield Path(sys.executable)
    pyenv = Path(environment.get("PYENV_ROOT") or Path(environment.get("HOME", "/")) / ".pyenv")
    folders = [Path(folder) for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    for folder in [*folders, *sorted(pyenv.glob("versions/*/bin"))]:
        if folder.is_dir():
            yield from sorted(path for path in folder.iterdir() if _NAMES.fullmatch(path.name))


def ask(path: Path) -> Python | None:
    """Returns which Python this is; None if it makes no environments or does not run, as a shim of pyenv may."""
    try:
        done = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    major, minor, micro, flags = done.stdout.split()
    return Python((int(major), int(minor), int(micro)), flags.strip("-"), path)


def supported() -> list[str]:
    """Returns the versions that the package says it works with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = (re.search(r":: (3\.\d+)$", classifier) for classifier in project["classifiers"])
    return [version[1] for version in told if version is not None]


def missing(pythons: Iterable[Python]) -> list[str]:
    there = {python.series for python in pythons}
    return [version for version in supported() if version not in there]


def prepare(python: Python) -> Path:
    """Returns the interpreter of an environment with everything that the tests need."""
    home = ENVIRONMENTS / python.name
    inside, stamp = home / "bin" / "python", home / ".installed"
    if not stamp.exists() or stamp.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime or not inside.exists():
        print(f"{python.name}: installing ...", flush=True)
        subprocess.run([python.path, "-m", "venv", "--clear", home], check=True)
        install = [inside, "-m", "pip", "-qq", "--disable-pip-version-check", "install", "--editable", ".[test]"]
        subprocess.run(install, cwd=ROOT, check=True)
        stamp.touch()
    return inside


def try_out(python: Python, arguments: list[str]) -> list[str]:
    """Returns a row of the table: what came of the tests on this Python."""
    began = time.monotonic()
    try:
        inside = prepare(python)
    except subprocess.CalledProcessError:
        return [python.name, "NOT INSTALLED", f"{time.monotonic() - began:.0f}"]
    print(f"{python.name}: {inside}", flush=True)
    chosen = arguments or ["-n", "2", *TESTS, *(f"--ignore={path}" for path in LEFT_OUT)]
    outcome = run(inside, python.name, ["-W", "error", "-m", "pytest", "-q", "-m", QUICK], chosen)
    tell(outcome.passed_alone)
    return [python.name, "passed" if outcome.code == PASSED else "FAILED", f"{time.monotonic() - began:.0f}"]


def main() -> int:
    pythons = find(os.environ)
    ours = Path(sys.executable)
    rows = [try_out(python, sys.argv[1:]) for python in pythons if python.path != ours]
    rows += [[python.name, "by make test", ""] for python in pythons if python.path == ours]
    table("The suite's quick part on the Pythons of this machine", ["", "", "seconds"], rows)
    if absent := missing(pythons):
        print(f"not tried, because this machine has none: {', '.join(absent)} (looked on PATH and among pyenv's)")
    return 0 if all(row[1] in ("passed", "by make test") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

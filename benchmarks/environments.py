"""A virtual environment for each peer, made once in `.bench/`, so that none meets another's libraries.

Everything comes from the package index when it is needed; nothing of a peer is kept in this repository.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / ".bench"

REQUIREMENTS = {
    "dbos": ("dbos==3.3.0",),
    # The SDK brings no SQL schema; the command line tool of the same version does.
    "absurd": ("absurd-sdk==0.5.1", "absurdctl==0.5.1"),
    # aiohttp is for the callers: the fastest of the usual clients. granian takes uvloop if it is there.
    "temporal": ("temporalio==1.35.0",),
    "restate": ("restate-sdk[serde]==1.2.0", "granian==2.8.7", "uvloop==0.23.0", "aiohttp==3.14.5"),
}
# From npm, into `npm` in the same directory.
NPM_REQUIREMENTS = {"restate": ("@restatedev/restate-server@1.7.12",)}


# The dev server of Temporal's command line tool is built from its module: the Python package would fetch it from a site
# of its own. The tool itself cannot be built from its module, which lacks a part that the server does without.
TEMPORAL_CLI = "github.com/temporalio/cli"
TEMPORAL_VERSION = "v1.9.1"


class EnvironmentFailed(Exception):
    """A peer could not be installed; the message ends with what pip or npm said."""


def bench_directory() -> Path:
    """Where results, environments and SQLite files go. It ignores itself, like a virtual environment."""
    BENCH.mkdir(exist_ok=True)
    (BENCH / ".gitignore").write_text("*\n")
    return BENCH


def python_of(system: str, say: Callable[[str], None]) -> Path:
    """The interpreter a system runs with: the project's own, or a peer's, which is made if need be."""
    if system not in REQUIREMENTS:
        return Path(sys.executable)
    if system == "temporal":
        temporal_server(say)
    directory = bench_directory() / f"venv-{system}"
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = directory / "installed"
    packages = NPM_REQUIREMENTS.get(system, ())
    wanted = "\n".join((sys.version, *REQUIREMENTS[system], *packages))
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    say(f"installing {' and '.join((*REQUIREMENTS[system], *packages))}")
    shutil.rmtree(directory, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(directory))
    _run(str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[system])
    if packages:
        prefix = directory / "npm"
        prefix.mkdir()
        _run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(prefix), *packages)
    stamp.write_text(wanted)
    return python


def temporal_server(say: Callable[[str], None]) -> Path:
    """The dev server of Temporal, built once; that takes minutes, and gigabytes while it goes on."""
    binary = bench_directory() / f"temporal-dev-{TEMPORAL_VERSION}"
    if binary.exists():
        return binary
    say(f"building the dev server of {TEMPORAL_CLI} {TEMPORAL_VERSION}")
    module = json.loads(_run("go", "mod", "download", "-json", f"{TEMPORAL_CLI}@{TEMPORAL_VERSION}"))
    source = BENCH / "temporal-source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(module["Dir"], source, copy_function=shutil.copyfile)
    for directory, _, _ in os.walk(source):
        os.chmod(directory, 0o755)
    shutil.copytree(Path(__file__).parent / "systems" / "temporal", source / "cmd" / "dev")
    missing = f"{TEMPORAL_CLI}/cliext"
    _run("go", "-C", str(source), "mod", "edit", "-dropreplace", missing, "-droprequire", missing)
    _run("go", "-C", str(source), "build", "-mod=mod", "-buildvcs=false", "-o", str(binary), "./cmd/dev")
    shutil.rmtree(source)
    return binary


def versions_of(python: Path) -> dict[str, str]:
    """Every distribution in an environment with its version, for the record."""
    listing = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    )
    found: dict[str, str] = json.loads(_run(str(python), "-c", listing))
    return dict(sorted(found.items()))


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=BENCH)
    except FileNotFoundError:
        raise EnvironmentFailed(f"{command[0]} is not installed; leave its system out with --systems") from None
    if done.returncode != 0:
        raise EnvironmentFailed(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout

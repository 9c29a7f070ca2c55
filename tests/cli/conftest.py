from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

SHOP = """
import asyncio, os
from kagzi import Kagzi

app = Kagzi()

@app.step
async def charge(order: str, cents: int) -> str:
    if cents < 0:
        raise ValueError(f"cannot charge {cents}")
    open(f"begun-{order}", "w").close()
    while not os.path.exists(f"go-{order}"):
        await asyncio.sleep(0.02)
    return f"{order}:{cents}"

@app.step
async def ship(order: str) -> str:
    print("shipping", order, flush=True)
    return "shipped"

@app.workflow(retry=None)
async def checkout(order: str, cents: int) -> dict[str, str]:
    return {"paid": await charge.options(retry=None)(order, cents), "sent": await ship(order)}
"""


class Result:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Shell:
    """Runs real `kagzi` processes in a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith(("KAGZI_", "COV_"))}
        self.environ |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error", "NO_COLOR": "1"}
        self.environ["KAGZI_HTTP_PORT"] = "0"  # many servers at once
        self.environ.pop("FORCE_COLOR", None)
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str, stdin: str = "", seconds: float = 90, **environ: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "kagzi", *arguments],
            cwd=self.directory,
            env=self.environ | environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return Result(done)

    def spawn(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return self.start([sys.executable, "-m", "kagzi", *arguments], **environ)

    def start(self, command: list[str], **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "pyproject.toml").touch()  # what lies above is not ours
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.fixture
def shop(shell: Shell) -> Shell:
    (shell.directory / "shop.py").write_text(SHOP)
    return shell


def until(look: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Standard error up to the line with these words."""
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"{words!r} never came:\n{seen}")

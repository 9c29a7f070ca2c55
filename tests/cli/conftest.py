from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.warm import Process, Warm, clean_environ

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
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Shell:
    """Runs real `kagzi` processes in a directory of the test's own."""

    def __init__(self, directory: Path, warm: Warm) -> None:
        self.directory = directory
        self.environ = clean_environ()
        self.environ["KAGZI_HTTP_PORT"] = "0"  # many servers at once
        self._warm = warm
        self._processes: list[subprocess.Popen[str] | Process] = []

    def __call__(self, *arguments: str, stdin: str = "", seconds: float = 90, **environ: str) -> Result:
        """Run a command to its end."""
        done = self._warm.run(
            ["-m", "kagzi", *arguments],
            directory=self.directory,
            environ=self.environ | environ,
            input=stdin,
            seconds=seconds,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def afresh(self, *arguments: str, stdin: str = "", seconds: float = 90, **environ: str) -> Result:
        """The same in a new interpreter."""
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
        return Result(done.returncode, done.stdout, done.stderr)

    def spawn(self, *arguments: str, **environ: str) -> Process:
        process = self._warm.start(
            ["-m", "kagzi", *arguments], directory=self.directory, environ=self.environ | environ
        )
        self._processes.append(process)
        return process

    def start(self, command: list[str], **environ: str) -> subprocess.Popen[str]:
        """A program of another kind, in a new interpreter."""
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
def shell(tmp_path: Path, warm: Warm) -> Iterator[Shell]:
    (tmp_path / "pyproject.toml").touch()  # what lies above is not ours
    made = Shell(tmp_path, warm)
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


def served(shell: Shell) -> str:
    """The URL of a server of the shell's own, on the database of its settings."""
    server = shell.spawn("server", "--port", "0")
    found = re.search(r"gRPC on 127\.0\.0\.1:(\d+)", read_until(server, "is ready"))
    assert found is not None
    return f"grpc://127.0.0.1:{found[1]}"


def read_until(process: subprocess.Popen[str] | Process, words: str) -> str:
    """Standard error up to the line with these words."""
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"{words!r} never came:\n{seen}")

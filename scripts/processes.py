"""Programs of a trial: started with an environment of their own, logged to a file, gone at the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from kagzi.testing.postgres import Account, command_as

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 60.0


def until(look: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
    return found


class Program:
    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], account: Account | None = None
    ) -> None:
        self.log_path = log
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KAGZI_", "PG"))}
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command_as(account, command),
                cwd=ROOT,
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def said(self, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        """Wait until its log has this."""

        def look() -> re.Match[str] | None:
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended with {self._process.returncode}:\n{self.log[-3000:]}")
            return re.search(pattern, self.log)

        return until(look, f"{pattern!r} in the log", seconds)

    def kill(self) -> None:
        """As if the power had failed, for this process and those it has started."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, seconds: float = PATIENCE) -> int:
        """In order; its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode


class Programs:
    """All programs of a trial, killed when it ends."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="kagzi-trial-")
        self.directory = Path(self._directory.name)
        self._all: list[Program] = []

    def kagzi(self, *arguments: str, environment: Mapping[str, str]) -> Program:
        return self.start([sys.executable, "-m", "kagzi", *arguments], environment)

    def start(self, command: Sequence[str], environment: Mapping[str, str], account: Account | None = None) -> Program:
        program = Program(command, self.directory / f"{len(self._all)}.log", environment, account)
        self._all.append(program)
        return program

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._directory.cleanup()

    def kill(self) -> None:
        for program in self._all:
            program.kill()


def answer(module: str, *arguments: str, environment: Mapping[str, str], seconds: float = 300) -> str:
    """What a module of ours prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KAGZI_", "PG"))}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr[-3000:]}")
    return done.stdout


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[place]) for row in (columns, *rows)) for place in range(len(columns))]
    print(f"\n{title}\n")
    for row in (columns, ["-" * width for width in widths], *rows):
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print(flush=True)

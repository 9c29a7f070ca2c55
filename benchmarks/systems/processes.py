"""The other processes of a system: servers and workers that a script starts, waits for and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Self

START_SECONDS = 60.0
STOP_SECONDS = 20.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


class StartFailed(Exception):
    """A process ended, or was silent for too long, before it was ready."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Process:
    """A process that ends with the one that started it: it is in its session."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, *command: str | Path, log: Path, env: dict[str, str] | None = None) -> Self:
        """What it prints goes to `log`: nobody has to read a pipe while time is taken."""
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *map(str, command), env={**os.environ, **(env or {})}, stdout=out, stderr=out
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def says(self, words: str) -> None:
        """Wait until it has printed that."""
        await self._until(lambda: words in self._log.read_text(errors="replace"), f"say {words!r}")

    async def listens(self, port: int) -> None:
        await self._until(lambda: _accepts(port), f"listen on {port}")

    async def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        if self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """For what takes long to end and has nothing left to tell."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while self._process.returncode is None:
                    if condition():
                        return
                    await asyncio.sleep(0.02)
        raise StartFailed(f"{self._log.stem} did not {what}:\n{self._log.read_text(errors='replace')[-2000:]}")


def _accepts(port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1)
        return caller.connect_ex(("127.0.0.1", port)) == 0


def cpu_seconds(pid: int) -> float:
    """Time on a core that a process has had so far, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def memory_mb(pid: int) -> float:
    """What it holds of the machine's memory now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MB


def peak_memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not say how much memory a process has held")

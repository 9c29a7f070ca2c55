"""Worker processes, and waiting for things to happen."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.faults.program import Program
from tests.warm import PIPE, Process, Warm

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
LEASE = 3.0  # of a site, unless it says otherwise
PATIENCE = 60.0  # how long a busy machine may take for what has no bound of its own


async def until(look: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.01)


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class WorkerProcess:
    def __init__(self, directory: Path, number: int, options: dict[str, Any], warm: Warm) -> None:
        self._url: str = options["url"]
        self.log_path = directory / f"worker-{number}.log"
        with self.log_path.open("wb") as log:
            self.process = warm.start(
                ["-m", "tests.faults.program", json.dumps(options)],
                directory=ROOT,
                environ={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
                stdin=PIPE,  # it ends when we do, however that is
                stdout=log.fileno(),
                stderr=log.fileno(),
                session=True,
            )
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    async def ready(self) -> WorkerProcess:
        await until(lambda: "is up" in self.log or self.process.poll() is not None, f"worker {self.pid} is up")
        assert self.process.poll() is None, self.log
        return self

    def send(self, number: signal.Signals) -> float:
        """The moment when it was sent."""
        at = time.monotonic()
        os.kill(self.pid, number)
        return at

    def kill(self) -> float:
        at = self.send(signal.SIGKILL)
        self.process.wait()
        return at

    async def suspend(self) -> float:
        """SIGSTOP, but not while it holds SQLite's write lock: that would suspend everybody else, too."""
        while True:
            at = self.send(signal.SIGSTOP)
            if not self._locks_database():
                return at
            self.send(signal.SIGCONT)
            await asyncio.sleep(0.02)

    def _locks_database(self) -> bool:
        if not self._url.startswith("sqlite:///"):
            return False
        connection = sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=1.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
        return False

    async def ended(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        await until(lambda: self.process.poll() is not None, f"worker {self.pid} ends; its log:\n{self.log}", seconds)
        return self.process.returncode

    def memory(self) -> int:
        """Bytes of it that are in memory."""
        return memory_of(self.pid)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ServerProcess:
    """`kagzi server` on a database, on a port of its own choice if none is given. Forked where there is a `warm`: in a
    new interpreter where its memory or its files are looked at."""

    def __init__(
        self,
        directory: Path,
        database: str,
        *,
        lease: float,
        port: int = 0,
        number: int = 0,
        warm: Warm | None = None,
    ) -> None:
        self.log_path = directory / f"server-{number}.log"
        arguments = ["-m", "kagzi", "server", "--port", str(port), "--http-port", "0", "--url", database]
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS": f"{lease:g}",
        }
        self.process: Process | subprocess.Popen[bytes]
        with self.log_path.open("wb") as log:
            if warm is not None:
                self.process = warm.start(
                    arguments, directory=ROOT, environ=environ, stdout=log.fileno(), stderr=log.fileno()
                )
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *arguments], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    async def url(self) -> str:
        """Where it listens, once it does."""
        await until(lambda: "is ready" in self.log or self.process.poll() is not None, "the server is ready")
        found = re.search(r"gRPC on ([0-9.:]+)", self.log)
        assert found is not None, self.log
        return f"grpc://{found[1]}"

    def http_url(self) -> str:
        """Where it answers HTTP, once it is ready."""
        found = re.search(r"HTTP on ([0-9.:]+)", self.log)
        assert found is not None, self.log
        return f"http://{found[1]}"

    def memory(self) -> int:
        """Bytes of it that are in memory."""
        return memory_of(self.process.pid)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Site:
    """One database, one ledger, a client (`site.program.app`) and any number of worker processes."""

    def __init__(self, directory: Path, url: str, warm: Warm, **settings: Any) -> None:
        self.directory = directory
        self._warm = warm
        self.url = url
        self.settings = settings
        self.program = Program(url, directory / "ledger", **settings)
        self.ledger = self.program.ledger
        self.workers: list[WorkerProcess] = []

    def worker(self, *, deaf: bool = False, **options: Any) -> WorkerProcess:
        worker = WorkerProcess(
            self.directory,
            len(self.workers),
            {
                "url": self.url,
                "ledger": str(self.ledger.path),
                "kagzi": self.settings,
                "worker": options,
                "deaf": deaf,
            },
            self._warm,
        )
        self.workers.append(worker)
        return worker

    async def seen(self, event: str, seconds: float = PATIENCE, **wanted: Any) -> dict[str, Any]:
        """The first line of the ledger like this."""
        lines = await until(lambda: self.ledger.lines(event, **wanted), f"{event} {wanted} in the ledger", seconds)
        return lines[0]

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                os.kill(worker.pid, signal.SIGKILL)
            worker.process.communicate()

    def logs(self) -> str:
        return "".join(f"--- worker {worker.pid}\n{worker.log}" for worker in self.workers)

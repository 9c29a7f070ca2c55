"""Processes of their own that need not load Python and Kagzi first.

Loading takes ten times longer than most commands do, and the tests start hundreds of them. So one process loads
everything once, and for each that it is asked for it forks: the child has its own directory, environment and files,
and from there on is what `python -m kagzi …` or `python program.py` is, down to how the interpreter ends. Warnings are
errors in all of them.

`warm.run(...)` waits for the end of one, `warm.start(...)` gives a `Process`, which is used like one of `subprocess`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What commands and programs load when they run, and not grpc: its settings come first.
LOADED = (
    "asyncpg",
    "kagzi.http.port",
    "kagzi.rpc.convert.runs",
    "kagzi.store.postgres.store",
    "kagzi.store.sqlite.store",
    "uvloop",
)
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL


class Process:
    """A process that was forked for a test: `subprocess.Popen` as far as tests use it, with text in its pipes.

    It is no child of ours, so its end is told by the process that forked it, through a pipe.
    """

    def __init__(self, arguments: Sequence[str], pid: int, told: int, pipes: dict[str, int]) -> None:
        self.args = list(arguments)
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[str] | None = os.fdopen(pipes["stdin"], "w") if "stdin" in pipes else None
        self.stdout: IO[str] | None = os.fdopen(pipes["stdout"]) if "stdout" in pipes else None
        self.stderr: IO[str] | None = os.fdopen(pipes["stderr"]) if "stderr" in pipes else None
        self._told: int | None = told
        self._readers: dict[str, threading.Thread] = {}
        self._written: dict[str, str] = {}

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self._told is not None:
            if not select.select([self._told], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(os.read(self._told, 100))
            os.close(self._told)
            self._told = None
        assert self.returncode is not None
        return self.returncode

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:
        """What it has written to its end, which has to come within the time."""
        for name in ("stdout", "stderr"):
            pipe: IO[str] | None = getattr(self, name)
            if pipe is not None and not pipe.closed and name not in self._readers:
                self._readers[name] = reader = threading.Thread(target=self._read, args=(name, pipe), daemon=True)
                reader.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(input)
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        self.wait(timeout)
        for reader in self._readers.values():
            reader.join(timeout)
            if reader.is_alive():  # another process has its pipe
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._written.get("stdout", ""), self._written.get("stderr", "")

    def _read(self, name: str, pipe: IO[str]) -> None:
        with pipe:
            self._written[name] = pipe.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The test's side of the process that forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair()
        with theirs:
            # No terminal: what is written to standard output is kept back as it is for a pipe or a file.
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.warm", str(theirs.fileno())],
                cwd=ROOT,
                env=clean_environ(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def start(
        self,
        arguments: Sequence[str],
        *,
        directory: Path,
        environ: dict[str, str],
        stdin: int = DEVNULL,
        stdout: int = PIPE,
        stderr: int = PIPE,
        session: bool = False,
    ) -> Process:
        """Starts `python *arguments`; they begin with -m and a module, or with a file. With a `session` of its own."""
        asked = {"arguments": list(arguments), "directory": str(directory), "environ": environ, "session": session}
        ours: dict[str, int] = {}
        with contextlib.ExitStack() as theirs:

            def given(file: int) -> int:
                theirs.callback(os.close, file)
                return file

            files = []
            for name, wanted in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                if wanted == DEVNULL:
                    files.append(given(os.open(os.devnull, os.O_RDWR)))
                elif wanted == PIPE:
                    reading, writing = os.pipe()
                    ours[name] = writing if name == "stdin" else reading
                    files.append(given(reading if name == "stdin" else writing))
                else:
                    files.append(wanted)
            told, tell = os.pipe()
            request = json.dumps(asked).encode()
            with self._lock:
                socket.send_fds(self._ours, [len(request).to_bytes(4, "big")], [*files, given(tell)])
                self._ours.sendall(request)
                pid = int.from_bytes(_exactly(self._ours, 4), "big")
        return Process(arguments, pid, told, ours)

    def run(
        self, arguments: Sequence[str], *, directory: Path, environ: dict[str, str], input: str = "", seconds: float
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(arguments, directory=directory, environ=environ, stdin=PIPE)
        try:
            out, err = process.communicate(input, timeout=seconds)
        finally:
            process.kill()
        return subprocess.CompletedProcess(list(arguments), process.wait(), out, err)

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


def clean_environ() -> dict[str, str]:
    """The environment without settings of Kagzi and colours."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("KAGZI_", "COV_"))}
    environ |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error", "NO_COLOR": "1"}
    environ.pop("FORCE_COLOR", None)
    return environ


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    made = Warm()
    yield made
    made.close()


def serve(line: socket.socket) -> None:
    from kagzi.cli.main import COMMANDS

    for name in (*LOADED, *(module for module, _ in COMMANDS.values())):
        import_module(name)
    gc.collect()
    gc.freeze()  # children look at what is theirs only
    heard, hear = os.pipe()
    os.set_blocking(hear, False)
    signal.set_wakeup_fd(hear)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tell: dict[int, int] = {}
    while True:
        ready = select.select([line, heard], [], [])[0]
        if heard in ready:
            os.read(heard, 1000)
            while tell:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                end = tell.pop(pid)
                with contextlib.suppress(BrokenPipeError):
                    os.write(end, b"%d" % os.waitstatus_to_exitcode(status))
                os.close(end)
        if line in ready:
            length, files, _, _ = socket.recv_fds(line, 4, 4)
            if not length:
                return
            request = _exactly(line, int.from_bytes(length, "big"))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                line.detach()
                become(**json.loads(request), files=files[:3])
            line.sendall(pid.to_bytes(4, "big"))
            tell[pid] = files[3]
            for file in files[:3]:
                os.close(file)


def become(arguments: list[str], directory: str, environ: dict[str, str], session: bool, files: list[int]) -> NoReturn:
    if session:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 1000)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    added = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.orig_argv[1:] = ["-W", "error", *arguments]
    if arguments[0] == "-m":
        sys.path[:1] = [directory, *added]
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:1] = [str(Path(arguments[0]).resolve().parent), *added]
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()


def _exactly(line: socket.socket, length: int) -> bytes:
    read = b""
    while len(read) < length:
        more = line.recv(length - len(read))
        if not more:
            raise EOFError("the other side is gone")
        read += more
    return read


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as line:
        serve(line)

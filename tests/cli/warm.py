"""Commands as processes of their own that need not load Python and Kagzi first.

Loading takes ten times longer than most commands do, and the tests give hundreds of them. So one process loads
everything once, and for each command it is asked for it forks: the child has its own directory, environment and files,
and from there on is what `python -m kagzi …` is, down to how the interpreter ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from kagzi.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
# Every command, and what commands load when they run.
LOADED = [module for module, _ in COMMANDS.values()]
LOADED += ["asyncpg", "kagzi.store.postgres.store", "kagzi.store.sqlite.store"]  # not grpc: its settings come first


class Warm:
    """The test's side. One command at a time."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.warm", str(theirs.fileno())],
                cwd=ROOT,
                env=environ,
                pass_fds=[theirs.fileno()],
            )
        # Without a buffer: an answer that lay in one would be waited for on the socket.
        self._answers = self._ours.makefile("rb", buffering=0)

    def run(
        self, arguments: list[str], *, directory: Path, environ: dict[str, str], files: list[Path], seconds: float
    ) -> int:
        """The exit code. `files` are for standard input, output and error."""
        asked = {
            "arguments": arguments,
            "directory": str(directory),
            "environ": environ,
            "files": list(map(str, files)),
        }
        with self._lock:
            self._ours.sendall(json.dumps(asked).encode() + b"\n")
            pid = int(self._answers.readline())
            if not select.select([self._ours], [], [], seconds)[0]:
                os.kill(pid, signal.SIGKILL)
                self._answers.readline()
                raise subprocess.TimeoutExpired(arguments, seconds)
            return int(self._answers.readline())

    def close(self) -> None:
        self._answers.close()
        self._ours.close()
        self._process.wait()


def serve(line: socket.socket) -> None:
    for name in LOADED:
        import_module(name)
    requests = line.makefile("r")
    for request in requests:
        pid = os.fork()
        if pid == 0:
            requests.close()
            line.close()
            become(**json.loads(request))
        line.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        line.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def become(arguments: list[str], directory: str, environ: dict[str, str], files: list[str]) -> NoReturn:
    os.chdir(directory)
    sys.path[0] = directory
    os.environ.clear()
    os.environ.update(environ)
    for number, (path, flags) in enumerate(zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["kagzi", *arguments]
    main()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as line:
        serve(line)

"""A real PgBouncer for tests, in transaction mode, before a PostgreSQL made for tests.

    with PostgresServer() as server, PgBouncer(server) as bouncer:
        connect(bouncer.url)

It is a program of its own, which must be installed (Debian: `apt install pgbouncer`); `find_pgbouncer()` says whether
it is. Like PostgreSQL it refuses to run as root, and it ends with whoever started it.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kagzi.testing.postgres import PostgresServer, command_as, free_port, make_directory, unprivileged_account

MISSING = "PgBouncer is not installed (Debian: apt install pgbouncer)"
_START_SECONDS = 10

# Ends, with everything it left, when the other end of its standard input is gone.
_GUARD = """
"$1" -q "$2/pgbouncer.ini" >"$2/log" 2>&1 &
cat >/dev/null
kill $!
wait $!
rm -rf "$2"
"""


def find_pgbouncer() -> str | None:
    """Debian keeps it where only root's PATH leads."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


class PgBouncer:
    """Sessions of the server are shared by all who come through here, `pool_size` for each database."""

    def __init__(
        self, server: PostgresServer, *, pool_size: int = 4, settings: Mapping[str, str] | None = None
    ) -> None:
        self._server = server
        self._settings = {
            "listen_addr": "127.0.0.1",
            "unix_socket_dir": "",
            "auth_type": "trust",
            "pool_mode": "transaction",
            "default_pool_size": str(pool_size),
            "max_client_conn": "1000",
            **(settings or {}),
        }
        self._guard: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@{self.host}/{database}"

    @property
    def host(self) -> str:
        """Address and port, as in a URL."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Return when it answers."""
        program = find_pgbouncer()
        if program is None:
            raise RuntimeError(MISSING)
        account = unprivileged_account()
        directory = make_directory(account)
        self._port = free_port()
        self._write(directory)
        self._guard = subprocess.Popen(
            command_as(account, ["sh", "-c", _GUARD, "sh", program, str(directory)]),
            stdin=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        log = ""
        for _ in range(_START_SECONDS * 20):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            time.sleep(0.05)
        with contextlib.suppress(FileNotFoundError):
            log = (directory / "log").read_text(errors="replace")
        self.close()
        raise RuntimeError(f"PgBouncer did not start:\n{log[-2_000:]}")

    def close(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.communicate()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, directory: Path) -> None:
        host, _, port = self._server.host.partition(":")
        users = directory / "users.txt"
        users.write_text('"postgres" ""\n')
        settings = {**self._settings, "listen_port": str(self._port), "auth_file": str(users)}
        lines = [f"[databases]\n* = host={host} port={port}\n\n[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        config = directory / "pgbouncer.ini"
        config.write_text("\n".join(lines) + "\n")
        for file in (users, config):
            file.chmod(0o644)

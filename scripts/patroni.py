"""A cluster of PostgreSQL servers under Patroni, with one etcd, all on this machine.

Needs Debian's packages patroni, etcd-server and a PostgreSQL; nothing of theirs is configured or started for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kagzi.testing.postgres import Account, find_binaries, free_port, make_directory, unprivileged_account
from scripts.processes import Program, Programs, until

NEEDED = {"patroni": "patroni", "etcd": "etcd-server"}
# The least that Patroni allows: after this long without a word from the leader another one is chosen.
TTL_SECONDS = 20


def missing() -> list[str]:
    """The packages that are not there."""
    return [package for program, package in NEEDED.items() if shutil.which(program) is None]


class Node:
    def __init__(self, number: int, directory: Path, programs: Programs, account: Account | None) -> None:
        self.name = f"node{number}"
        self.port = free_port()
        self.rest_port = free_port()
        self._directory = directory / self.name
        self._programs = programs
        self._account = account
        self._patroni: Program | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, etcd: int, synchronous: bool) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if self._account is not None:
            os.chown(self._directory, self._account.uid, self._account.gid)
        config = self._directory.parent / f"{self.name}.yml"
        config.write_text(json.dumps(self._config(etcd, synchronous)))  # JSON is YAML, too
        config.chmod(0o644)
        environment = {"HOME": str(self._directory), "LC_ALL": "C"}
        self._patroni = self._programs.start([_path("patroni"), str(config)], environment, self._account)

    def kill(self) -> None:
        """Patroni and every process of its PostgreSQL, at once."""
        postmaster = int((self._directory / "data" / "postmaster.pid").read_text().split("\n")[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        if self._patroni is not None:
            self._patroni.kill()
        for pid in (postmaster, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.kill()

    def role(self) -> str | None:
        """What it says of itself: "leader", "sync_standby", "replica", or nothing."""
        for member in self._members():
            if member["name"] == self.name and member.get("state") in ("running", "streaming"):
                return str(member["role"])
        return None

    def takes_writes(self) -> bool:
        """PostgreSQL is not in recovery any more, whatever the cluster says meanwhile."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest_port}/primary", timeout=1) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def _members(self) -> list[dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest_port}/cluster", timeout=2) as reply:
                found: list[dict[str, Any]] = json.loads(reply.read())["members"]
                return found
        except (OSError, ValueError):
            return []

    def _config(self, etcd: int, synchronous: bool) -> dict[str, Any]:
        login = {"username": "postgres", "password": "unused"}
        return {
            "scope": "kagzi",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.rest_port}", "connect_address": f"127.0.0.1:{self.rest_port}"},
            "etcd3": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS,
                    "loop_wait": 2,
                    "retry_timeout": 5,
                    "maximum_lag_on_failover": 1_048_576,
                    "synchronous_mode": synchronous,
                    "synchronous_mode_strict": synchronous,
                    "postgresql": {
                        "use_pg_rewind": True,
                        # How long a standby waits before it tries the new primary: 5 s if nobody says otherwise,
                        # and no commit is acknowledged meanwhile.
                        "parameters": {"wal_log_hints": "on", "wal_retrieve_retry_interval": "200ms"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": self.host,
                "connect_address": self.host,
                "data_dir": str(self._directory / "data"),
                "bin_dir": str(find_binaries()),
                "pgpass": str(self._directory / "pgpass"),
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
                "authentication": {"superuser": login, "replication": login, "rewind": login},
                "parameters": {"unix_socket_directories": str(self._directory), "max_connections": 200},
            },
        }


class Cluster:
    """`size` nodes, of which one leads."""

    def __init__(self, programs: Programs, *, size: int, synchronous: bool) -> None:
        account = unprivileged_account()
        self.directory = make_directory(account)
        self.synchronous = synchronous
        self._programs = programs
        self._account = account
        self._etcd = free_port()
        self.nodes = [Node(number, self.directory, programs, account) for number in range(1, size + 1)]

    @property
    def url(self) -> str:
        hosts = ",".join(node.host for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def start(self) -> None:
        peer = f"http://127.0.0.1:{free_port()}"
        client = f"http://127.0.0.1:{self._etcd}"
        command = [_path("etcd"), "--name", "etcd", "--data-dir", str(self.directory / "etcd")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"etcd={peer}"]
        self._programs.start(command, {"HOME": str(self.directory)}, self._account).said("ready to serve client")
        for node in self.nodes:
            node.start(self._etcd, self.synchronous)
        self.settle()

    def settle(self) -> Node:
        """Wait until one leads and all others follow; the leader."""

        def look() -> Node | None:
            roles = {node: node.role() for node in self.nodes}
            if any(role is None for role in roles.values()):
                return None
            if self.synchronous and "sync_standby" not in roles.values():
                return None
            return next((node for node, role in roles.items() if role == "leader" and node.takes_writes()), None)

        return until(look, "a leader and its followers", 180)

    def restart(self, node: Node) -> None:
        node.start(self._etcd, self.synchronous)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@contextlib.contextmanager
def running(*, size: int, synchronous: bool) -> Iterator[Cluster]:
    with Programs() as programs:
        cluster = Cluster(programs, size=size, synchronous=synchronous)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()
            _remove(programs, cluster.directory)


def _remove(programs: Programs, directory: Path) -> None:
    programs.kill()  # nobody may write there while it is deleted
    shutil.rmtree(directory, ignore_errors=True)


def _path(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise RuntimeError(f"{program} is not installed (Debian: apt install {NEEDED[program]})")
    return found

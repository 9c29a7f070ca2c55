"""Several servers in one URL: a killed one costs its callers one retry."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from typing import Any

import pytest

from kagzi import Kagzi, Unavailable
from kagzi.rpc.failover import FailoverChannel
from kagzi.testing.postgres import free_port
from tests.cli.conftest import Shell, read_until
from tests.cli.test_server import ended


class Failures:
    """How often each request of this process failed, by the request itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[Any] = []  # kept, so that ids are not given twice
        self.of = Counter[int]()
        real = FailoverChannel.call

        async def call(channel: FailoverChannel, service: str, rpc: str, request: Any, *rest: Any) -> Any:
            try:
                return await real(channel, service, rpc, request, *rest)
            except Unavailable:
                self.requests.append(request)
                self.of[id(request)] += 1
                raise

        monkeypatch.setattr(FailoverChannel, "call", call)


@pytest.mark.postgres
async def test_servers_are_killed_under_the_feet_of_a_worker(
    shell: Shell, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = [free_port(), free_port()]
    servers = [server_at(shell, port, postgres_database) for port in ports]
    failures = Failures(monkeypatch)
    app = Kagzi(f"grpc://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    calls: list[int] = []
    halfway = asyncio.Event()

    @app.step
    async def note(number: int) -> int:
        calls.append(number)
        await asyncio.sleep(0.02)
        if number % 10 == 3:
            await halfway.wait()
        return number

    @app.workflow
    async def chain(number: int) -> int:
        return sum([await note(number * 10 + step) for step in range(6)])

    async with app, app.worker(concurrency=20):
        handles = [await chain.start(number) for number in range(60)]
        results = asyncio.gather(*[handle.result(timeout=60) for handle in handles])
        # First the one, then the other after the first has come back: whichever was used, it died.
        await until(lambda: len(calls) >= 30)
        kill(servers[0])
        await until(lambda: len(calls) >= 20 * 4)
        await asyncio.to_thread(server_at, shell, ports[0], postgres_database)
        halfway.set()
        await until(lambda: len(calls) >= 150)
        kill(servers[1])
        late = await chain.start(99)
        assert await results == [60 * number + 15 for number in range(60)]
        assert await late.result(timeout=60) == 60 * 99 + 15
    assert len(calls) == len(set(calls)) == 61 * 6  # nothing was executed twice: every acknowledgement was repeated
    assert failures.of
    assert max(failures.of.values()) == 1


async def test_a_server_that_is_not_there_is_passed_over(shell: Shell) -> None:
    port, nobody = free_port(), free_port()
    server = server_at(shell, port, "memory://")
    url = f"grpc://127.0.0.1:{nobody},127.0.0.1:{port}"
    for _ in range(4):  # the order is by chance
        listed = await asyncio.to_thread(shell, "runs", "list", "--json", "--url", url)
        assert listed.json["runs"] == [], listed
    server.terminate()
    assert ended(server)[0] == 0


def server_at(shell: Shell, port: int, url: str) -> subprocess.Popen[str]:
    server = shell.spawn("server", "--port", str(port), "--url", url)
    read_until(server, "is ready")
    return server


def kill(server: subprocess.Popen[str]) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.wait()


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)

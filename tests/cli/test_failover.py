"""Several servers in one URL: a killed one costs its callers one retry, and one that is told to stop nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import pytest

from kagzi import Handle, Kagzi, RunStatus, Unavailable, Workflow
from kagzi.rpc.client.failover import FailoverChannel
from kagzi.testing.postgres import free_port
from tests.cli.conftest import Shell, read_until
from tests.cli.test_server import ended
from tests.warm import Process


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


@pytest.mark.postgres
async def test_servers_are_restarted_one_after_the_other_under_load(shell: Shell, postgres_database: str) -> None:
    ports = [free_port() for _ in range(3)]
    servers = [server_at(shell, port, postgres_database) for port in ports]
    url = "grpc://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    calls: list[int] = []
    runs: list[Handle[int]] = []
    enough = asyncio.Event()

    def make() -> tuple[Kagzi, Workflow[..., int]]:
        app = Kagzi(url)

        @app.step
        async def note(number: int) -> int:
            await asyncio.sleep(0.01)
            calls.append(number)
            return number

        @app.workflow
        async def chain(number: int) -> int:
            return sum([await note(number * 10 + step) for step in range(4)])

        return app, chain

    async def start_more() -> None:
        while not enough.is_set():
            runs.append(await chain.start(len(runs)))
            await asyncio.sleep(0.01)

    async def goes_on() -> None:
        """Until what is started from now on has been executed."""
        begun = len(runs)
        await until(lambda: len(runs) >= begun + 50 and len(calls) >= (begun + 20) * 4)

    (client, chain), (one, _), (other, _) = make(), make(), make()
    async with client, one, other, one.worker(concurrency=10), other.worker(concurrency=10):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(start_more())
            await goes_on()
            for position, port in enumerate(ports):
                servers[position].terminate()
                code, err = await asyncio.to_thread(ended, servers[position])
                assert code == 0, err
                await goes_on()
                servers[position] = await asyncio.to_thread(server_at, shell, port, postgres_database)
                await goes_on()
            enough.set()
        results = await asyncio.gather(*[run.result(timeout=60) for run in runs])
        records, token = [], None
        while not records or token:
            page = await client.runs(page_size=100, page_token=token)
            records += page.items
            token = page.next
    assert results == [40 * number + 6 for number in range(len(runs))]
    assert sorted(calls) == [number * 10 + step for number in range(len(runs)) for step in range(4)]
    # No start was stored twice, and nothing was lost with a server: nobody had to wait until a lease ran out.
    assert sorted(record.run_id for record in records) == sorted(run.id for run in runs)
    assert {(record.status, record.crashes, record.attempts) for record in records} == {(RunStatus.COMPLETED, 0, 0)}


async def test_a_server_that_is_not_there_is_passed_over(shell: Shell) -> None:
    port, nobody = free_port(), free_port()
    server = server_at(shell, port, "memory://")
    url = f"grpc://127.0.0.1:{nobody},127.0.0.1:{port}"
    for _ in range(4):  # the order is by chance
        listed = await asyncio.to_thread(shell, "runs", "list", "--json", "--url", url)
        assert listed.json["runs"] == [], listed
    server.terminate()
    assert ended(server)[0] == 0


def server_at(shell: Shell, port: int, url: str) -> Process:
    server = shell.spawn("server", "--port", str(port), "--url", url)
    read_until(server, "is ready")
    return server


def kill(server: Process) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.wait()


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)

"""Transactions of others that hold rows of runs, while a server serves three namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kagzi import Handle, Kagzi, Unavailable
from tests.faults.processes import LEASE, ServerProcess
from tests.warm import Warm

pytestmark = pytest.mark.postgres

NAMESPACES = ("shop", "mail", "bank")
ENOUGH = 30  # seconds, for what takes milliseconds on a machine that does nothing else


class Tenant:
    """An app of one namespace behind the server, with a worker."""

    def __init__(self, url: str, namespace: str) -> None:
        self.app = app = Kagzi(url, namespace=namespace)

        @app.step
        async def add(number: int) -> int:
            return number + 1

        @app.step
        async def linger(seconds: float) -> None:
            await asyncio.sleep(seconds)

        @app.workflow
        async def short(number: int) -> int:
            return await add(await add(number))

        @app.workflow
        async def long(seconds: float) -> str:
            await linger(seconds)
            return "done"

        self.short: Any = short
        self.long: Any = long

    async def work(self, count: int) -> None:
        """Runs of this namespace begin and end."""
        for number in range(count):
            started = await asyncio.wait_for(self.short.start(number), ENOUGH)
            assert await started.result(timeout=ENOUGH) == number + 2


class Holder:
    """A transaction of another program."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.connection: asyncpg.Connection
        self.let_go: Any

    async def __aenter__(self) -> Holder:
        self.connection = await asyncpg.connect(self._url, server_settings={"application_name": "shop-web"})
        transaction = self.connection.transaction()
        await transaction.start()
        self.let_go = transaction.commit
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()


@pytest.fixture
async def server(tmp_path: Path, postgres_database: str, warm: Warm) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(tmp_path, postgres_database, lease=LEASE, warm=warm)
    yield server
    server.close()
    print(server.log)


@pytest.mark.parametrize("held", ["a start that is not committed", "a run that is driven"])
async def test_a_held_row_stops_nobody_else(postgres_database: str, server: ServerProcess, held: str) -> None:
    url = await server.url()
    tenants = [Tenant(url, namespace) for namespace in NAMESPACES]
    caller = Tenant(url, "shop")
    async with AsyncExitStack() as stack:
        for tenant in tenants:
            await stack.enter_async_context(tenant.app)
            await stack.enter_async_context(tenant.app.worker())
        await stack.enter_async_context(caller.app)
        await asyncio.gather(*(tenant.work(2) for tenant in tenants))
        waiting: list[asyncio.Task[Any]] = []
        async with Holder(postgres_database) as holder:
            if held == "a run that is driven":
                driven = await tenants[0].long.start(0.2)
                await holder.connection.execute(
                    "SELECT FROM kagzi.workflow_runs WHERE run_id = $1 FOR UPDATE", driven.id
                )
            else:
                direct = Tenant(postgres_database, "shop")
                async with direct.app:
                    await direct.short.options(id="held", connection=holder.connection).start(1)
            # Longer than a lease: the workers of all namespaces keep theirs.
            long: list[Handle[str]] = [await tenant.long.start(LEASE * 1.5) for tenant in tenants]
            for _ in range(5):
                if held == "a run that is driven":
                    waiting.append(asyncio.create_task(driven.signal("more", 1)))
                else:
                    waiting.append(asyncio.create_task(caller.short.options(id="held").start(1)))
                await asyncio.gather(*(tenant.work(4) for tenant in tenants))
            assert [await run.result(timeout=ENOUGH) for run in long] == ["done"] * len(tenants)
            for run in long:
                record = await run.get()
                assert (record.executions, record.crashes) == (1, 0)
            assert not any(task.done() and task.exception() is None for task in waiting)
            assert (
                f"locked by PostgreSQL process {holder.connection.get_server_pid()} (application shop-web" in server.log
            )
            await holder.let_go()
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert answer is None or isinstance(answer, Handle | Unavailable), answer
        if held == "a run that is driven":
            assert await driven.result(timeout=ENOUGH) == "done"
            assert (await driven.get()).crashes <= 1  # its own lease could not be renewed
        else:
            assert await (await caller.short.options(id="held").start(1)).result(timeout=ENOUGH) == 3

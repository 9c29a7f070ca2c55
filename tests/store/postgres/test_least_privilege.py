"""A server whose database role only reads and writes rows, made by what docs/security.md tells people to do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from kagzi import Kagzi
from kagzi._proto.v1.common_pb2 import Payload
from kagzi.access import Role
from kagzi.api.keys import AuditFilter
from kagzi.core.instant import SECOND
from kagzi.errors import InvalidRequest
from kagzi.store.postgres.store import PostgresStore
from tests.rpc.guarded import guarded

pytestmark = pytest.mark.postgres


@pytest.fixture
def postgres_database(fresh_database: str) -> str:
    return fresh_database


PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"


class Roles:
    def __init__(self, url: str) -> None:
        self.url = url
        self.database = urlsplit(url).path.strip("/")
        suffix = uuid4().hex
        self.names = {"kagzi_migrate": f"kagzi_migrate_{suffix}", "kagzi_app": f"kagzi_app_{suffix}"}
        self.before, self.after = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)

    def of(self, role: str) -> str:
        parts = urlsplit(self.url)
        return parts._replace(netloc=f"{self.names[role]}@{parts.netloc.rpartition('@')[2]}").geturl()

    async def execute(self, url: str, script: str) -> None:
        """With names of the test's own: roles are shared by all databases of a server."""
        for name, own in self.names.items():
            script = re.sub(rf"\b{name}\b", own, script)
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(re.sub(r"\bshop\b", self.database, script))
        finally:
            await connection.close()


@pytest.fixture
async def roles(postgres_database: str) -> AsyncIterator[Roles]:
    made = Roles(postgres_database)
    await made.execute(made.url, made.before)
    try:
        yield made
    finally:
        for name in made.names:
            await made.execute(made.url, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name};")


@pytest.fixture
async def app_url(roles: Roles) -> str:
    store = PostgresStore(roles.of("kagzi_migrate"))
    await store.open()
    await store.close()
    await roles.execute(roles.of("kagzi_migrate"), roles.after)
    return roles.of("kagzi_app")


async def test_who_may_not_migrate_is_told_who_does(roles: Roles) -> None:
    store = PostgresStore(roles.of("kagzi_app"))
    with pytest.raises(InvalidRequest, match="run `kagzi migrate` with one that may"):
        await store.open()


async def test_a_server_serves_everything(app_url: str, roles: Roles) -> None:
    async with guarded(app_url) as server:
        admin = await server.key()
        async with server.client(admin) as client:
            await client.call("CreateNamespace", namespace="shop")
            await client.call("UpdateNamespace", namespace="shop", display_name="Shop")
            await client.call("DisableNamespace", namespace="shop")
            await client.call("EnableNamespace", namespace="shop")
        key = await server.key(Role.ADMIN, "shop")
        app = Kagzi(f"grpc://{server.server.target}", namespace="shop", key=key)

        @app.step
        async def double(number: int) -> int:
            return 2 * number

        @app.workflow
        async def chain(number: int) -> int:
            return await double(await double(number))

        async with app, app.worker():
            assert await (await chain.start(10)).result(timeout=20) == 40
            run = await chain.options(delay="1h").start(1)
            await run.cancel()
        async with server.client(key) as client:
            worker_id = (await client.call("Register", task_queue="q", workflow_types=["w"])).worker_id
            started: Any = await client.call("StartWorkflow", workflow_type="w", task_queue="q")
            handle = (await client.call("PollTask", worker_id=worker_id, task_queue="q")).run_id
            step = await client.call("BeginStep", run_id=handle, step_name="s", input=Payload(data=b"1"))
            await client.call("CompleteStep", run_id=handle, step_id=step.step_id, output=Payload(data=b"1"))
            await client.call("Heartbeat", worker_id=worker_id)
            await client.call("CompleteWorkflow", run_id=handle, output=Payload(data=b"1"))
            await client.call("RetryWorkflow", run_id=started.run_id)
            await client.call("DrainWorker", worker_id=worker_id)
            await client.call("Deregister", worker_id=worker_id)
            for rpc in (
                "ListWorkflows",
                "ListWorkers",
                "GetStats",
                "GetQueueDepth",
                "ListWorkflowTypes",
                "HealthCheck",
            ):
                await client.call(rpc)
        rotated = await server.engine.keys.rotate(key.split("_")[1], overlap=SECOND, actor="test")
        await server.engine.keys.revoke(rotated.key.key_id, actor="test")
        store = server.engine.store
        for duty in (
            store.duties.time_out_runs,
            store.duties.end_cancelled_runs,
            store.workers.prune,
            store.audit.prune,
        ):
            await duty(10)
        await store.duties.prune_runs(10, None)
        await store.workers.expire(10, SECOND)
        await server.engine.audit.close()

        # What it has added to the audit log it cannot read or change.
        with pytest.raises(InvalidRequest, match="may not"):
            await server.engine.audit.list(AuditFilter())
    owner = PostgresStore(roles.of("kagzi_migrate"))
    await owner.open()
    actions = {entry.action.rpartition("/")[2] for entry in await owner.audit.page(AuditFilter(), None, 100)}
    await owner.close()
    assert {"CreateNamespace", "DisableNamespace", "CancelWorkflow", "RetryWorkflow", "keys revoke"} <= actions


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE kagzi.mine (number integer)",
        "CREATE SCHEMA mine",
        "DROP TABLE kagzi.api_keys",
        "ALTER TABLE kagzi.workflow_runs DISABLE TRIGGER ALL",
        "TRUNCATE kagzi.audit_log",
        "DELETE FROM kagzi.audit_log",
        "DELETE FROM kagzi.secrets",
        "UPDATE kagzi.secrets SET value = 'known'",
        "UPDATE kagzi.audit_log SET actor = 'me'",
        "SELECT * FROM kagzi.audit_log",
        "DELETE FROM kagzi.migrations",
        "CREATE FUNCTION kagzi.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    ],
)
async def test_what_the_role_may_not_do(app_url: str, statement: str) -> None:
    connection = await asyncpg.connect(app_url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_entries_of_the_audit_log_do_not_change_for_anybody(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    await store.open()
    async with guarded(postgres_database) as server:
        await server.key()
    connection = await asyncpg.connect(postgres_database)
    try:
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await connection.execute("UPDATE kagzi.audit_log SET actor = 'me'")
    finally:
        await connection.close()
        await store.close()

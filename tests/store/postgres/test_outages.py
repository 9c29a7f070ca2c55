from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from kagzi.api.operations import CompleteRun, Started
from kagzi.core.health import HealthStatus
from kagzi.engine.health import check
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, SchemaMismatch, Unavailable
from kagzi.store.postgres import store as store_module
from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import NAMESPACE
from kagzi.testing.postgres import PostgresServer

pytestmark = pytest.mark.postgres

FULL = """
CREATE FUNCTION pg_temp_full() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON kagzi.workflow_runs FOR EACH ROW EXECUTE FUNCTION pg_temp_full();
"""
ROOM = "DROP TRIGGER full_disk ON kagzi.workflow_runs; DROP FUNCTION pg_temp_full"
TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'kagzi' AND pid <> pg_backend_pid()
"""


async def test_connections_that_were_cut_are_replaced_unnoticed(bench: Bench, connection: asyncpg.Connection) -> None:
    claim = await bench.started_claim()
    for number in range(3):
        assert await connection.fetchval(TERMINATE) > 0
        await bench.done(claim, bench.completed(f"step-{number}", number))
        assert await bench.claims() == ()
        assert await bench.start(task_queue="elsewhere")
        await bench.store.overview.horizon([])
    await bench.done(claim, CompleteRun(output=b"1"))
    assert len(await bench.steps(claim.run_id)) == 3


async def test_connections_cut_under_load_lose_nothing_that_was_acknowledged(
    bench: Bench, connection: asyncpg.Connection
) -> None:
    acknowledged: list[str] = []
    stop = False

    async def start_runs() -> None:
        while not stop:
            start = bench.start_run()
            for _ in range(20):
                try:
                    (answer,) = await bench.apply([start])
                except Unavailable:
                    continue
                assert isinstance(answer, Started)
                assert not answer.already_exists
                acknowledged.append(answer.run_id)
                break

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(start_runs())
        for _ in range(10):
            await asyncio.sleep(0.03)
            await connection.fetchval(TERMINATE)
        stop = True

    rows = await connection.fetch("SELECT run_id FROM kagzi.workflow_runs")
    assert sorted(str(row["run_id"]) for row in rows) == sorted(acknowledged)


async def test_health_knows_of_a_full_disk_that_writes_have_met(
    bench: Bench, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.start()
    assert (await check(bench.store, EngineSettings())).component("disk") is None
    await connection.execute(FULL)
    try:
        with pytest.raises(Unavailable):
            await bench.start()
        found = await check(bench.store, EngineSettings())
        disk = found.component("disk")
        assert disk is not None
        assert "no space left" in disk.message
        assert found.status is HealthStatus.UNHEALTHY
    finally:
        await connection.execute(ROOM)
    await bench.start()
    monkeypatch.setattr(store_module, "_FULL_SECONDS", 0.0)
    assert (await check(bench.store, EngineSettings())).component("disk") is None


@pytest.mark.faults
async def test_a_server_that_is_killed_and_comes_back(postgres_server: PostgresServer) -> None:
    store = PostgresStore(postgres_server.url)
    await store.open()
    heard = 0

    def on_unknown() -> None:
        nonlocal heard
        heard += 1

    listening = asyncio.create_task(store.wakeups.listen(lambda _: None, lambda _, __: None, on_unknown))
    await store.namespaces.ensure("before")
    async with asyncio.timeout(60):
        while heard < 1:  # it listens
            await asyncio.sleep(0.01)
    postgres_server.stop("immediate")
    with pytest.raises(Unavailable, match="PostgreSQL"):
        await store.namespaces.ensure("during")
    with pytest.raises(Unavailable):
        await PostgresStore(postgres_server.url).open()
    postgres_server.start()

    async with asyncio.timeout(60):
        await store.namespaces.ensure("after")
        while heard < 2:
            await asyncio.sleep(0.05)

    await store.close()
    await asyncio.wait_for(listening, 30)


async def test_an_unreachable_server_is_named_without_its_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable) as caught:
            await PostgresStore(f"postgresql://kim:hunter2@127.0.0.1:{port}/shop?sslmode=disable").open()
    text = str(caught.value)
    assert f"127.0.0.1:{port}/shop as kim" in text
    assert "Check that the server is running" in text
    assert "hunter2" not in text
    assert caught.value.__cause__ is None


async def test_a_database_that_does_not_exist_is_our_callers_mistake(postgres_database: str) -> None:
    with pytest.raises(InvalidRequest, match="Check user, password and database"):
        await PostgresStore(postgres_database + "_typo").open()


@pytest.mark.parametrize("url", ["mysql://localhost/x", "postgresql://u:hunter2@[::1/x", "shop"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PostgresStore(url)
    assert "hunter2" not in str(caught.value)


async def test_a_closed_store_says_so(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    await store.open()
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.runs.get(NAMESPACE, "00000000-0000-7000-8000-000000000001")


async def test_a_sibling_lives_in_another_loop(postgres_database: str) -> None:
    store = PostgresStore(postgres_database)
    await store.open()
    sibling = store.sibling()

    async def use() -> None:
        await sibling.open()
        await sibling.namespaces.ensure("shop")
        await sibling.close()

    await asyncio.to_thread(lambda: asyncio.run(use()))
    await store.namespaces.ensure("shop")
    await store.close()


async def test_what_the_driver_says_stays_inside(bench: Bench, connection: asyncpg.Connection) -> None:
    with pytest.raises(InvalidRequest, match="cannot be stored"):
        await bench.store.runs.get_by_external_id(NAMESPACE, "nul\0")
    await connection.execute("DROP TABLE kagzi.workers CASCADE")
    with pytest.raises(SchemaMismatch, match="changed by hand"):
        await bench.store.workers.rows(NAMESPACE)
    await connection.execute("CREATE VIEW kagzi.workers AS SELECT 1 / 0 AS nothing")
    with pytest.raises(SchemaMismatch):
        await bench.store.workers.rows(NAMESPACE)


async def test_a_role_without_rights_is_told_so(postgres_database: str, connection: asyncpg.Connection) -> None:
    await PostgresStore(postgres_database).open()
    role = f"kagzi_{uuid4().hex}"
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2'; GRANT USAGE ON SCHEMA kagzi TO {role}")
    parts = urlsplit(postgres_database)
    where = parts.netloc.rpartition("@")[2]
    store = PostgresStore(parts._replace(netloc=f"{role}:hunter2@{where}").geturl())
    try:
        with pytest.raises(InvalidRequest, match="grant it the rights"):
            await store.open()
    finally:
        await store.close()
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

"""Health tells the truth, in three levels."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from kagzi import Kagzi
from kagzi.connect import connect
from kagzi.coordinator.coordinator import Coordinator
from kagzi.core.health import Health, HealthStatus, worst
from kagzi.core.instant import SECOND, Span
from kagzi.engine import health
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Locked, Unavailable
from kagzi.store.protocol.overview import DueRun, Horizon, Survey
from kagzi.store.sqlite import SqliteStore
from tests.engine.support import run

NOW = 1_000_000 * SECOND
SURVEY = Survey(
    now=NOW,
    pending=0,
    sleeping=0,
    running=0,
    oldest_due_at=None,
    workers_online=0,
    workers_draining=0,
    schema=3,
)
HORIZON = Horizon(**{field: None for field in Horizon.__struct_fields__} | {"now": NOW, "due": {}})
SETTINGS = EngineSettings()


def test_the_worst_part_decides() -> None:
    assert worst([]) is HealthStatus.HEALTHY
    assert worst([HealthStatus.DEGRADED, HealthStatus.HEALTHY]) is HealthStatus.DEGRADED
    assert worst([HealthStatus.DEGRADED, HealthStatus.UNHEALTHY]) is HealthStatus.UNHEALTHY


@pytest.mark.parametrize(
    ("schema", "status", "words"),
    [(3, "healthy", "newest"), (2, "unhealthy", "kagzi migrate"), (4, "degraded", "upgrade")],
)
def test_migrations(schema: int, status: str, words: str) -> None:
    found = health.migrations(replace(SURVEY, schema=schema), 3)
    assert found.status == status
    assert words in found.message


def test_indexes_that_are_being_built() -> None:
    found = health.migrations(replace(SURVEY, schema=3), 3, ("by_type", "by_parent"))
    assert found.status == "degraded"
    assert "indexes are being built: by_type, by_parent" in found.message


@pytest.mark.parametrize(
    ("field", "age", "status"),
    [
        ("lease", -5, "healthy"),
        ("lease", 9, "healthy"),
        ("lease", 11, "degraded"),
        ("lease", 61, "unhealthy"),
        ("deadline", 11, "degraded"),
        ("step_timeout", 12, "healthy"),  # the worker's own business for the first five seconds
        ("step_timeout", 16, "degraded"),
        ("heartbeat", 35, "healthy"),
        ("heartbeat", 41, "degraded"),
        ("heartbeat", 3600, "unhealthy"),
    ],
)
def test_the_coordinator_by_what_is_overdue(field: str, age: int, status: str) -> None:
    found = health.coordinator(replace(HORIZON, **{field: NOW - age * SECOND}), SETTINGS)
    assert found.status == status


@pytest.mark.parametrize(
    ("online", "waited", "status"),
    [(0, None, "healthy"), (0, 29, "healthy"), (0, 31, "degraded"), (0, 301, "unhealthy"), (2, 301, "degraded")],
)
def test_workers_by_what_waits_for_them(online: int, waited: int | None, status: str) -> None:
    oldest = None if waited is None else NOW - waited * SECOND
    assert health.workers(replace(SURVEY, workers_online=online, oldest_due_at=oldest)).status == status


def test_the_run_that_waits_for_a_worker_is_named() -> None:
    run = DueRun("default", "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44", "shop", "checkout", "2")
    late = replace(SURVEY, workers_online=1, oldest_due_at=NOW - 60 * SECOND, oldest_due=run)
    said = health.workers(late).message
    assert "checkout version 2 in queue shop; why says `kagzi runs show 0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44`" in said
    elsewhere = replace(late, oldest_due=DueRun("acme", *run.__struct_fields__[1:]))
    assert health.workers(elsewhere).message.endswith(" -n acme`")


@pytest.mark.parametrize(("change", "words"), [("chmod", "read-only"), ("fill", "is full")])
async def test_a_database_that_can_only_be_read_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, words: str
) -> None:
    async with Kagzi(f"sqlite:///{tmp_path}/runs.db") as app:
        assert (await app.health()).component("disk") is None
        if change == "fill":
            monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 100, 0))
        else:
            monkeypatch.setattr(os, "access", lambda *_: False)  # as root everything may be written
        found = await app.health()
    disk = found.component("disk")
    assert disk is not None
    assert (disk.status, found.status) == (HealthStatus.UNHEALTHY, HealthStatus.UNHEALTHY)
    assert words in disk.message
    assert f"{tmp_path}/runs.db" in disk.message
    assert found.can_serve  # what can be read is still answered


async def test_an_app_that_is_well() -> None:
    app = Kagzi("memory://")
    async with app:
        found = await app.health()
    assert found.status is HealthStatus.HEALTHY
    assert [component.name for component in found.components] == ["database", "migrations", "coordinator", "workers"]
    assert found.checked_at is not None


class Broken:
    error: Exception | None = None

    async def survey(self, stale: Span) -> Survey:
        if self.error is not None:
            raise self.error
        await asyncio.sleep(3600)
        raise AssertionError


async def test_what_is_wrong_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE", SECOND // 20)
    store, broken = SqliteStore(None), Broken()
    store.overview.survey = broken.survey  # type: ignore[method-assign]
    async with LocalEngine(store) as engine:
        silent = await engine.health()
        broken.error = Unavailable("gone")
        gone = await engine.health()
    for found, words in ((silent, "no answer within 50ms"), (gone, "gone")):
        assert found.status is HealthStatus.UNHEALTHY
        assert found == Health((health._component("database", HealthStatus.UNHEALTHY, words),))


async def test_a_schema_that_lacks_something_is_left_alone(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'new.db'}")
    assert isinstance(engine, LocalEngine)
    assert len(await engine.store.missing_migrations()) == engine.store.schema_version
    assert list(tmp_path.iterdir()) == []
    async with engine:
        assert await engine.store.missing_migrations() == ()


@pytest.mark.parametrize(("error", "silent"), [(Locked("by process 7"), False), (Unavailable("gone"), True)])
def test_a_lock_is_no_silence_of_the_database(monkeypatch: pytest.MonkeyPatch, error: Exception, silent: bool) -> None:
    """While the look for due work waits for a lock, the database answers all the same; an outage is another matter."""

    async def main() -> float:
        store = SqliteStore(None, inline=True)
        async with LocalEngine(store, coordinate=Coordinator) as engine:
            await asyncio.sleep(5)

            async def horizon(queues: object) -> Horizon:
                await asyncio.sleep(1)
                raise error

            monkeypatch.setattr(store.overview, "horizon", horizon)
            most = 0.0
            for _ in range(300):
                await asyncio.sleep(0.1)
                most = max(most, engine.silence())
            return most

    assert (run(main) > 2.5) is silent  # as `serve.Server.ready` has it


@pytest.mark.postgres
@pytest.mark.parametrize("everything", [True, False])
async def test_who_holds_a_lock_is_named_and_calls_can_be_sent(postgres_database: str, everything: bool) -> None:
    engine = connect(postgres_database)
    assert isinstance(engine, LocalEngine)
    async with engine:
        other = await asyncpg.connect(postgres_database, server_settings={"application_name": "ops-laptop"})
        if everything:
            await other.execute("BEGIN; LOCK TABLE kagzi.workflow_runs")
        else:
            await other.execute("BEGIN; UPDATE kagzi.namespaces SET retention_days = 1")
            waits = asyncio.create_task(_wait_for_namespaces(postgres_database))
            while (found := await engine.store.overview.blocker()) is None:
                await asyncio.sleep(0.01)
        found_health = await engine.health()
        locks = found_health.component("locks")
        assert locks is not None
        assert locks.status == ("unhealthy" if everything else "degraded")
        assert f"process {other.get_server_pid()} (application ops-laptop" in locks.message
        assert found_health.can_serve
        assert found_health.checked_at is not None
        await other.execute("ROLLBACK")
        await other.close()
        if not everything:
            await waits
            assert found is not None
            assert not found.everything
        assert await engine.store.overview.blocker() is None
        assert (await engine.health()).component("locks") is None


async def _wait_for_namespaces(url: str) -> None:
    ours = await asyncpg.connect(url, server_settings={"application_name": "kagzi"})
    await ours.execute("UPDATE kagzi.namespaces SET retention_days = 2")
    await ours.close()

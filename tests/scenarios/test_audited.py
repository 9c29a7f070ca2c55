"""What a program changes, where it has the database itself, leaves entries as what is changed through a server does."""

from __future__ import annotations

from pathlib import Path

from kagzi import Kagzi, Runs
from kagzi.api.keys import AuditFilter
from kagzi.app.audited import CHANGES
from kagzi.core.audit import AuditEntry
from kagzi.owners import user_name
from tests.http.support import engine_on


async def test_every_change_of_a_program_leaves_an_entry(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    app = Kagzi(url, namespace="team")

    @app.workflow(name="ship", version="1")
    async def ship() -> int:
        return 1

    async with app:
        async with app.worker():
            done = await ship.start()
            assert await done.result() == 1
        again = await done.rerun()
        await again.wake()
        await again.cancel()
        await again.terminate()
        job = await app.jobs.start("cancel", Runs(workflow="ship"))
        await job.cancel()
        daily = await app.schedules.create("daily", ship, cron="@daily")
        await daily.pause()
        await daily.resume()
        await daily.trigger()
        await daily.delete()
        await app.queues.pause("default", reason="later")
        await app.queues.resume("default")
        await app.set_default_version("ship", "1")
    entries = await _entries(url)
    assert {entry.actor for entry in entries} == {f"app:{user_name()}"}
    assert {entry.namespace for entry in entries} == {"team"}
    runs = {f"run {done.id}", f"run {again.id}"}
    assert [(entry.action, entry.target if entry.target not in runs else "run") for entry in entries] == [
        ("workflows repeat", "run"),
        ("workflows wake", "run"),
        ("workflows cancel", "run"),
        ("workflows terminate", "run"),
        ("jobs start", f"job {job.id}"),
        ("jobs cancel", f"job {job.id}"),
        ("schedules create", f"schedule {daily.id}"),
        ("schedules update", f"schedule {daily.id}"),
        ("schedules update", f"schedule {daily.id}"),
        ("schedules trigger", f"schedule {daily.id}"),
        ("schedules delete", f"schedule {daily.id}"),
        ("limits pause", "queue default"),
        ("limits resume", "queue default"),
        ("versions set_default", "workflow ship"),
    ]


async def _entries(url: str) -> list[AuditEntry]:
    async with engine_on(url) as engine:
        return list(reversed((await engine.audit.list(AuditFilter(), page_size=100)).items))


async def test_every_change_that_is_audited_is_one_that_an_engine_makes(tmp_path: Path) -> None:
    async with engine_on(f"sqlite:///{tmp_path / 'kagzi.db'}") as engine:
        for service, name in CHANGES:
            assert callable(getattr(getattr(engine, service), name)), (service, name)

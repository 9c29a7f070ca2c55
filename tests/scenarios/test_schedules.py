"""Schedules as people use them, at every home."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import kagzi
from kagzi import Conflict, InvalidRequest, Kagzi, NotFound, Retry, RunStatus
from tests.scenarios.conftest import Stage


class Office:
    def __init__(self) -> None:
        self.app = app = Kagzi("memory://")

        @app.workflow
        async def report(kind: str, copies: int = 1) -> dict[str, Any]:
            at = kagzi.scheduled_for()
            return {"kind": kind, "copies": copies, "for": None if at is None else at.isoformat()}

        @app.workflow
        async def endless() -> None:
            await asyncio.sleep(3600)

        self.report = report
        self.endless = endless


def test_a_schedule_starts_runs_that_know_their_instant(stage: Stage) -> None:
    office = Office()
    app = office.app

    async def main() -> None:
        nightly = await app.schedules.create("nightly", office.report, "logs", copies=2, cron="every 1s")
        record = await nightly.info()
        assert (record.name, record.cron, record.tz, record.overlap, record.catchup) == (
            "nightly",
            "every 1s",
            "UTC",
            "allow",
            100,
        )
        async with asyncio.timeout(stage.lateness + 5):
            while (await nightly.info()).successful_runs < 2:
                await asyncio.sleep(0.2)
        await nightly.pause("enough")
        page = await nightly.runs(page_size=100)
        runs = [run for run in page.items if run.status is RunStatus.COMPLETED]
        instants = sorted(run.output["for"] for run in runs)
        assert len(set(instants)) == len(instants)
        assert all(datetime.fromisoformat(at).microsecond == 0 for at in instants)
        assert runs[0].output | {"for": ""} == {"kind": "logs", "copies": 2, "for": ""}
        assert runs[0].id == f"{nightly.id}:{runs[0].output['for'].replace('+00:00', 'Z')}"
        last = await nightly.info()
        assert (last.enabled, last.next_fire_at, last.pause_reason) == (False, None, "enough")
        assert last.failed_runs == 0
        assert last.total_runs == len(page.items)

    stage.run(app, main)


def test_change_trigger_backfill_and_delete(stage: Stage) -> None:
    office = Office()
    app = office.app

    async def main() -> None:
        workflow = office.report.options(priority=3, timeout="1h", retry=Retry(attempts=2))
        yearly = await app.schedules.create("yearly", workflow, "tax", cron="@yearly", tz="Asia/Kolkata")
        assert (await app.schedules.get("yearly")).id == yearly.id
        assert [record.name for record in (await app.schedules.list()).items] == ["yearly"]

        run = await yearly.trigger()
        first = await run.result(timeout=stage.lateness)
        triggered = datetime.fromisoformat(first["for"])
        assert (triggered, triggered.utcoffset()) == ((await run.get()).created_at, timedelta(hours=5, minutes=30))
        again = await run.rerun()
        assert await again.result(timeout=stage.lateness) == first
        changed = await yearly.update(cron="0 0 * * *", overlap="skip", catchup=0, jitter="30s")
        assert (changed.cron, changed.tz, changed.overlap, changed.catchup) == ("0 0 * * *", "Asia/Kolkata", "skip", 0)
        assert (changed.jitter, changed.priority, changed.input) == ("30s", 3, ["tax"])
        other = await yearly.update(workflow=office.report, args=("year",), jitter=0)
        assert (other.input, other.jitter) == (["year"], "0ms")

        now = changed.updated_at
        begin = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=10)
        assert await yearly.backfill(begin, begin + timedelta(days=3)) == 3
        assert await yearly.backfill(begin, begin + timedelta(days=4)) == 1
        async with asyncio.timeout(stage.lateness + 5):
            while (await yearly.info()).successful_runs < 5:
                await asyncio.sleep(0.05)
        firings = [run.output["for"] for run in (await yearly.runs()).items if run.output["for"]]
        assert sorted(at[11:] for at in firings if at != first["for"]) == ["00:00:00+05:30"] * 4
        assert (await yearly.info()).total_runs == 5

        assert not (await yearly.pause()).enabled
        assert (await (await yearly.trigger()).result(timeout=stage.lateness))["kind"] == "year"
        assert (await yearly.resume()).enabled
        await yearly.delete()
        with pytest.raises(NotFound):
            await yearly.info()
        assert len((await yearly.runs()).items) == 6

    stage.run(app, main)


def test_what_was_skipped_is_on_record(stage: Stage) -> None:
    office = Office()
    app = office.app

    async def main() -> None:
        busy = await app.schedules.create("busy", office.endless, cron="every 1s", overlap="skip")
        async with asyncio.timeout(stage.lateness + 5):
            while not (await busy.info()).skipped_runs:
                await asyncio.sleep(0.2)
        assert (await busy.skips())[0].reason == "overlap"
        assert (await busy.info()).total_runs == 1
        await busy.delete()
        (run,) = (await busy.runs()).items
        await app.handle(run.run_id).terminate()

    stage.run(app, main)


def test_wrong_requests_say_what_is_wrong_and_make_nothing(stage: Stage) -> None:
    office = Office()
    app = office.app

    async def main() -> None:
        create = app.schedules.create
        with pytest.raises(InvalidRequest, match="cron: Bad minute '61' in '61 \\* \\* \\* \\*'"):
            await create("a", office.report, "x", cron="61 * * * *")
        with pytest.raises(InvalidRequest, match="did you mean 'Europe/Berlin'"):
            await create("a", office.report, "x", cron="@daily", tz="Europe/Berlim")
        with pytest.raises(TypeError, match="missing a required argument: 'kind'"):  # as where a run is started
            await create("a", office.report, cron="@daily")
        with pytest.raises(InvalidRequest, match="catchup must be a whole number from 0 to 10,000"):
            await create("a", office.report, "x", cron="@daily", catchup=10_001)
        with pytest.raises(InvalidRequest, match="overlap must be one of allow, skip, cancel_previous, buffer"):
            await create("a", office.report, "x", cron="@daily", overlap="never")
        with pytest.raises(InvalidRequest, match="jitter must be at most 24 hours"):
            await create("a", office.report, "x", cron="@daily", jitter="2d")
        with pytest.raises(InvalidRequest, match="id is for one run"):
            await create("a", office.report.options(id="x"), "x", cron="@daily")
        plain = office.report.options
        for workflow, complaint in (
            (plain(key="x"), "key is for children"),
            (plain(on_parent_end="abandon"), "on_parent_end is for children"),
            (plain(on_conflict="fail"), "on_conflict is for a start with an id"),
        ):
            with pytest.raises(InvalidRequest, match=complaint):
                await create("a", workflow, "x", cron="@daily")
        with pytest.raises(InvalidRequest, match="a schedule starts a workflow"):
            await create("a", "report", "x", cron="@daily")  # type: ignore[arg-type]
        assert (await app.schedules.list()).items == ()

        made = await create("a", office.report, "x", cron="@daily")
        with pytest.raises(Conflict, match="there is a schedule named 'a' already"):
            await create("a", office.report, "x", cron="@daily")
        with pytest.raises(InvalidRequest, match="cron: Bad hour '25'"):
            await made.update(cron="0 25 * * *")
        with pytest.raises(InvalidRequest, match="use backfill or trigger"):
            await made.update(next_fire_at=datetime(2020, 1, 1, tzinfo=UTC))
        with pytest.raises(InvalidRequest, match="more than 1,000 firings"):
            await made.backfill(datetime(2020, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC))
        with pytest.raises(InvalidRequest, match="give workflow= along with args="):
            await made.update(args=("y",))
        with pytest.raises(NotFound, match="there is no schedule b"):
            await app.schedules.get("b")
        assert (await made.info()).cron == "@daily"

    stage.run(app, main)


def test_scheduled_for_is_for_workflows() -> None:
    assert kagzi.scheduled_for() is None

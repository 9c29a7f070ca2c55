"""Schedules that stand in code, at every home."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

import kagzi
from kagzi import Cron, FailedRun, InvalidRequest, Kagzi, RunStatus
from kagzi.sdk.worker import registering

FAILED: list[str] = []


def app_of(home: str, cron: Cron, *more: Cron) -> Kagzi:
    app = Kagzi(home)

    @app.workflow
    async def notify(failed: FailedRun) -> None:
        FAILED.append(failed.workflow)

    @app.workflow(schedule=[cron, *more], on_failure=notify)
    async def report(kind: str = "daily") -> str:
        if kind == "broken":
            raise kagzi.NonRetryable("no paper")
        return kind

    return app


async def test_code_declares_changes_and_is_told_of_what_a_person_has_changed(
    home: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registering, "_SCHEDULES_SECONDS", 0.1)
    first = app_of(home, Cron("0 9 * * MON-FRI", tz="Asia/Kolkata", catchup=3, overlap="skip", jitter="30s"))
    second = app_of(home, Cron("0 8 * * *"))
    async with first, second:
        async with first.worker():
            declared = await first.schedules.get("report")
            record = await declared.info()
            assert (record.workflow, record.cron, record.tz, record.catchup, record.overlap, record.jitter) == (
                "report",
                "0 9 * * MON-FRI",
                "Asia/Kolkata",
                3,
                "skip",
                "30s",
            )
            assert (record.declared, record.changed_by_hand, record.abandoned) == (True, False, False)
            assert record.on_failure == "notify"
            async with second.worker():
                taken_over = await declared.info()
                assert (taken_over.id, taken_over.cron, taken_over.overlap) == (record.id, "0 8 * * *", "allow")
                await asyncio.sleep(0.5)  # the first one looks, and leaves it alone
                assert (await declared.info()).cron == "0 8 * * *"
            # The worker that ruled is gone.
            await until(lambda: fires(declared, "0 9 * * MON-FRI"))
            await declared.pause("holidays")
            assert not (await declared.info()).changed_by_hand  # pausing is nobody's declaration
            changed = await declared.update(cron="0 10 * * *")
            assert changed.changed_by_hand
        assert (await declared.info()).abandoned
        with caplog.at_level(logging.WARNING, "kagzi.worker"):
            async with second.worker():
                kept = await declared.info()
                assert (kept.cron, kept.enabled, kept.abandoned) == ("0 10 * * *", False, True)
                assert "was changed by a person" in caplog.text
                await declared.reset()
                await until(lambda: fires(declared, "0 8 * * *"))
                assert not (await declared.info()).enabled


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await look():
            await asyncio.sleep(0.05)


async def fires(schedule: kagzi.ScheduleHandle, cron: str) -> bool:
    return (await schedule.info()).cron == cron


async def test_runs_of_a_declared_schedule_know_it_and_are_handled_when_they_fail(home: str) -> None:
    FAILED.clear()
    app = app_of(home, Cron("every 1s", name="often"), Cron("@yearly", name="broken", args=["broken"]))
    async with app, app.worker():
        often, broken = await app.schedules.get("often"), await app.schedules.get("broken")
        await until(lambda: _ran(often))
        await often.delete()
        page = await often.runs()
        run = page.items[-1]
        assert (run.schedule_id, run.workflow, run.status) == (often.id, "report", RunStatus.COMPLETED)
        assert run.scheduled_for is not None
        assert run.scheduled_for.microsecond == 0
        triggered = await broken.trigger()
        with pytest.raises(kagzi.WorkflowFailed):
            await triggered.result(timeout=60)
        about = await triggered.get()
        assert (about.schedule_id, about.scheduled_for) == (broken.id, None)
        async with asyncio.timeout(60):
            while FAILED != ["report"]:
                await asyncio.sleep(0.05)


async def _ran(schedule: kagzi.ScheduleHandle) -> bool:
    return (await schedule.info()).successful_runs > 0


async def test_a_schedule_that_a_person_has_made_is_not_taken_over(home: str, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(home, Cron("0 9 * * *"))
    async with app:
        report = app.find_workflow("report", "1")
        assert report is not None
        made = await app.schedules.create("report", report, cron="0 1 * * *")
        with caplog.at_level(logging.WARNING, "kagzi.worker"):
            async with app.worker():
                assert ((await made.info()).cron, (await made.info()).declared) == ("0 1 * * *", False)
        assert "was made by a person" in caplog.text


def test_declarations_that_cannot_be() -> None:
    app = Kagzi("memory://")
    for wrong, told in (
        (lambda: Cron("61 * * * *"), "cron: Bad minute"),
        (lambda: Cron("0 9 * * *", tz="Mars/Phobos"), "Mars/Phobos"),
        (lambda: Cron("every 0s"), "every"),
        (lambda: Cron("@daily", catchup=-1), "catchup"),
        (lambda: Cron("@daily", overlap="maybe"), "overlap"),
        (lambda: Cron("@daily", jitter="2d"), "jitter"),
        (lambda: Cron("@daily", args="logs"), "args"),
        (lambda: app.workflow(schedule="0 9 * * *"), "schedule must be a Cron"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            wrong()

    with pytest.raises(InvalidRequest, match=r"missing a required argument: 'kind'.*args=\(\.\.\.\)"):

        @app.workflow(schedule=Cron("@daily"))
        async def needs(kind: str) -> None: ...

    @app.workflow(schedule=Cron("@daily"))
    async def nightly(ctx: kagzi.Context) -> None: ...

    with pytest.raises(InvalidRequest, match="there is a schedule 'nightly' already"):

        @app.workflow(schedule=Cron("@daily", name="nightly"))
        async def other() -> None: ...

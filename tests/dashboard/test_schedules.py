"""The pages of schedules, and what a run shows of its schedule and of its children."""

from __future__ import annotations

import asyncio

from kagzi import Cron, Kagzi, RunStatus
from kagzi.core.key import Role
from kagzi.engine.local import LocalEngine
from tests.dashboard.support import Browser, dashboard, new_key
from tests.dashboard.test_pages import HOSTILE, until


def make_app(url: str) -> Kagzi:
    app = Kagzi(url)

    @app.workflow(name="page")
    async def page(number: int) -> int:
        return number

    @app.workflow(name="report", schedule=Cron("0 9 * * MON-FRI", tz="Asia/Kolkata", overlap="skip", jitter="30s"))
    async def report() -> int:
        return await page.run(1)

    return app


async def test_a_schedule_is_shown_paused_resumed_and_triggered(
    browser: Browser, engine: LocalEngine, url: str
) -> None:
    app = make_app(url)
    async with app, app.worker():
        schedule = await app.schedules.get("report")
        listed = await browser.open("/schedules")
        assert "0 9 * * MON-FRI" in listed.text
        assert "Asia/Kolkata" in listed.text
        shown = await browser.open(f"/schedules/{schedule.id}")
        assert shown.text.count("09:00:00 IST") == 5
        assert "03:30:00" in shown.text  # the same in UTC
        assert "It has not fired yet." in shown.text
        asked = await browser.open(f"/schedules/{schedule.id}/pause")
        assert "what falls into the pause is not made up for" in asked.text
        paused = await browser.send(asked.form(f"/schedules/{schedule.id}/pause"), reason=HOSTILE)
        assert "The schedule is paused" in paused.text
        assert HOSTILE in paused.text  # as text: the page has no such element
        assert "None while it is paused." in paused.text
        asked = await browser.open(f"/schedules/{schedule.id}/trigger")
        run = await browser.send(asked.form(f"/schedules/{schedule.id}/trigger"))
        assert "triggered" in run.text
        async with asyncio.timeout(60):
            while not (runs := (await schedule.runs()).items) or runs[0].status is not RunStatus.COMPLETED:
                await asyncio.sleep(0.05)
        asked = await browser.open(f"/schedules/{schedule.id}/resume")
        resumed = await browser.send(asked.form(f"/schedules/{schedule.id}/resume"))
        assert "fires again" in resumed.text
        assert "triggered" in resumed.text
        await until(engine, runs[0].run_id, RunStatus.COMPLETED)
        parent = await browser.open(f"/runs/{runs[0].run_id}")
        (child,) = (await app.runs(parent=runs[0].run_id)).items
        assert child.run_id[-12:] in parent.text
        assert schedule.id[-12:] in parent.text
    gone = await browser.open(f"/schedules/{schedule.id}")
    assert "no live worker does" in gone.text
    await browser.open("/schedules/nothing", code=404)


async def test_an_empty_page_teaches_and_a_viewer_sees_no_buttons(engine: LocalEngine, url: str) -> None:
    async with dashboard(engine) as port, Browser(port.url) as browser:
        assert "kagzi schedules create nightly" in (await browser.open("/schedules")).text
    app = make_app(url)
    async with app, app.worker():
        schedule = await app.schedules.get("report")
    async with dashboard(engine) as port, Browser(port.url) as browser:
        await browser.log_in(await new_key(engine, port, Role.VIEWER, "default"))
        shown = await browser.open(f"/schedules/{schedule.id}")
        for verb in ("Pause", "Resume", "Trigger now"):
            assert verb not in shown.text

"""What people do with the dashboard, in a real browser. The fixture sees to it that its console stays silent."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from tests.browser.axe import find_axe, violations
from tests.browser.conftest import Site
from tests.browser.office import start

_STREAM = re.compile(r"/live(\?|$)")
# How much wider the page is than the screen, or a table than its place.
_WIDER = """Math.max(document.documentElement.scrollWidth - innerWidth,
  ...[...document.querySelectorAll(".wide")].map((each) => each.scrollWidth - each.clientWidth))"""
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def until(site: Site, run_id: str, status: RunStatus) -> None:
    async with asyncio.timeout(60):
        while (await site.engine.workflows.get("default", run_id)).status is not status:
            await asyncio.sleep(0.02)


async def test_from_nothing_to_a_run_that_completes_before_ones_eyes(site: Site) -> None:
    async with site.app, site.app.worker(), site.visitor() as page:
        await page.goto("/")
        await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
        await page.get_by_role("link", name="Runs", exact=True).click()
        await page.get_by_role("link", name="Start a run").click()
        await page.get_by_role("link", name="slow Takes its time").click()
        await page.get_by_role("button", name="Start", exact=True).click()  # the browser knows what is required
        await page.get_by_role("textbox", name="name required").fill("tea")
        await page.get_by_role("button", name="Start", exact=True).click()
        await expect(page.get_by_text("The run was started.")).to_be_visible()
        await expect(page.locator("#state")).to_contain_text("step wait_for_it has been running for")
        await page.evaluate("window.kept = true")
        await page.locator("summary").click()  # what a reader opens stays open
        site.office.go.set()
        await expect(page.locator("#state")).to_contain_text("completed")
        await expect(page.locator("#payloads")).to_contain_text("done tea")
        await expect(page.locator(".step").first).to_be_visible()
        assert await page.evaluate("window.kept")  # the page was never loaded again
        await expect(page.locator("#live")).to_be_hidden()  # nothing more will happen


async def test_a_failure_is_read_and_retried_in_a_dialog(site: Site) -> None:
    async with site.app, site.app.worker(), site.visitor() as page:
        run_id = await start(site.engine, "failing")
        await until(site, run_id, RunStatus.FAILED)
        await page.goto(f"/runs/{run_id}")
        await expect(page.locator("#state")).to_contain_text("ValueError: it is broken </code><script>")
        await expect(page.locator("#state")).to_contain_text("raise ValueError")
        site.office.broken = False
        await page.get_by_role("link", name="Retry").click()
        dialog = page.get_by_role("dialog", name="Retry run?")
        await expect(dialog).to_contain_text("steps that completed are not run again")
        await dialog.get_by_role("link", name="Leave it as it is").click()
        await expect(dialog).to_be_hidden()
        await page.get_by_role("link", name="Retry").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retry run").click()
        await expect(page.locator("#state")).to_contain_text("completed")
        await expect(page.locator("#payloads")).to_contain_text("<script>document.title")
        assert "owned" not in await page.title()


async def test_filters_are_in_the_address_and_the_way_back_leads_back(site: Site) -> None:
    await start(site.engine, "slow", b'["a"]')
    await start(site.engine, "sleepy")
    async with site.visitor() as page:
        await page.goto("/runs")
        rows = page.get_by_role("row")
        await expect(rows).to_have_count(3)
        await page.get_by_label("Workflow").fill("sleepy")
        await page.get_by_role("button", name="Filter").click()
        await expect(rows).to_have_count(2)
        assert "workflow=sleepy" in page.url
        await page.get_by_role("link", name="failed").click()
        await expect(page.get_by_role("heading", name="No run fits these filters")).to_be_visible()
        assert "workflow=sleepy" in page.url
        assert "status=FAILED" in page.url
        await page.go_back()
        await expect(rows).to_have_count(2)
        await page.get_by_role("main").get_by_role("link", name="Clear filters").click()
        await expect(rows).to_have_count(3)
        # A row is selected by its key, and cancelled in a dialog; what is left by a job.
        await page.goto("/runs?workflow=sleepy")
        await expect(page.get_by_role("button", name="Selected")).to_be_disabled()
        await page.keyboard.press("j")
        await page.keyboard.press("x")
        await page.get_by_role("button", name="Selected (1)").click()
        dialog = page.get_by_role("dialog", name="Cancel 1 run?")
        await dialog.get_by_role("button", name="Cancel 1 run").click()
        await expect(page.get_by_role("heading", name="Cancel: 1 of 1 run")).to_be_visible()
        await page.goto("/runs?workflow=slow")
        await page.get_by_label("With many runs").select_option("terminate")
        await page.get_by_role("button", name="All that match").click()
        await page.get_by_role("dialog").get_by_role("button", name="Terminate 1 run").click()
        await expect(page.locator("#state")).to_contain_text("completed")
        await expect(page.locator("#facts")).to_contain_text("Done1")


async def test_a_sleeping_run_is_cancelled_another_is_woken_and_a_waiting_one_is_told(site: Site) -> None:
    async with site.app, site.app.worker(), site.visitor() as page:
        sleepy, waiting = await start(site.engine, "sleepy"), await start(site.engine, "approval")
        early = await start(site.engine, "sleepy")
        await until(site, sleepy, RunStatus.SLEEPING)
        await page.goto(f"/runs/{sleepy}")
        await expect(page.locator("#state")).to_contain_text("Sleeping until")
        await page.get_by_role("link", name="Cancel").click()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
        await expect(page.locator("#state")).to_contain_text("cancelled")
        await until(site, early, RunStatus.SLEEPING)
        await page.goto(f"/runs/{early}")
        await page.get_by_role("link", name="Wake now").click()
        await page.get_by_role("dialog").get_by_role("button", name="Wake run").click()
        await expect(page.get_by_text("The run goes on as if its time had come.")).to_be_visible()
        await expect(page.locator("#state")).to_contain_text("completed")
        await until(site, waiting, RunStatus.SLEEPING)
        await page.goto(f"/runs/{waiting}")
        await expect(page.locator("#state")).to_contain_text("Waiting for signal approved")
        await page.get_by_role("link", name="Send signal").click()
        await page.get_by_role("dialog").get_by_label("Name").fill("approved")
        await page.get_by_role("dialog").get_by_role("button", name="Send signal").click()
        await expect(page.locator("#state")).to_contain_text("completed")


CLERK = """
import asyncio
from pathlib import Path
from kagzi import Kagzi

app = Kagzi()

@app.step
async def wait_for_it(name: str) -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.05)
    return f"done {name}"

@app.workflow(name="slow")
async def slow(name: str) -> str:
    return await wait_for_it(name)
"""


@asynccontextmanager
async def clerk(site: Site, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker in a process of its own, which holds a run for three seconds without a heartbeat."""
    (directory / "clerk.py").write_text(CLERK)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kagzi", "worker", "clerk.py", "--url", site.app.url or ""),
        cwd=directory,
        env=environ | {"KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS": "3"},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("site", [{"worker_stale": 3 * SECOND}], indirect=True)
async def test_a_killed_worker_is_missed_and_the_next_one_goes_on(site: Site, tmp_path: Path) -> None:
    run_id = await start(site.engine, "slow", b'["a"]')
    async with site.visitor() as page:
        state = page.locator("#state")
        await page.goto(f"/runs/{run_id}")
        await expect(state).to_contain_text("no worker that is online serves queue default")
        async with clerk(site, tmp_path) as worker:
            await expect(state).to_contain_text("step wait_for_it has been running for")
            worker.kill()
            await expect(state).to_contain_text("no worker that is online serves queue default")
            await page.goto("/workers")
            await expect(page.locator("#list")).to_contain_text("offline")
            await page.goto(f"/runs/{run_id}")
        async with clerk(site, tmp_path):
            await expect(state).to_contain_text("step wait_for_it has been running for")
            (tmp_path / "go").touch()
            await expect(state).to_contain_text("completed")
        # What a step got, returned, and how often it was tried.
        await page.locator("summary").click()
        await expect(page.locator(".step")).to_contain_text("Input")
        await expect(page.locator(".step")).to_contain_text("done a")
        await expect(page.locator(".step tbody tr")).to_have_count(1)
        await expect(page.locator("#facts")).to_contain_text("Executions2")


async def test_a_schedule_is_made_while_its_times_are_shown(site: Site) -> None:
    async with site.visitor() as page:
        await page.goto("/schedules")
        await page.get_by_role("link", name="New schedule").click()
        await page.get_by_label("Name").fill("nightly")
        await page.get_by_label("Workflow").fill("sleepy")
        await page.get_by_label("Time zone").fill("Asia/Kolkata")
        await page.get_by_label("When").fill("99 2 * * *")
        await expect(page.locator("#preview")).to_contain_text("99")  # what is wrong with it
        await page.get_by_label("When").fill("30 2 * * *")
        await expect(page.locator("#preview li")).to_have_count(5)
        await expect(page.locator("#preview")).to_contain_text("02:30:00 IST")
        await page.get_by_role("button", name="Make schedule").click()
        await expect(page.get_by_text("The schedule was made.")).to_be_visible()
        await page.get_by_role("link", name="Pause").click()
        await page.get_by_role("dialog").get_by_role("button", name="Pause schedule").click()
        await expect(page.locator("#state")).to_contain_text("paused")
        await page.get_by_role("link", name="Trigger now").click()
        await page.get_by_role("dialog").get_by_role("button", name="Trigger schedule").click()
        await expect(page.get_by_text("The run was started.")).to_be_visible()
        await expect(page.locator("#facts")).to_contain_text("triggered")


async def test_with_keys_alone(site: Site) -> None:
    async with site.app, site.app.worker(), site.visitor() as page:
        run_id = await start(site.engine, "failing")
        await until(site, run_id, RunStatus.FAILED)
        await page.goto("/")
        await page.keyboard.press("g")
        await page.keyboard.press("r")
        await page.wait_for_url("**/runs")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/runs/{run_id}")
        await page.keyboard.press("j")  # the step of its timeline
        await page.keyboard.press("Enter")
        await expect(page.locator(".step").first).to_contain_text("it is broken")
        await page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keys")
        await expect(keys).to_contain_text("find a run by its id")
        await page.keyboard.press("r")  # keys of the page are for the page
        await expect(page.get_by_role("dialog")).to_have_count(1)
        await page.keyboard.press("Escape")
        await expect(keys).to_be_hidden()
        await page.get_by_role("button", name="Keys").click()
        await keys.get_by_role("button", name="Close").click()
        await expect(page.get_by_role("button", name="Keys")).to_be_focused()
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("searchbox")).to_be_focused()
        await page.get_by_role("heading", level=1).click()
        await page.keyboard.press("t")
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        await page.get_by_role("link", name="Run again").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog", name="Run again?")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("link", name="Run again")).to_be_focused()
        site.office.broken = False
        await page.keyboard.press("r")
        await expect(page.get_by_role("dialog", name="Retry run?")).to_be_visible()
        await expect(page.get_by_role("button", name="Retry run")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("This run goes on where the other one failed.")).to_be_visible()
        await expect(page.locator("#state")).to_contain_text("completed")
        await page.keyboard.press("/")
        await page.keyboard.type(run_id)
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/runs?id=*")


async def test_everything_works_without_scripts(site: Site) -> None:
    run_id = await start(site.engine, "slow", b'["a"]')
    async with site.visitor(java_script_enabled=False) as page:
        await page.goto("/runs")
        await page.get_by_role("main").get_by_role("link", name=run_id[-12:]).click()
        await page.get_by_role("link", name="Cancel").click()
        await page.get_by_role("button", name="Cancel run").click()
        await expect(page.get_by_text("The run was asked to end.")).to_be_visible()
        await expect(page.locator("#state")).to_contain_text("cancelled")
        await page.goto("/runs")
        await page.get_by_role("checkbox").check()
        await page.get_by_label("With many runs").select_option("retry")
        await page.get_by_role("button", name="Selected").click()
        await page.get_by_role("button", name="Retry 1 run").click()
        await expect(page.get_by_role("heading", name="Retry: 1 of 1 run")).to_be_visible()


async def test_two_thousand_steps_open_within_two_seconds(site: Site) -> None:
    async with site.app, site.app.worker():
        run_id = await start(site.engine, "many", b"[2000]")
        await until(site, run_id, RunStatus.COMPLETED)
    async with site.visitor() as page:
        tools = await page.context.new_cdp_session(page)
        await tools.send("Performance.setTimeDomain", {"timeDomain": "threadTicks"})
        await tools.send("Performance.enable")
        began = time.process_time()
        await page.goto(f"/runs/{run_id}")
        # What the server and the page's own thread compute, whoever else has the cores.
        spent = time.process_time() - began
        metrics = {each["name"]: each["value"] for each in (await tools.send("Performance.getMetrics"))["metrics"]}
        assert spent + metrics["TaskDuration"] < 2, (spent, metrics)
        await expect(page.get_by_text("1 to 500 of 2001")).to_be_visible()
        await expect(page.locator(".timeline summary").first).to_be_visible()
        await page.locator(".timeline summary").first.click()
        await expect(page.locator(".step").first).to_contain_text("Output")
        await page.get_by_role("link", name="Later steps →").click()
        await expect(page.get_by_text("501 to 1000 of 2001")).to_be_visible()


async def test_a_stream_that_does_not_get_through_is_made_up_for(site: Site) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=204, body="")  # tells an EventSource to give up

    async with site.app, site.visitor() as page:
        await page.route(_STREAM, refuse)
        await page.goto("/runs")
        await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
        await start(site.engine, "sleepy")
        await expect(page.get_by_role("row")).to_have_count(2)  # by asking every few seconds
        await page.unroute(_STREAM)
        await start(site.engine, "sleepy")
        await expect(page.get_by_role("row")).to_have_count(3)
    assert all("EventSource" in complaint for complaint in site.complaints)
    site.complaints.clear()


async def test_every_page_fits_a_narrow_screen_and_everybody_in_both_themes(site: Site) -> None:
    run_id = await start(site.engine, "w" * 60, b'["a"]')
    axe = find_axe()
    async with site.app, site.app.worker():
        failed = await start(site.engine, "failing")
        await until(site, failed, RunStatus.FAILED)
        async with site.visitor(viewport={"width": 320, "height": 640}, bypass_csp=True) as page:
            for path in (
                "/",
                "/runs",
                f"/runs/{run_id}",
                f"/runs/{failed}",
                f"/runs/{run_id}/cancel",
                f"/runs/{failed}/fork",
                "/start",
                "/start?workflow=slow",
                "/bulk?action=cancel&of=search",
                "/jobs",
                "/workflows",
                "/workflows/failing",
                "/versions",
                "/schedules",
                "/new-schedule?cron=0+2+*+*+*",
                "/workers",
                "/queues",
                "/limits",
                "/limits/set",
                "/system",
                "/login",
            ):
                await page.goto(path)
                for theme in ("light", "dark"):
                    await page.emulate_media(color_scheme=theme)
                    wider = await page.evaluate(_WIDER)
                    assert wider <= 0, (theme, path)
                    if axe is not None:
                        assert await violations(page, axe) == [], (theme, path)
    if axe is None:
        pytest.skip("every page fits, but axe-core is not there to look for more: npm install --no-save axe-core")

"""Versions, forks, and schedules that are made and changed from a page."""

from __future__ import annotations

from kagzi import Kagzi, RunStatus
from kagzi.core.key import Role
from kagzi.core.schedule import Overlap
from kagzi.engine.local import LocalEngine
from tests.dashboard.support import Browser, dashboard, new_key
from tests.dashboard.test_pages import make_app, start, until


def versioned(url: str, version: str) -> Kagzi:
    app = Kagzi(url)

    @app.workflow(name="shipping", version=version)
    async def shipping() -> str:
        return version

    return app


async def test_a_default_is_chosen_and_runs_are_moved(browser: Browser, engine: LocalEngine, url: str) -> None:
    assert "No version is known" in (await browser.open("/versions")).text
    for version in ("1", "2"):
        app = versioned(url, version)
        async with app, app.worker():
            pass
    await start(engine, "shipping")
    shown = await browser.open("/versions")
    assert "default (newest)" in shown.text
    assert "can be retired" in shown.text  # version 1
    asked = await browser.open(shown.links["Make default"])
    assert "shipping: version 1" in asked.text
    chosen = await browser.send(asked.form("/versions/default"))
    assert "default (chosen)" in chosen.text
    asked = await browser.open(chosen.links["Move runs"])
    assert "version 2: 1 runs wait or sleep" in asked.text
    assert asked.form("/versions/move").fields["to_version"] == "1"
    refused = await browser.send(asked.form("/versions/move"), to_version="9", code=400)
    assert "no worker has ever offered version 9" in refused.text
    moved = await browser.send(asked.form("/versions/move"))
    assert "1 runs go on in the other version." in moved.text
    asked = await browser.open(moved.links["Let the newest be the default"])
    assert "default (newest)" in (await browser.send(asked.form("/versions/default"))).text


async def test_a_run_is_forked_from_a_step_with_other_input(browser: Browser, engine: LocalEngine, url: str) -> None:
    app = make_app(url)
    async with app, app.worker():
        run_id = await start(engine, "shipping", b'["tea"]', id="order-7")
        await until(engine, run_id, RunStatus.COMPLETED)
        page = await browser.open(f"/runs/{run_id}")
        assert '"tea"' not in page.html.partition('id="payloads"')[0]  # what a step got is on its own page
        step = await browser.open(page.links["Attempts, input and output of pack"])
        assert "1✓ completed" in step.text
        assert '"tea"' in step.text
        await browser.open(f"/runs/{run_id}/step?step=nothing", code=404)
        asked = await browser.open(step.links["Fork from here"])
        assert asked.form("/fork").fields["from_step"] == "pack"
        asked = await browser.open(page.links["Fork …"])
        form = asked.form("/fork")
        assert form.fields["arg.what"] == "tea"
        refused = await browser.send(form, from_step="nothing", code=404)
        assert "those that have ended are pack" in refused.text
        forked = await browser.send(form, **{"arg.what": "coffee"})
        assert "the other one stays as it is" in forked.text
        assert "coffee" in forked.text
        again = await browser.send(form, **{"arg.what": "coffee"})  # a second click
        assert form.fields["fresh"] in again.text
        assert (await engine.workflows.get_by_external_id("default", "order-7")).run_id == run_id


async def test_a_schedule_is_made_changed_and_deleted(browser: Browser, engine: LocalEngine) -> None:
    page = await browser.open((await browser.open("/schedules")).links["New schedule"])
    assert "Write when it shall fire" in page.text
    tried = await browser.open("/new-schedule?cron=0+2+*+*+*&tz=Europe/Berlin&workflow=cleanup&name=")
    assert tried.text.count(" 02:00:00 CE") == 5  # CET or CEST
    assert tried.form("/new-schedule").fields["workflow"] == "cleanup"
    assert "cron" in (await browser.open("/new-schedule?cron=often")).text

    form = tried.form("/new-schedule")
    bad = await browser.send(form, name="nightly", cron="99 2 * * *", code=400)
    assert 'id="wrong-cron"' in bad.html  # beside the field, and nothing that was written is lost
    assert bad.form("/new-schedule").fields["workflow"] == "cleanup"
    bad = await browser.send(form, name="nightly", jitter="soon", code=400)
    assert 'id="wrong-jitter"' in bad.html
    made = await browser.send(form, name="nightly", overlap="skip", input='["logs"]')
    assert "The schedule was made." in made.text
    schedule = await engine.schedules.get("default", "nightly")
    assert (schedule.timezone, schedule.overlap, schedule.input) == ("Europe/Berlin", Overlap.SKIP, b'["logs"]')
    fresh = (await browser.open("/new-schedule")).form("/new-schedule").fields["schedule_id"]
    taken = await browser.send(form, name="nightly", schedule_id=fresh, code=409)
    assert 'id="wrong-name"' in taken.html

    edit = (await browser.open(made.links["Change"])).form("/edit")
    assert (edit.fields["cron"], edit.fields["overlap"]) == ("0 2 * * *", "skip")
    changed = await browser.send(edit, cron="30 3 * * *", input='[\r\n  "logs"\r\n]')
    assert "The schedule was changed." in changed.text
    schedule = await engine.schedules.get("default", "nightly")
    assert (schedule.cron_expr, schedule.input) == ("30 3 * * *", b'["logs"]')
    assert 'id="wrong-tz"' in (await browser.send(edit, tz="Moon/Sea", code=400)).html
    gone = await browser.send((await browser.open(changed.links["Delete"])).form("/delete"))
    assert "The schedule is gone" in gone.text
    assert (await engine.schedules.list("default")).items == ()


async def test_those_who_may_not_are_not_offered_any_of_it(memory: LocalEngine) -> None:
    await memory.namespaces.create("a")
    async with dashboard(memory) as port, Browser(port.url) as browser:
        await browser.log_in(await new_key(memory, port, Role.VIEWER, "a"))
        assert "New schedule" not in (await browser.open("/schedules")).links
        assert "Make default" not in (await browser.open("/versions")).links

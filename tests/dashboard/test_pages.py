"""The pages, with what the engine answers on them, and the forms that change something."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import kagzi
from kagzi import Kagzi, Retry, RunStatus
from kagzi.api.operations import StartRun
from kagzi.api.workflows import RunFilter
from kagzi.clock import SystemClock
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds
from tests.dashboard.support import Browser, dashboard
from tests.http.support import engine_on

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
PATHS = ("/", "/runs", "/workflows", "/schedules", "/queues", "/limits", "/workers", "/system", "/start")


def make_app(url: str) -> Kagzi:
    app = Kagzi(url)

    @app.step(retry=Retry(attempts=1))
    async def pack(what: str) -> str:
        if what == "nothing":
            raise ValueError(f"cannot pack {HOSTILE}")
        return f"packed {what}"

    @app.workflow(name="shipping", retry=Retry(attempts=1))
    async def shipping(what: str) -> str:
        return await pack(what)

    @app.workflow(name="approval")
    async def approval() -> bool:
        kagzi.set_value("stage", "<b>waiting</b>")
        kagzi.progress(0.5, "half <i>way</i>")
        return await kagzi.wait_signal("approved", bool)

    return app


async def start(
    engine: LocalEngine, workflow: str, input: bytes = b"[]", id: str | None = None, version: str | None = None
) -> str:
    started = await engine.workflows.start(
        StartRun(
            namespace="default",
            run_id=RandomIds(SystemClock().now).run_id(),
            workflow_type=workflow,
            task_queue="default",
            external_id=id,
            version=version,
            input=input,
        )
    )
    return started.run_id


async def until(engine: LocalEngine, run_id: str, *statuses: RunStatus) -> None:
    async with asyncio.timeout(60):
        while (await engine.workflows.get("default", run_id)).status not in statuses:
            await asyncio.sleep(0.02)


async def test_every_page_teaches_while_there_is_nothing(quick: Browser) -> None:
    for path in PATHS:
        page = await quick.open(path)
        assert f"{page.text}".count("Kagzi") >= 1
    assert "kagzi start hello" in (await quick.open("/")).text
    assert "kagzi worker APP -q default" in (await quick.open("/workers")).text


async def test_a_failed_run_is_shown_with_its_error_and_retried(
    browser: Browser, engine: LocalEngine, url: str
) -> None:
    app = make_app(url)
    async with app, app.worker():
        run_id = await start(engine, "shipping", b'["nothing"]', id="order-7")
        await until(engine, run_id, RunStatus.FAILED)
        overview = await browser.open("/")
        assert "cannot pack" in overview.text
        page = await browser.open(overview.links["order-7"])
        assert 'raise ValueError(f"cannot pack {HOSTILE}")' in page.text  # a line of the user's own code
        assert "attempt 1 failed" in page.text
        assert {"Retry", "Run again"} <= page.links.keys()
        asked = await browser.open(page.links["Retry"])
        assert "steps that completed are not run again" in asked.text
        again = await browser.send(asked.form("/retry"))
        assert "goes on where the other one failed" in again.text


async def test_a_waiting_run_is_sent_a_signal_and_completes(browser: Browser, engine: LocalEngine, url: str) -> None:
    app = make_app(url)
    async with app, app.worker():
        run_id = await start(engine, "approval")
        await until(engine, run_id, RunStatus.SLEEPING)
        listed = await browser.open("/runs", status="SLEEPING")
        assert "Waiting for signal approved." in listed.text
        page = await browser.open(f"/runs/{run_id}")
        assert "Waiting for signal approved since" in page.text
        assert "50 %, half <i>way</i>" in page.text
        assert "<b>waiting</b>" in page.text
        asked = await browser.open(page.links["Send signal"])
        refused = await browser.send(asked.form("/signal"), name="approved", value="yes", code=400)
        assert "value is not JSON" in refused.text
        sent = await browser.send(asked.form("/signal"), name="approved", value="true")
        assert "The signal was sent." in sent.text
        await until(engine, run_id, RunStatus.COMPLETED)
        assert "completed" in (await browser.open(f"/runs/{run_id}")).text


async def test_runs_are_started_copied_cancelled_and_terminated(browser: Browser) -> None:
    form = (await browser.open("/start")).form("/start")
    started = await browser.send(form, workflow="later", input='{"n": 1}', id="one")
    assert "The run was started." in started.text
    assert "no worker that is online serves queue default" in started.text
    again = (await browser.open("/start")).form("/start")
    found = await browser.send(again, workflow="later", input='{"n": 1}', id="one")
    assert "There was a run with this id already" in found.text
    copy = await browser.open(started.links["Start a copy …"])
    assert copy.form("/start").fields["workflow"] == "later"
    assert '"n": 1' in copy.form("/start").fields["input"]
    second = await browser.send(copy.form("/start"))
    ended = await browser.send((await browser.open(second.links["Terminate"])).form("/terminate"), reason="wrong price")
    assert "wrong price" in ended.text
    asked = await browser.open(started.links["Cancel"])
    assert "it may clean up for as long as the grace time lasts" in asked.text
    bad = await browser.send(asked.form("/cancel"), grace="soon", code=400)
    assert "not a length of time" in bad.text
    cancelled = await browser.send(asked.form("/cancel"), grace="5s")
    assert "The run was asked to end." in cancelled.text
    late = await browser.send(asked.form("/cancel"))
    assert "The run was asked to end." in late.text  # an earlier request was effective, and still is


async def test_filters_are_the_address_of_the_list(quick: Browser, memory: LocalEngine) -> None:
    for number in range(60):
        queue = "mail" if number % 2 else "default"
        run_id = f"01900000-0000-7000-8000-{number:012x}"
        await memory.workflows.start(
            StartRun(namespace="default", run_id=run_id, workflow_type=f"w{number % 3}", task_queue=queue)
        )
    page = await quick.open("/runs", queue="mail", workflow="w1")
    shown = [link for link in page.links if link.startswith("0000000")]
    assert len(shown) == 10
    first = await quick.open("/runs")
    older = await quick.open(first.links["Older →"])
    back = await quick.open(older.links["← Newer"])
    assert [link for link in back.links if link.startswith("0000")] == [
        link for link in first.links if link.startswith("0000")
    ]
    none = await quick.open("/runs", status="FAILED")
    assert "No run fits these filters" in none.text
    assert "No run fits these filters" in (await quick.open("/runs", id="nobody")).text
    assert "there are PENDING" in (await quick.open("/runs", queue="", status="NONSENSE", code=400)).text


async def test_whatever_a_run_holds_is_text(quick: Browser, memory: LocalEngine) -> None:
    started = await memory.workflows.start(
        StartRun(
            namespace="default",
            run_id="01900000-0000-7000-8000-000000000001",
            workflow_type=HOSTILE,
            task_queue=HOSTILE,
            version="</title>",
            external_id=HOSTILE,
            input=b'["</script><script>alert(3)</script>"]',
        )
    )
    for path in ("/", "/runs", "/queues", "/workflows", f"/runs/{started.run_id}", f"/start?like={started.run_id}"):
        page = await quick.open(path)
        assert "alert(1)" in page.text or "alert(1)" in str(page.forms[-1].fields), path
        assert "<script>alert" not in page.html, path
        assert "<img src=x" not in page.html, path
    page = await quick.open(f"/runs/{started.run_id}")
    followed = await quick.open(page.links[HOSTILE])  # a filter by its name
    assert "alert(1)" in followed.text
    flash = await quick.open("/", done="<b>x</b>")
    assert "<b>x" not in flash.html


async def test_a_page_of_what_is_not_there(quick: Browser) -> None:
    assert "there is no page" in (await quick.open("/nothing", code=404)).text
    unknown = "01900000-0000-7000-8000-00000000ffff"
    assert "there is no run" in (await quick.open(f"/runs/{unknown}", code=404)).text
    api = await quick.http.get("/api/v1/nothing", headers={"accept": "text/html"})
    assert api.headers["content-type"] == "application/problem+json"


async def test_a_long_history_comes_in_parts(engine: LocalEngine, browser: Browser, url: str) -> None:
    app = Kagzi(url)

    @app.step
    async def one(number: int) -> int:
        return number

    @app.workflow(name="many")
    async def many() -> None:
        await kagzi.map(one, range(620), name="batch")

    async with app, app.worker():
        run_id = await start(engine, "many")
        await until(engine, run_id, RunStatus.COMPLETED)
    page = await browser.open(f"/runs/{run_id}")
    assert "1 to 500 of 621" in page.text  # the group has a row of its own
    assert "batch group" in page.text
    rest = await browser.open(page.links["Later steps →"])
    assert "501 to 621 of 621" in rest.text


async def test_workers_are_listed_and_drained(engine: LocalEngine, browser: Browser, url: str) -> None:
    app = make_app(url)
    async with app, app.worker(queues=["shop"]):
        page = await browser.open("/workers", queue="shop")
        (link,) = [target for target in page.links.values() if "/workers/" in target]
        worker = await browser.open(link)
        assert "approval" in worker.links
        asked = await browser.open(worker.links["Drain"])
        assert "takes nothing new" in asked.text
        assert "The worker was told" in (await browser.send(asked.form("/drain"))).text


async def test_files_may_be_kept_and_only_those_there_are(quick: Browser) -> None:
    page = await quick.open("/")
    (style,) = [attributes["href"] for tag, attributes in page.tags if attributes.get("rel") == "stylesheet"]
    found = await quick.http.get(style)
    assert "immutable" in found.headers["cache-control"]
    assert found.headers["content-type"] == "text/css; charset=utf-8"
    assert (await quick.http.get(style.partition("?")[0])).headers["cache-control"] == "no-cache"
    for name in ("../shell.py", "..%2Fshell.py", "shell.py", "%2e%2e%2fshell.py"):
        assert (await quick.http.get(f"/static/{name}")).status_code == 404


@pytest.mark.parametrize("namespace", ["default", "shop"])
async def test_links_and_forms_keep_to_the_namespace(memory: LocalEngine, namespace: str) -> None:
    async with dashboard(memory) as port, Browser(port.url) as browser:
        page = await browser.open("/start", namespace=namespace)
        started = await browser.send(page.form("/start"), workflow="w")
        again = await browser.open(started.links["Runs"])
        assert "No runs yet" not in again.text
        (run,) = (await memory.workflows.list(RunFilter(namespace=namespace))).items
        assert run.namespace == namespace


async def test_a_queue_is_paused_and_resumed_from_its_page(engine: LocalEngine, browser: Browser) -> None:
    await engine.limits.pause("default", Scope.QUEUE, "a/b", by="ops", reason=HOSTILE)
    page = await browser.open("/queues")
    assert "paused by ops" in page.text
    asked = await browser.open(page.links["Resume"])
    assert "The queue is open" in (await browser.send(asked.form("/resume"))).text
    assert await engine.limits.list("default") == ()
    asked = await browser.open("/queues/mail/pause")
    assert "The queue is paused" in (await browser.send(asked.form("/pause"), reason="deploy")).text
    (limit,) = await engine.limits.list("default")
    assert (limit.name, limit.pause_reason) == ("mail", "deploy")


async def test_limits_are_set_cleared_and_paused(browser: Browser, engine: LocalEngine) -> None:
    page = await browser.open("/limits")
    assert "Nothing holds runs back" in page.text
    form = (await browser.open(page.links["Set a limit"])).form("/limits/set")
    for field, value, said in (
        ("concurrency", "0", "concurrency"),
        ("rate", "often", "100/1m"),
        ("name", "", "name"),
        ("key_concurrency", "3", "key"),  # keys are of workflows
    ):
        refused = await browser.send(form, code=400, **({"name": "mail"} | {field: value}))
        assert said in refused.text
    assert "say how many run at once" in (await browser.send(form, name="mail", code=400)).text
    page = await browser.send(form, name="mail", concurrency="20", rate="100/1m", burst="5")
    assert "The limit counts from now on." in page.text
    assert "queuemail20100in1m00opensetbyhand" in page.text.replace(" ", "")
    asked = await browser.open(page.links["Set …"])
    assert asked.form("/limits/set").fields["rate"] == "100/1m"
    page = await browser.send((await browser.open(page.links["Pause"])).form("/limits/pause"), reason=HOSTILE)
    assert HOSTILE in page.text
    page = await browser.send((await browser.open(page.links["Resume"])).form("/limits/resume"))
    page = await browser.send((await browser.open(page.links["Clear"])).form("/limits/clear"))
    assert "Nothing holds runs back" in page.text
    page = await browser.open("/limits")
    page = await browser.send((await browser.open(page.links["Pause the namespace"])).form("/limits/pause"))
    assert "namespace default" in page.text


async def test_what_a_codec_has_written_is_shown_as_such_or_read_with_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    app = Kagzi(url, codec=Backwards())

    @app.step
    async def pack(item: str) -> str:
        return f"packed {item}"

    @app.workflow(name="ship", retry=Retry(attempts=1))
    async def ship(item: str) -> str:
        kagzi.set_value("shelf", "upper shelf")
        await pack(item)
        raise ValueError(f"{item} fell down")

    async with app, app.worker(), engine_on(url) as engine:
        run = await ship.start("lamp")
        await until(engine, run.id, RunStatus.FAILED)
        assert app.codec is not None
        own = app.codec
        for codec in (None, own, OtherKey()):
            async with dashboard(engine, codec=codec) as port, Browser(port.url) as browser:
                shown = await browser.open(f"/runs/{run.id}")
                step = await browser.open(f"/runs/{run.id}/step?step=pack")
                text = f"{shown.text} {step.text} {(await browser.open('/')).text}"
                reads = codec is own
                for said in ("packed lamp", "lamp fell down", "upper shelf"):
                    assert (said in text) is reads
                assert ("encoded by a codec of the app" in shown.text) is not reads
                assert ("as the codec of the app reads them" in shown.text) is (codec is not None)


class Backwards:
    def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return b"\xff" + data[::-1]

    def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return data[:0:-1]


class OtherKey(Backwards):
    def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        raise ValueError(f"cannot read {len(data)} bytes")


async def test_a_run_that_waits_for_a_moment_is_woken(quick: Browser, memory: LocalEngine) -> None:
    await start(memory, "ship", id="now")
    assert "Wake now" not in (await quick.open("/runs/now")).links
    await memory.workflows.start(
        StartRun(
            namespace="default",
            run_id=RandomIds(SystemClock().now).run_id(),
            workflow_type="ship",
            task_queue="default",
            external_id="later",
            delay=3600 * SECOND,
        )
    )
    asked = await quick.open((await quick.open("/runs/later")).links["Wake now"])
    assert "this cannot be taken back" in asked.text
    woken = await quick.send(asked.form("/wake"))
    assert "The run goes on as if its time had come." in woken.text
    assert "Waiting for a worker" in woken.text
    assert "nothing was changed" in (await quick.send(asked.form("/wake"))).text


async def test_the_page_of_a_workflow_says_how_it_does(browser: Browser, engine: LocalEngine, url: str) -> None:
    app = make_app(url)
    async with app, app.worker():
        runs = [await start(engine, "shipping", b'["nothing"]') for _ in range(2)]
        for run_id in runs:
            await until(engine, run_id, RunStatus.FAILED)
        listed = await browser.open("/workflows")
        page = await browser.open(listed.links["shipping"])
        assert "All 2 runs there are" in page.text
        assert "2 runs with ValueError" in page.text
        assert "test_pages.py:" in page.text
        assert f"cannot pack {HOSTILE}" in page.text  # as text
        assert (await browser.open(page.links["2 runs with ValueError"])).text.count("cannot pack") == 2
        assert "pack" in page.text.partition("Its steps")[2]
        assert "default (newest)" in page.text
        assert "The run was started." not in page.text
        overview = await browser.open("/")
        assert "All 2 runs: 0 completed, 2 failed." in overview.text
        asked = await browser.open(page.links["Pause …"])
        await browser.send(asked.form("/limits/pause"), reason="it loses parcels")
        assert "it loses parcels" in (await browser.open("/workflows/shipping")).text
        assert "it loses parcels" in (await browser.open("/")).text
    # One that has nothing but a name with a slash in it, and one that is not there.
    await start(engine, "a/b")
    assert "No worker that is online offers it" in (await browser.open("/workflows/a%2Fb")).text
    assert "none of its runs is there" in (await browser.open("/workflows/nobody", code=404)).text

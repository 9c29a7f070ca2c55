"""One thing done to many runs: to a selection at once, to a search by a job with a page of its own."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from kagzi.api.operations import StartRun, TerminateRun
from kagzi.api.workflows import RunFilter
from kagzi.core.job import JobOptions, JobStatus
from kagzi.core.key import Role
from kagzi.core.run import RunStatus
from kagzi.engine.local import LocalEngine
from tests.dashboard.support import Browser, dashboard, new_key


def run_id(number: int) -> str:
    return f"01900000-0000-7000-8000-{number:012x}"


async def start(engine: LocalEngine, count: int, workflow: str = "w", namespace: str = "default") -> list[str]:
    ids = [run_id(number + 1) for number in range(count)]
    for each in ids:
        await engine.workflows.start(
            StartRun(namespace=namespace, run_id=each, workflow_type=workflow, task_queue="default")
        )
    return ids


def asking(action: str, runs: list[str]) -> str:
    return "/bulk?" + urlencode([("action", action), ("of", "selection"), *(("run", each) for each in runs)])


async def live(engine: LocalEngine) -> set[str]:
    found = await engine.workflows.list(RunFilter(), page_size=100)
    return {run.run_id for run in found.items if not run.status.finished}


async def test_a_selection_is_cancelled_retried_and_deleted(browser: Browser, engine: LocalEngine) -> None:
    one, two, three = await start(engine, 3)
    listed = await browser.open("/runs")
    assert listed.form("/bulk").fields["action"] == "cancel"
    boxes = [given["value"] for tag, given in listed.tags if tag == "input" and given.get("name") == "run"]
    assert sorted(boxes) == [one, two, three]

    asked = await browser.open(asking("cancel", [one, two]))
    assert "Cancel 2 runs?" in asked.text
    assert "it may clean up for 30 seconds" in asked.text
    assert asked.form("/bulk").fields["run"] == [one, two]
    assert await live(engine) == {one, two, three}  # asking changes nothing
    done = await browser.send(asked.form("/bulk"))
    assert "Cancel: 2 of 2 runs" in done.text
    assert await live(engine) == {three}

    unchanged = await browser.send((await browser.open(asking("wake", [three]))).form("/bulk"))
    assert "Wake: 0 of 1 run " in unchanged.text
    assert "need not be woken" in unchanged.text

    form = (await browser.open(asking("retry", [one, three]))).form("/bulk")
    mixed = await browser.send(form)
    assert "Retry: 1 of 2 runs" in mixed.text  # the other one has not ended, and that keeps nobody from the first
    await browser.send(form)  # a second click
    assert await live(engine) == {three, form.fields["fresh"][0]}

    gone = await browser.send((await browser.open(asking("delete", [two]))).form("/bulk"))
    assert "is deleted" in gone.text
    await browser.open(f"/runs/{two}", code=404)


async def test_runs_are_forked_from_a_step_that_is_written(quick: Browser, memory: LocalEngine) -> None:
    one, two = await start(memory, 2)
    await memory.workflows.terminate(TerminateRun(namespace="default", run_id=one))
    listed = await quick.open("/runs")
    assert '<option value="fork">' in listed.html
    assert '<option value="move">' not in listed.html
    form = (await quick.open(asking("fork", [one, two]))).form("/bulk")
    missing = await quick.send(form, from_step="pay")
    assert "Fork: 0 of 2 runs" in missing.text
    assert "has no step" in missing.text
    done = await quick.send(form)
    assert "Fork: 1 of 2 runs" in done.text
    assert "is pending, and would go on beside its fork" in done.text
    assert (await memory.workflows.get("default", form.fields["fresh"][0])).origin == one

    form = (await quick.open("/bulk?action=fork&of=search&status=CANCELLED")).form("/bulk")
    assert "No worker has" not in (await quick.send(form, from_step="pay")).text
    (job,) = (await memory.jobs.list("default")).items
    assert job.options == JobOptions(from_step="pay")
    async with asyncio.timeout(60):
        while (await memory.jobs.get("default", job.job_id)).status is JobStatus.RUNNING:
            await asyncio.sleep(0.02)
    page = await quick.open(f"/jobs/{job.job_id}")
    assert "1 have no such step that has ended" in page.text
    assert "<dt>From step</dt><dd><code>pay</code></dd>" in page.html
    for path in ("selection&run=" + one, "search&status=RUNNING"):
        assert "the page of versions does" in (await quick.open(f"/bulk?action=move&of={path}", code=400)).text


async def test_bad_selections_change_nothing(quick: Browser, memory: LocalEngine) -> None:
    await start(memory, 1)
    assert "no run is selected" in (await quick.open("/bulk?action=cancel", code=400)).text
    assert "there is no run" in (await quick.open(asking("cancel", [run_id(77)]), code=404)).text
    assert "there are cancel, terminate" in (await quick.open("/bulk?action=burn", code=400)).text
    await quick.open(asking("cancel", [run_id(number) for number in range(26)]), code=400)
    form = (await quick.open(asking("cancel", [run_id(1)]))).form("/bulk")
    del form.fields["run"]
    assert "no run is selected" in (await quick.send(form, code=400)).text
    form.fields["search"] = "{nonsense"
    assert "not a filter" in (await quick.send(form, code=400)).text
    form.fields["search"] = '{"namespace":"elsewhere"}'
    assert "names namespace" in (await quick.send(form, code=400)).text
    form.fields["search"] = "{}"
    assert "about every run" in (await quick.send(form, code=400)).text
    assert await live(memory) == {run_id(1)}


async def test_a_search_becomes_a_job_whose_page_tells_how_far_it_is(browser: Browser, engine: LocalEngine) -> None:
    await start(engine, 30)
    await engine.workflows.start(
        StartRun(namespace="default", run_id=run_id(99), workflow_type="other", task_queue="default")
    )
    assert "No jobs yet" in (await browser.open("/jobs")).text
    assert "No run matches" in (await browser.open("/bulk?action=retry&of=search&status=FAILED")).text
    asked = await browser.open("/bulk?action=terminate&of=search&workflow=w")
    assert "Terminate 30 runs?" in asked.text
    assert "The newest 20 of them" in asked.text
    form = asked.form("/bulk")
    shown = await browser.send(form, rate="1000")
    assert "workflow w" in shown.text
    again = await browser.send(form, rate="1000")  # a second click
    (job,) = (await engine.jobs.list("default")).items
    assert job.job_id in again.text
    async with asyncio.timeout(60):
        while (await engine.jobs.get("default", job.job_id)).status is JobStatus.RUNNING:
            await asyncio.sleep(0.02)
    page = await browser.open(f"/jobs/{job.job_id}")
    assert "<dt>Done</dt><dd>30</dd>" in page.html
    assert "End job" not in page.links
    assert "completed" in page.text
    assert "Terminate" in (await browser.open("/jobs")).text
    assert await live(engine) == {run_id(99)}
    assert (await engine.workflows.get("default", run_id(99))).status is RunStatus.PENDING


async def test_a_job_is_ended_from_its_page(quick: Browser, memory: LocalEngine) -> None:
    await start(memory, 60)
    form = (await quick.open("/bulk?action=cancel&of=search&queue=default")).form("/bulk")
    shown = await quick.send(form, rate="1")
    assert "The job is under way." in shown.text
    asked = await quick.open(shown.links["End job"])
    assert "What it has done stays done" in asked.text
    assert "The job has ended." in (await quick.send(asked.form("/cancel"))).text
    (job,) = (await memory.jobs.list("default")).items
    assert job.status is JobStatus.CANCELLED
    assert len(await live(memory)) > 0


async def test_every_run_is_meant_only_by_those_who_write_so(quick: Browser, memory: LocalEngine) -> None:
    await start(memory, 2)
    asked = await quick.open("/bulk?action=delete&of=search")
    assert "about every run of namespace default" in asked.text
    assert "about every run" in (await quick.send(asked.form("/bulk"), confirm="yes", code=400)).text
    assert (await memory.jobs.list("default")).items == ()
    assert "The job is under way." in (await quick.send(asked.form("/bulk"), confirm="default")).text


async def test_a_viewer_sees_jobs_and_starts_none(memory: LocalEngine) -> None:
    await memory.namespaces.create("a")
    await start(memory, 1, namespace="a")
    async with dashboard(memory) as port, Browser(port.url) as browser:
        await new_key(memory, port, Role.ADMIN)
        await browser.log_in(await new_key(memory, port, Role.VIEWER, "a"))
        listed = await browser.open("/runs")
        assert [form for form in listed.forms if form.action == "/bulk"] == []
        assert "checkbox" not in listed.html
        await browser.open("/bulk?action=cancel&of=search&workflow=w", code=403)
        assert "No jobs yet" in (await browser.open("/jobs")).text
    async with dashboard(memory) as port, Browser(port.url) as browser:
        await browser.log_in(await new_key(memory, port, Role.CLIENT, "a"))
        form = (await browser.open("/bulk?action=cancel&of=search&workflow=w")).form("/bulk")
        others = form.fields["search"].replace('"a"', '"default"')
        assert "names namespace" in (await browser.send(form, search=others, code=400)).text
        await browser.send(form)
        (job,) = (await memory.jobs.list("a")).items
        assert job.created_by.startswith("key:")
        assert (await memory.jobs.list("default")).items == ()

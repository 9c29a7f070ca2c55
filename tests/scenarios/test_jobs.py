"""One thing done to many runs."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi import InvalidRequest, Kagzi, NonRetryable, NotFound, Runs, WorkflowFailed


class CardDeclined(NonRetryable):
    pass


def make_app(url: str) -> tuple[Kagzi, Any, dict[str, bool]]:
    app = Kagzi(url)
    outage = {"on": True}

    @app.workflow
    async def charge(number: int) -> int:
        if outage["on"]:
            raise CardDeclined(str(number))
        return number

    @app.workflow
    async def order(number: int) -> int:
        return await charge.run(number)

    return app, (charge, order), outage


async def test_a_bulk_retry_after_an_outage(home: str) -> None:
    app, (charge, order), outage = make_app(home)
    async with app, app.worker():
        runs = [await charge.options(tags={"batch": "7"}).start(number) for number in range(7)]
        runs.append(await order.options(tags={"batch": "7"}).start(7))
        for run in runs:
            with pytest.raises(WorkflowFailed):
                await run.result(timeout=60)
        outage["on"] = False
        failed = Runs(status="FAILED", error=CardDeclined)
        preview = await app.jobs.preview("retry", failed)
        assert (preview.matched, preview.at_least, preview.children) == (8, False, 1)
        assert "8 runs, 1 of them children" in str(preview)
        job = await app.jobs.start("retry", failed)
        record = await job.wait(timeout=60)
        assert (record.status, job.matched, job.done, job.skipped, job.failed) == ("COMPLETED", 8, 7, 1, 0)
        assert record.runs == {"status": "FAILED", "error": record.runs["error"]}
        assert [each.id for each in (await app.jobs.list()).items] == [job.id]
        assert (await app.jobs.get(job.id)).done == 7

        live = [await charge.options(queue="nobody", tags={"batch": "8"}).start(number) for number in range(3)]
        job = await app.jobs.start("cancel", Runs(tags={"batch": "8"}))
        assert (await job.wait(timeout=60)).done == 3
        assert {(await run.get()).status.value for run in live} == {"CANCELLED"}
        job = await app.jobs.start("delete", Runs(tag="batch=8"))
        assert (await job.wait(timeout=60)).done == 3
        with pytest.raises(NotFound):
            await live[0].get()
        assert (await job.cancel()).status == "COMPLETED"  # it has ended
        with pytest.raises(NotFound, match="no job"):
            await app.jobs.get(live[0].id)
        for action, wanted, message in (
            ("retry", Runs(), "everything=True"),
            ("delete", Runs(status="RUNNING"), "only finished runs can be deleted"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                await app.jobs.start(action, wanted)
        assert len((await app.jobs.list()).items) == 3


async def test_a_bulk_fork_after_a_wrong_step_and_a_bulk_move(home: str) -> None:
    app = Kagzi(home)
    wrong = {"price": True}

    @app.step
    async def look(order: str) -> str:
        return order

    @app.step
    async def price(order: str) -> str:
        return f"{order} for {'nothing' if wrong['price'] else '999'}"

    @app.workflow(name="checkout", version="1")
    async def checkout(order: str, priced: bool) -> str:
        found = await look(order)
        return await price(found) if priced else found

    @app.workflow(name="checkout", version="2")
    async def checkout_2(order: str, priced: bool) -> str:
        return f"2: {await price(await look(order))}"

    async with app, app.worker():
        runs = [await checkout.options(id=order, tags={"day": "1"}).start(order, True) for order in ("a", "b")]
        runs.append(await checkout.options(tags={"day": "1"}).start("free", False))
        for run in runs:
            await run.result(timeout=60)
        wrong["price"] = False
        live = await checkout.options(tags={"day": "1"}, queue="nobody").start("live", True)
        job = await app.jobs.start("fork", Runs(workflow="checkout", tag="day=1"), from_step="price", version="2")
        record = await job.wait(timeout=60)
        assert (record.status, job.matched, job.done, job.skipped, job.failed) == ("COMPLETED", 4, 2, 2, 0)
        assert (record.from_step, record.from_version, record.version) == ("price", None, "2")
        assert record.reasons == {"no_step": 1, "live": 1}
        assert job.why_skipped == "1 have not ended; 1 have no such step that has ended"
        forks = [run async for run in app.search(tag="day=1") if run.origin is not None]
        assert sorted([await app.handle(run.run_id).result(timeout=60) for run in forks]) == [
            "2: a for 999",
            "2: b for 999",
        ]
        assert {run.origin for run in forks} == {run.id for run in runs[:2]}
        assert (await app.find("a")).id == runs[0].id  # the source keeps its id

        job = await app.jobs.start("move", Runs(workflow="checkout"), from_version="1", version="2")
        record = await job.wait(timeout=60)
        assert (job.done, record.reasons) == (1, {"ended": 5})
        assert (await live.get()).version == "2"


@pytest.mark.parametrize(
    ("action", "runs", "options", "message"),
    [
        ("fork", Runs(status="RUNNING"), {}, "status RUNNING: a job forks finished runs only"),
        ("fork", Runs(tag="a=b"), {"version": "2"}, "say which one in the filter"),
        ("fork", Runs(workflow="charge"), {"version": "9"}, "no worker has ever offered version 9"),
        ("fork", Runs(workflow="charge"), {"from_step": ""}, "step id must not be empty"),
        ("fork", Runs(workflow="charge"), {"from_version": "1"}, "from_version is for the action move"),
        ("fork", Runs(workflow="charge"), {"from_step": 2}, "from_step must be text"),
        ("retry", Runs(workflow="charge"), {"from_step": "a"}, "from_step is for the action fork, not for retry"),
        ("cancel", Runs(workflow="charge"), {"version": "2"}, "version is for the actions fork and move"),
        ("move", Runs(workflow="charge"), {"version": "2"}, "from_version is missing"),
        ("move", Runs(workflow="charge"), {"from_version": "2"}, "version is missing"),
        ("move", Runs(workflow="charge"), {"from_version": "2", "version": "2"}, "nothing to move"),
        ("move", Runs(tag="a=b"), {"from_version": "2", "version": "1"}, "say which one in the filter"),
    ],
)
async def test_what_forks_and_moves_do_not_take(action: str, runs: Runs, options: dict[str, Any], message: str) -> None:
    app, _, _ = make_app("memory://")
    async with app:
        for ask in (app.jobs.start, app.jobs.preview):
            with pytest.raises(InvalidRequest, match=message):
                await ask(action, runs, **options)
        assert (await app.jobs.list()).items == ()


async def test_a_job_that_skips_or_deletes_keeps_its_pace() -> None:
    """It changes no run that somebody waits for, so nobody else looks when it goes on: ten runs each second."""
    app, (charge, _), _ = make_app("memory://")
    async with app:
        for number in range(150):
            await charge.start(number)
        for action, skipped in (("retry", 150), ("terminate", 0), ("delete", 0)):
            job = await app.jobs.start(action, Runs(workflow="charge"), rate=1000)
            await job.wait(timeout=8)
            assert (job.matched, job.skipped) == (150, skipped)


async def test_what_is_no_job() -> None:
    app, _, _ = make_app("memory://")
    async with app:
        with pytest.raises(InvalidRequest, match="action must be one of"):
            await app.jobs.start("explode", Runs(status="FAILED"))
        with pytest.raises(InvalidRequest, match="said by Runs"):
            await app.jobs.start("retry", {"status": "FAILED"})  # type: ignore[arg-type]
        for rate in (0, 10_001, 1.5, True):
            with pytest.raises(InvalidRequest, match="rate must be a whole number"):
                await app.jobs.start("retry", Runs(status="FAILED"), rate=rate)  # type: ignore[arg-type]
        for field in ("children", "everything"):
            with pytest.raises(InvalidRequest, match=f"{field} must be True or False"):
                await app.jobs.start("retry", Runs(status="FAILED"), **{field: "yes"})  # type: ignore[arg-type]
        assert (await app.jobs.list()).items == ()
        job = await app.jobs.start("cancel", Runs(), everything=True)
        assert (await job.wait(timeout=20)).matched == 0

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
        assert (await app.jobs.list()).items == ()
        job = await app.jobs.start("cancel", Runs(), everything=True)
        assert (await job.wait(timeout=20)).matched == 0

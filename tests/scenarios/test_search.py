"""Finding runs by what is known of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, NonRetryable, NotFound, RunRecord, Runs, WorkflowFailed


class CardDeclined(NonRetryable):
    pass


def make_app(url: str) -> tuple[Kagzi, Any, Any]:
    app = Kagzi(url)

    @app.workflow
    async def charge(cents: int) -> int:
        if cents < 0:
            raise CardDeclined(f"{cents}")
        return cents

    @app.workflow
    async def order(cents: int) -> int:
        return await charge.options(tags={"part": "charge"}).run(cents)

    return app, charge, order


async def ids(app: Kagzi, **filters: Any) -> list[str | None]:
    found: list[RunRecord] = [run async for run in app.search(**filters)]
    assert [run.run_id for run in found] == sorted((run.run_id for run in found), reverse=True)
    return [run.id for run in found]


async def test_runs_are_found_by_every_filter(home: str) -> None:
    app, charge, order = make_app(home)
    async with app, app.worker(queues=["default", "mail"]):
        began = kagzi.now()
        for number in range(3):
            tags = {"batch": str(number % 2)}
            run = await charge.options(id=f"charge-{number}", tags=tags, queue="mail").start(1 - number)
            if number == 2:
                with pytest.raises(WorkflowFailed):
                    await run.result()
            else:
                await run.result()
        parent = await order.options(id="order-1").start(5)
        await parent.result()
        nightly = await app.schedules.create("nightly", charge, 3, cron="0 2 * * *")
        fired = await nightly.trigger()
        await fired.result()

        assert await ids(app, tags={"batch": "0"}) == ["charge-2", "charge-0"]
        assert await ids(app, tag="batch=1") == ["charge-1"]
        assert await ids(app, id_prefix="charge-") == ["charge-2", "charge-1", "charge-0"]
        assert await ids(app, error="CardDeclined") == ["charge-2"]
        assert await ids(app, error=CardDeclined, workflow=charge) == ["charge-2"]
        assert await ids(app, error="other.CardDeclined") == []
        assert await ids(app, status="failed") == ["charge-2"]
        assert await ids(app, queue="mail", status="COMPLETED") == ["charge-1", "charge-0"]
        assert await ids(app, workflow="order") == ["order-1"]
        assert await ids(app, parent=parent.id) == [None]
        assert [run.run_id async for run in app.search(schedule="nightly")] == [fired.id]
        assert [run.run_id async for run in app.search(schedule=nightly.id)] == [fired.id]
        assert await ids(app, since=began - timedelta(hours=1), id_prefix="order") == ["order-1"]
        assert await ids(app, until=began - timedelta(hours=1)) == []
        assert await ids(app, since=(began + timedelta(days=2)).date()) == []
        assert await ids(app, tags={"batch": "none"}) == []
        with pytest.raises(NotFound, match="no schedule hourly"):
            await ids(app, schedule="hourly")


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"status": 7}, "7 is not a status of a run"),
        ({"status": "BROKEN"}, "'BROKEN' is not a status of a run"),
        ({"workflow": ""}, "workflow must not be empty"),
        ({"queue": 7}, "queue must be text"),
        ({"tags": {"batch": 7}}, "tags: the value of 'batch' must be text"),
        ({"tag": "batch"}, "tag must be a name and a value such as batch=7"),
        ({"tag": "batch="}, "tag: the value of 'batch' must not be empty"),
        ({"tag": "batch=7", "tags": {"batch": "8"}}, "tag and tags have different values of 'batch'"),
        ({"since": "yesterday"}, "since must be a moment such as 2026-11-16"),
        ({"until": datetime(2026, 1, 1)}, "until must be a datetime with a time zone"),
        ({"since": "2026-11-16", "until": "2026-11-16"}, "since must come before until"),
        ({"id_prefix": ""}, "id_prefix must not be empty"),
        ({"error": 7}, "error must be text"),
        ({"parent": "order-1"}, "parent must be a UUID"),
        ({"schedule": ""}, "schedule must not be empty"),
        ({"everything": True, "queue": "mail"}, "everything=True is for runs without any other filter"),
    ],
)
def test_what_is_no_filter(filters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Runs(**filters)


def test_moments_are_in_utc_unless_they_say_otherwise() -> None:
    plain, local = Runs(since="2026-11-16"), Runs(since="2026-11-16T01:00+01:00")
    day, moment = Runs(since=date(2026, 11, 16)), Runs(since=datetime(2026, 11, 16, tzinfo=UTC))  # type: ignore[arg-type]
    assert len({runs._filter("default").created_after for runs in (plain, local, day, moment)}) == 1

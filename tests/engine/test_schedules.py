"""Schedules through an engine: fired at their moment, by whoever is there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kagzi.api.events import ScheduleChanged
from kagzi.api.operations import Chunk, CompleteRun
from kagzi.api.schedules import CreateSchedule, UpdateSchedule
from kagzi.api.workers import Claim
from kagzi.core.instant import SECOND
from kagzi.core.schedule import MOST_BACKFILLED, Overlap, Schedule
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Conflict, InvalidRequest, NamespaceDisabled, NotFound
from tests.engine.support import claim_one, database_now, new_engine, new_registration, run

MINUTE = 60 * SECOND


async def made(engine: LocalEngine, **fields: Any) -> Schedule:
    given: dict[str, Any] = {
        "namespace": "default",
        "schedule_id": engine._ids.run_id(),
        "workflow_type": "order",
        "task_queue": "shop",
        "cron_expr": "every 1m",
    }
    return await engine.schedules.create(CreateSchedule(**(given | fields)))


def test_a_schedule_fires_at_its_moment() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            schedule = await made(engine)
            assert schedule.next_fire_at is not None
            await asyncio.sleep((schedule.next_fire_at - database_now()) / SECOND + 0.02)
            (fired,) = (await engine.schedules.runs("default", schedule.schedule_id)).items
            assert 0 <= fired.created_at - schedule.next_fire_at <= SECOND // 100
            assert sum(engine.metrics.schedule_lag.counts) == 1
            assert engine.metrics.runs_started == {("default", "order"): 1}

    run(main)


def test_the_queue_of_a_handler_stands_apart_from_its_name() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            with pytest.raises(InvalidRequest, match="the queue of that one belongs into on_failure_queue"):
                await made(engine, on_failure="notify_ops@ops")
            with pytest.raises(InvalidRequest, match="on_failure_queue is the queue of on_failure"):
                await made(engine, on_failure_queue="ops")
            schedule = await made(engine, on_failure="notify_ops", on_failure_queue="ops")
            await engine.schedules.update(
                UpdateSchedule(namespace="default", schedule_id=schedule.schedule_id, on_failure="")
            )

    run(main)


def test_who_watches_is_told_what_happens_to_schedules() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            reader = engine.events.subscribe(namespace="default")
            schedule = await made(engine, overlap=Overlap.SKIP)
            schedules, key = engine.schedules, ("default", schedule.schedule_id)

            async def update(**fields: Any) -> None:
                await schedules.update(UpdateSchedule(namespace="default", schedule_id=schedule.schedule_id, **fields))

            # The first run is not executed, so two firings are skipped.
            until = (schedule.next_fire_at or 0) + 2 * MINUTE
            await asyncio.sleep((until - database_now()) / SECOND + 0.02)
            await update(jitter=SECOND)
            await update(enabled=False)
            await update(enabled=True, jitter=0)
            await schedules.trigger(*key, engine._ids.run_id())
            for started in (2, 0):  # one from before, and one of those that were skipped; the first has its run
                assert (await schedules.backfill(*key, until - 3 * MINUTE, until)).started == started
            await schedules.delete(*key)
            told = [each.event for each in await reader.next(0)]
            assert [
                (event.schedule_id, event.change.value, event.count)
                for event in told
                if isinstance(event, ScheduleChanged)
            ] == [
                (schedule.schedule_id, *each)
                for each in (
                    ("created", None),
                    ("fired", 1),
                    ("skipped", 1),
                    ("skipped", 1),
                    ("updated", None),
                    ("paused", None),
                    ("resumed", None),
                    ("updated", None),
                    ("fired", 1),
                    ("fired", 2),
                    ("deleted", None),
                )
            ]
            assert engine.metrics.schedule_firings == {("default", "fired"): 1, ("default", "skipped"): 2}

    run(main)


def test_a_poll_that_waits_gets_what_was_fired() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            await engine.workers.register(new_registration())
            schedule = await made(engine)
            claim = await claim_one(engine, 1, wait=2 * MINUTE)
            assert claim.scheduled_for == schedule.next_fire_at
            assert database_now() - (schedule.next_fire_at or 0) < SECOND // 10

    run(main)


def test_a_schedule_made_elsewhere_is_seen_within_a_second() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            schedule = await made(other, cron_expr="every 1s")
            await asyncio.sleep(2.1)
            assert (await engine.schedules.get("default", schedule.schedule_id)).total_runs >= 1

    run(main)


def test_a_buffered_firing_follows_the_end_of_the_run_before() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True, settings=EngineSettings(lease=10 * MINUTE)) as engine:
            await engine.workers.register(new_registration())
            schedule = await made(engine, overlap=Overlap.BUFFER)
            claim = await claim_one(engine, 1, wait=2 * MINUTE)
            await asyncio.sleep(61)
            assert (await engine.schedules.get("default", schedule.schedule_id)).buffered_for is not None
            await engine.workers.commit(_done(claim))
            second = await claim_one(engine, 2, wait=5 * SECOND)
            assert second.scheduled_for == (claim.scheduled_for or 0) + MINUTE
            after = await engine.schedules.get("default", schedule.schedule_id)
            assert (after.total_runs, after.successful_runs, after.buffered_for) == (2, 1, None)

    run(main)


def _done(claim: Claim) -> Chunk:
    return Chunk(
        namespace=claim.namespace, run_id=claim.run_id, token=claim.token, operations=(CompleteRun(output=b"1"),)
    )


def test_schedules_are_called_by_id_or_name() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            schedule = await made(engine, name="nightly")
            schedules = engine.schedules
            assert await schedules.get("default", "nightly") == await schedules.get("default", schedule.schedule_id)
            paused = await schedules.update(UpdateSchedule(namespace="default", schedule_id="nightly", enabled=False))
            assert not paused.enabled
            run_id = await schedules.trigger("default", "nightly", engine._ids.run_id())
            assert [each.run_id for each in (await schedules.runs("default", "nightly")).items] == [run_id]
            await schedules.delete("default", "nightly")
            with pytest.raises(NotFound, match="there is no schedule nightly in namespace default"):
                await schedules.get("default", "nightly")
            assert len((await schedules.runs("default", schedule.schedule_id)).items) == 1
            with pytest.raises(NotFound):
                await schedules.runs("default", engine._ids.run_id())

    run(main)


def test_pages_of_schedules_go_both_ways() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            ids = [(await made(engine)).schedule_id for _ in range(5)][::-1]
            first = await engine.schedules.list("default", page_size=2)
            second = await engine.schedules.list("default", page_size=2, page_token=first.next)
            third = await engine.schedules.list("default", page_size=2, page_token=second.next)
            assert [item.schedule_id for page in (first, second, third) for item in page.items] == ids
            assert third.next is None
            back = await engine.schedules.list("default", page_size=2, page_token=third.prev)
            assert back.items == second.items
            with pytest.raises(InvalidRequest, match="page token"):
                await engine.schedules.list("default", task_queue="shop", page_token=first.next)

    run(main)


def test_a_backfill_is_bounded_and_may_be_repeated() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            schedule = await made(engine)
            now = database_now() // MINUTE * MINUTE
            backfill = engine.schedules.backfill
            done = await backfill("default", schedule.schedule_id, now - 250 * MINUTE, now)
            assert (done.started, done.existing) == (250, 0)
            again = await backfill("default", schedule.schedule_id, now - 251 * MINUTE, now)
            assert (again.started, again.existing) == (1, 250)
            with pytest.raises(InvalidRequest, match="more than 1,000 firings"):
                await backfill("default", schedule.schedule_id, now - (MOST_BACKFILLED + 1) * MINUTE, now)
            with pytest.raises(InvalidRequest, match="future"):
                await backfill("default", schedule.schedule_id, now, now + MINUTE + 10 * SECOND + MINUTE)
            with pytest.raises(InvalidRequest, match="later than"):
                await backfill("default", schedule.schedule_id, now, now)

    run(main)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"cron_expr": "61 * * * *"}, "cron_expr: Bad minute '61' in '61 \\* \\* \\* \\*'"),
        ({"cron_expr": "0 0 30 2 *"}, "Bad day-of-month '30'"),
        ({"cron_expr": "every 0s"}, "every 1s"),
        ({"cron_expr": "0 0 9 * * 1"}, "numbers mean other days"),
        ({"timezone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'"),
        ({"max_catchup": 10_001}, "max_catchup must be a whole number from 0 to 10,000"),
        ({"max_catchup": -1}, "max_catchup"),
        ({"overlap": "often"}, "overlap must be one of"),
        ({"jitter": -1}, "jitter must be from 0 to 24 hours"),
        ({"priority": -1}, "priority"),
        ({"timeout": 0}, "timeout must be longer than 0"),
        ({"workflow_type": ""}, "workflow type must not be empty"),
        ({"task_queue": ""}, "task queue must not be empty"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"}, "looks like the id of a schedule"),
        ({"schedule_id": "nightly"}, "schedule id must be a UUID"),
        ({"input": b"x" * 3_000_000}, "input is 3,000,000 bytes"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(fields: dict[str, Any], told: str) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            with pytest.raises(InvalidRequest, match=told):
                await made(engine, **fields)
            assert (await engine.schedules.list("default")).items == ()
            good = await made(engine)
            fields.pop("schedule_id", None)
            fields.pop("name", None)
            if fields:
                with pytest.raises(InvalidRequest, match=told):
                    await engine.schedules.update(
                        UpdateSchedule(namespace="default", schedule_id=good.schedule_id, **fields)
                    )
                assert await engine.schedules.get("default", good.schedule_id) == good

    run(main)


def test_a_taken_name_is_a_conflict_and_a_disabled_namespace_makes_none() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            schedule = await made(engine, name="nightly")
            with pytest.raises(Conflict, match="there is a schedule named 'nightly' already"):
                await made(engine, name="nightly")
            await engine.namespaces.enable("default", False)
            with pytest.raises(NamespaceDisabled):
                await made(engine)
            with pytest.raises(NamespaceDisabled):
                await engine.schedules.trigger("default", schedule.schedule_id, engine._ids.run_id())

    run(main)

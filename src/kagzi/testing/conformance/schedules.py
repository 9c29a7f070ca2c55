"""Schedules: what is kept of them, what a change changes, and runs beside the plan. Firing: `firings`."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import CancelRun, Fork, RepeatRun, SendSignal, TerminateRun
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.api.workflows import RunFilter
from kagzi.core.declaration import Declaration, Verdict
from kagzi.core.instant import SECOND, Instant
from kagzi.core.page import Cursor
from kagzi.core.run import Run, RunStatus
from kagzi.core.schedule import Overlap, Schedule, SkipReason, firing_id
from kagzi.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from kagzi.store.postgres import schedule_rows as postgres_rows
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.schedules import Fired
from kagzi.store.sqlite import schedule_rows as sqlite_rows
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench

MINUTE = 60 * SECOND
DAY = 86_400 * SECOND


def schedule(bench: Bench, **fields: Any) -> CreateSchedule:
    return CreateSchedule(
        **{
            "namespace": NAMESPACE,
            "schedule_id": bench.new_id(),
            "workflow_type": TYPE,
            "task_queue": QUEUE,
            "version": "1",
            "cron_expr": "every 1m",
            **fields,
        }
    )


async def made(bench: Bench, **fields: Any) -> Schedule:
    answer = await bench.store.schedules.create(schedule(bench, **fields))
    assert isinstance(answer, Schedule), answer
    return answer


async def fire(bench: Bench, limit: int = 100) -> Fired:
    return await bench.store.schedules.fire(limit, bench.new_id)


async def look(bench: Bench, made: Schedule) -> Schedule:
    found = await bench.store.schedules.get(NAMESPACE, made.schedule_id)
    assert found is not None
    return found


async def runs(bench: Bench, made: Schedule) -> list[Run]:
    """The runs of a schedule, in the order in which they were inserted."""
    return (await bench.store.schedules.page_of_runs(NAMESPACE, made.schedule_id, None, 1000))[::-1]


async def skips(bench: Bench, made: Schedule) -> list[tuple[Instant, Instant, int, SkipReason]]:
    found = await bench.store.schedules.skips(NAMESPACE, made.schedule_id, 100)
    return [(skip.first_at, skip.last_at, skip.count, skip.reason) for skip in found[::-1]]


def until(bench: Bench, instant: Instant | None) -> None:
    """Lets the clock go on to an instant."""
    assert instant is not None
    bench.clock.advance(instant - bench.now())


async def instants(bench: Bench, made: Schedule) -> list[str | None]:
    return [run.external_id for run in await runs(bench, made)]


class TestSchedules:
    async def test_a_new_schedule_fires_after_now(self, bench: Bench) -> None:
        found = await made(bench, name="nightly", input=b"[1]", priority=3, timeout=DAY, retry_policy=b"{}")
        assert (found.name, found.input, found.priority, found.timeout) == ("nightly", b"[1]", 3, DAY)
        assert (found.enabled, found.total_runs, found.skipped_runs, found.last_fired_at) == (True, 0, 0, None)
        assert found.next_fire_at == (bench.now() // MINUTE + 1) * MINUTE
        assert await look(bench, found) == found
        assert await bench.store.schedules.find(NAMESPACE, "nightly") == found.schedule_id
        assert await bench.store.schedules.find("other", "nightly") is None
        assert (await bench.store.overview.horizon([])).schedule == found.next_fire_at

    async def test_a_repeated_create_is_the_first_and_another_with_its_id_or_name_is_a_conflict(
        self, bench: Bench
    ) -> None:
        create = schedule(bench, name="nightly", input=b"x" * 5000)
        first = await bench.store.schedules.create(create)
        assert await bench.store.schedules.create(create) == first
        again = schedule(bench, name="nightly")
        assert isinstance(await bench.store.schedules.create(again), Conflict)
        assert await bench.store.schedules.get(NAMESPACE, again.schedule_id) is None
        other = schedule(bench, schedule_id=create.schedule_id)
        assert isinstance(await bench.store.schedules.create(other), Conflict)
        run_id = await bench.start()
        assert isinstance(await bench.store.schedules.create(schedule(bench, schedule_id=run_id)), Conflict)

    async def test_a_namespace_has_so_many_and_others_have_theirs(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (sqlite_rows, postgres_rows):
            monkeypatch.setattr(module, "MOST_SCHEDULES", 2)
        create = schedule(bench, name="nightly", enabled=False)
        first = await bench.store.schedules.create(create)
        last = await made(bench)
        assert isinstance(await bench.store.schedules.create(schedule(bench)), LimitExceeded)
        assert await bench.store.schedules.create(create) == first  # it is there
        declaration = Declaration(
            name="hourly", workflow_type=TYPE, task_queue=QUEUE, cron_expr="every 1h", hash="declared"
        )
        declare = DeclareSchedule(
            namespace=NAMESPACE,
            schedule_id=bench.new_id(),
            worker_id=bench.new_id(),
            starting=True,
            declaration=declaration,
        )
        with pytest.raises(LimitExceeded, match=r"in namespace default, and no more are allowed"):
            await bench.store.schedules.declare(declare)
        await made(bench, namespace="tenant")
        await bench.store.schedules.delete(NAMESPACE, last.schedule_id)
        assert await bench.store.schedules.declare(declare) is Verdict.CREATED

    async def test_a_template_is_no_run(self, bench: Bench) -> None:
        """Whoever asks for a run by its id, looks for runs or goes through them does not find one."""
        found, paused = await made(bench), await made(bench, enabled=False)
        store = bench.store
        bench.clock.advance(1000 * DAY)
        for run_id in (found.schedule_id, paused.schedule_id):
            key = (NAMESPACE, run_id)
            assert (await store.runs.get(*key), await store.runs.get_many([key])) == (None, [])
            assert (await store.runs.facts_of([key]), await store.runs.steps(*key)) == ([], [])
            assert await store.runs.finished_of([key]) == [key]  # as one that does not exist: nobody waits for it
            assert (await store.runs.values(*key, (), ""), await store.signals.page(*key, 0, 10)) == ([], [])
            assert (await store.work.wake(*key), await store.limits.wait_of(*key)) == (None, None)
            assert await store.jobs.delete_run(*key) is False
            for write in (
                CancelRun(namespace=NAMESPACE, run_id=run_id),
                TerminateRun(namespace=NAMESPACE, run_id=run_id),
                RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=run_id, keep_steps=False),
                RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=run_id, keep_steps=True, fork=Fork()),
                SendSignal(namespace=NAMESPACE, run_id=run_id, name="go", value=b"1", key=bench.new_id()),
            ):
                assert isinstance(await bench.answer(write), NotFound), write
        filters: list[dict[str, Any]] = [
            {},
            *({"status": status} for status in RunStatus),
            {"status": RunStatus.PENDING, "or_status": RunStatus.SCHEDULED},
            {"workflow_type": TYPE, "task_queue": QUEUE},
            {"schedule_id": found.schedule_id},
        ]
        for filter in filters:
            listed = await store.runs.search(RunFilter(namespace=NAMESPACE, **filter), None, 10)
            assert listed.runs == [], filter
        for live in (True, False):
            assert await store.runs.count(NAMESPACE, live) == []
        assert await bench.claims() == ()
        duties = store.duties
        assert (await duties.recover_runs(10, 3, lambda _: 0)).runs == []
        assert (await duties.time_out_runs(10)).runs == []
        assert (await duties.prune_runs(10, None))[0] == 0
        survey, load = await store.overview.survey(DAY), await store.overview.load(DAY)
        assert (survey.pending + survey.sleeping + survey.running, survey.oldest_due_at) == (0, None)
        assert (load.queues, load.running) == ((), {})
        assert (await look(bench, found)).schedule_id == found.schedule_id

    async def test_schedules_are_listed_newest_first(self, bench: Bench) -> None:
        found = [await made(bench, task_queue=queue) for queue in ("a", "b", "a")]
        ids = [each.schedule_id for each in found]
        list_schedules = bench.store.schedules.page
        assert [each.schedule_id for each in await list_schedules(NAMESPACE, None, None, 10)] == ids[::-1]
        assert [each.schedule_id for each in await list_schedules(NAMESPACE, "a", None, 10)] == [ids[2], ids[0]]
        assert [each.schedule_id for each in await list_schedules(NAMESPACE, None, Cursor(ids[2]), 1)] == [ids[1]]
        back = Cursor(ids[0], backward=True)
        assert [each.schedule_id for each in await list_schedules(NAMESPACE, None, back, 1)] == [ids[1]]
        assert await list_schedules("other", None, None, 10) == []


class TestChangingSchedules:
    def _update(self, found: Schedule, **fields: Any) -> UpdateSchedule:
        return UpdateSchedule(namespace=NAMESPACE, schedule_id=found.schedule_id, **fields)

    async def test_what_is_given_changes_and_the_rest_stays(self, bench: Bench) -> None:
        found = await made(bench, name="n", input=b"[1]", retry_policy=b"{}")
        bench.clock.advance(SECOND)
        update = self._update(
            found,
            cron_expr="0 9 * * *",
            timezone="Asia/Kolkata",
            input=b"y" * 3000,
            max_catchup=0,
            overlap=Overlap.SKIP,
            jitter=5,
            task_queue="other",
            version="2",
        )
        after = await bench.store.schedules.update(update)
        assert isinstance(after, Schedule)
        assert (after.cron_expr, after.timezone, after.input) == ("0 9 * * *", "Asia/Kolkata", b"y" * 3000)
        assert (after.max_catchup, after.overlap, after.jitter) == (0, Overlap.SKIP, 5)
        assert (after.task_queue, after.version, after.workflow_type) == ("other", "2", TYPE)
        assert (after.name, after.retry_policy, after.updated_at) == ("n", b"{}", bench.now())
        assert (after.next_fire_at or 0) % DAY == (3 * 60 + 30) * MINUTE
        short = await bench.store.schedules.update(self._update(found, input=b"[2]"))
        assert isinstance(short, Schedule)
        assert short.input == b"[2]"

    async def test_a_paused_schedule_fires_nothing_and_misses_nothing(self, bench: Bench) -> None:
        found = await made(bench)
        paused = await bench.store.schedules.update(self._update(found, enabled=False, pause_reason="holidays"))
        assert isinstance(paused, Schedule)
        assert (paused.enabled, paused.next_fire_at, paused.pause_reason) == (False, None, "holidays")
        assert (await bench.store.overview.horizon([])).schedule is None
        bench.clock.advance(10 * MINUTE)
        assert (await fire(bench)).looked == 0
        resumed = await bench.store.schedules.update(self._update(found, enabled=True))
        assert isinstance(resumed, Schedule)
        assert (resumed.enabled, resumed.pause_reason) == (True, None)
        assert (await fire(bench)).runs == []
        until(bench, resumed.next_fire_at)
        assert len((await fire(bench)).runs) == 1

    async def test_what_waited_is_on_record_when_its_schedule_is_paused(self, bench: Bench) -> None:
        found = await made(bench, overlap=Overlap.BUFFER)
        await bench.store.schedules.trigger(NAMESPACE, found.schedule_id, bench.new_id())
        until(bench, found.next_fire_at)
        await fire(bench)
        await bench.store.schedules.update(self._update(found, enabled=False))
        assert await skips(bench, found) == [(bench.now(), bench.now(), 1, SkipReason.PAUSED)]
        assert (await look(bench, found)).skipped_runs == 1

    async def test_what_was_due_and_not_fired_is_on_record_when_its_schedule_is_paused(self, bench: Bench) -> None:
        found = await made(bench)
        until(bench, found.next_fire_at)
        first = bench.now()
        bench.clock.advance(2 * MINUTE)
        await bench.store.schedules.update(self._update(found, enabled=False))
        await bench.store.schedules.update(self._update(found, enabled=True))  # nothing more
        assert await skips(bench, found) == [(first, first + 2 * MINUTE, 3, SkipReason.PAUSED)]
        assert (await look(bench, found)).skipped_runs == 3
        assert (await fire(bench)).runs == []

    async def test_what_a_catch_up_has_not_come_to_is_on_record_when_its_schedule_is_changed(
        self, bench: Bench
    ) -> None:
        found = await made(bench, max_catchup=50)
        until(bench, found.next_fire_at)
        first = bench.now()
        bench.clock.advance(39 * MINUTE)
        assert len((await fire(bench)).runs) == 20
        await bench.store.schedules.update(self._update(found, max_catchup=60))
        assert (await fire(bench)).runs == []
        assert await skips(bench, found) == [(first + 20 * MINUTE, bench.now(), 20, SkipReason.PAUSED)]

    async def test_the_next_firing_may_be_chosen_unless_it_has_passed(self, bench: Bench) -> None:
        found = await made(bench, cron_expr="@hourly")
        chosen = bench.now() + 7 * SECOND
        after = await bench.store.schedules.update(self._update(found, next_fire_at=chosen))
        assert isinstance(after, Schedule)
        assert after.next_fire_at == chosen
        until(bench, chosen)
        assert len((await fire(bench)).runs) == 1
        assert (await look(bench, found)).next_fire_at == found.next_fire_at
        refused = await bench.store.schedules.update(self._update(found, next_fire_at=chosen))
        assert isinstance(refused, InvalidRequest)
        assert "use backfill or trigger" in str(refused)

    async def test_the_watermark_holds_when_a_schedule_is_changed_after_the_clock_stepped_back(
        self, bench: Bench
    ) -> None:
        found = await made(bench)
        until(bench, found.next_fire_at)
        fired_at = bench.now()
        assert len((await fire(bench)).runs) == 1
        bench.clock.step_back(5 * MINUTE)
        after = await bench.store.schedules.update(self._update(found, max_catchup=7))
        assert isinstance(after, Schedule)
        assert after.next_fire_at == fired_at + MINUTE
        refused = await bench.store.schedules.update(self._update(found, next_fire_at=fired_at))
        assert isinstance(refused, InvalidRequest)

    async def test_deleted_means_gone_and_its_runs_stay(self, bench: Bench) -> None:
        found = await made(bench, name="n", input=b"x" * 5000)
        until(bench, found.next_fire_at)
        (fired,) = (await fire(bench)).runs
        assert await bench.store.schedules.delete("other", found.schedule_id) is False
        assert await bench.store.schedules.delete(NAMESPACE, found.schedule_id)
        assert await bench.store.schedules.delete(NAMESPACE, found.schedule_id) is False
        assert await bench.store.schedules.get(NAMESPACE, found.schedule_id) is None
        assert (await bench.store.overview.horizon([])).schedule is None
        bench.clock.advance(10 * MINUTE)
        assert (await fire(bench)).looked == 0
        assert [run.run_id for run in await runs(bench, found)] == [fired.run_id]
        assert (await bench.claim(fired.run_id)).input == b"x" * 5000
        await made(bench, name="n")  # the name is free again

    async def test_unknown_schedules(self, bench: Bench) -> None:
        unknown = bench.new_id()
        assert await bench.store.schedules.update(UpdateSchedule(namespace=NAMESPACE, schedule_id=unknown)) is None
        assert await bench.store.schedules.trigger(NAMESPACE, unknown, bench.new_id()) is None
        assert await bench.store.schedules.page_of_runs(NAMESPACE, unknown, None, 10) == []
        found = await made(bench)
        await bench.store.schedules.delete(NAMESPACE, found.schedule_id)
        assert await bench.store.schedules.backfill(found, [(bench.now(), bench.new_id())]) is None


class TestTriggersAndBackfills:
    async def test_a_trigger_starts_a_run_beside_the_plan_even_while_paused(self, bench: Bench) -> None:
        found = await made(bench, overlap=Overlap.SKIP, enabled=False, input=b"x" * 5000)
        run_ids = [bench.new_id(), bench.new_id()]
        for run_id in run_ids:
            triggered = await bench.store.schedules.trigger(NAMESPACE, found.schedule_id, run_id)
            assert triggered is not None
            assert not isinstance(triggered, Conflict)
            assert (triggered.run_id, triggered.status) == (run_id, RunStatus.PENDING)
        claims = await bench.claims()
        made_at = [(await bench.run(claim.run_id)).created_at for claim in claims]
        assert [claim.scheduled_for for claim in claims] == made_at, "the moment of the trigger"
        assert [(claim.timezone, claim.external_id) for claim in claims] == [(found.timezone, None)] * 2
        assert claims[0].input == b"x" * 5000
        after = await look(bench, found)
        assert (after.total_runs, after.last_run_id, after.last_fired_at) == (2, run_ids[1], bench.now())

    async def test_a_repeated_trigger_starts_one_run(self, bench: Bench) -> None:
        found = await made(bench)
        run_id = bench.new_id()
        first = await bench.store.schedules.trigger(NAMESPACE, found.schedule_id, run_id)
        again = await bench.store.schedules.trigger(NAMESPACE, found.schedule_id, run_id)
        assert isinstance(first, Recovered)
        assert again == replace(first, workflow_type="")  # it is not new
        assert (await look(bench, found)).total_runs == 1
        other = await bench.start()
        assert isinstance(await bench.store.schedules.trigger(NAMESPACE, found.schedule_id, other), Conflict)

    async def test_a_backfill_starts_what_has_no_run_and_may_be_repeated(self, bench: Bench) -> None:
        found = await made(bench)
        first = found.next_fire_at
        assert first is not None
        until(bench, first)
        await fire(bench)
        wanted = [first + n * MINUTE for n in (-2, -1, 0)]
        started = await bench.store.schedules.backfill(found, [(at, bench.new_id()) for at in wanted])
        assert started is not None
        assert len(started) == 2
        again = await bench.store.schedules.backfill(found, [(at, bench.new_id()) for at in wanted])
        assert again == []
        assert sorted(map(str, await instants(bench, found))) == [firing_id(found.schedule_id, at) for at in wanted]
        after = await look(bench, found)
        assert (after.total_runs, after.next_fire_at) == (3, first + MINUTE)

    async def test_a_backfill_of_other_times_than_the_schedule_has_by_now_is_none(self, bench: Bench) -> None:
        found = await made(bench)
        update = UpdateSchedule(namespace=NAMESPACE, schedule_id=found.schedule_id, cron_expr="every 2m")
        await bench.store.schedules.update(update)
        assert await bench.store.schedules.backfill(found, [(bench.now(), bench.new_id())]) is None

    async def test_runs_of_a_schedule_are_listed_newest_first_in_pages(self, bench: Bench) -> None:
        found = await made(bench)
        ids = [bench.new_id() for _ in range(3)]
        for run_id in ids:
            await bench.store.schedules.trigger(NAMESPACE, found.schedule_id, run_id)

        async def listed(cursor: Cursor | None, limit: int = 10) -> list[str]:
            page = await bench.store.schedules.page_of_runs(NAMESPACE, found.schedule_id, cursor, limit)
            return [run.run_id for run in page]

        assert await listed(None) == ids[::-1]
        assert await listed(Cursor(ids[2]), 1) == [ids[1]]
        assert await listed(Cursor(ids[0], backward=True), 1) == [ids[1]]
        assert await bench.store.schedules.page_of_runs("other", found.schedule_id, None, 10) == []

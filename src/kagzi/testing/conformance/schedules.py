"""Schedules: each due instant becomes one run, or is on record as skipped, whatever happens beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import CancelRun, CompleteRun, FailRun, Fork, RepeatRun, SendSignal, Started, TerminateRun
from kagzi.api.schedules import CreateSchedule, UpdateSchedule
from kagzi.api.workflows import RunFilter
from kagzi.core.cron import Times, parse_times
from kagzi.core.instant import SECOND, Instant
from kagzi.core.page import Cursor
from kagzi.core.run import CANCEL_GRACE, Run, RunStatus
from kagzi.core.schedule import Overlap, Schedule, ScheduleCounts, SkipReason, delay_of, firing_id
from kagzi.errors import Conflict, InvalidRequest, NotFound
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.schedules import Fired, Turned
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


class TestFiring:
    async def test_a_due_instant_becomes_one_run(self, bench: Bench) -> None:
        found = await made(bench, input=b"[7]", priority=2, timeout=DAY)
        assert found.next_fire_at is not None
        until(bench, found.next_fire_at - 1)
        assert (await fire(bench)).runs == []
        bench.clock.advance(1)
        at = bench.now()

        (fired,) = (await fire(bench)).runs

        assert (fired.task_queue, fired.status, fired.available_at) == (QUEUE, RunStatus.PENDING, at)
        run = await bench.run(fired.run_id)
        assert run.external_id == firing_id(found.schedule_id, at)
        assert (run.input, run.priority, run.version, run.deadline_at) == (b"[7]", 2, "1", at + DAY)
        claim = await bench.claim(fired.run_id)
        assert claim.scheduled_for == at
        assert (await fire(bench)).runs == []
        after = await look(bench, found)
        assert (after.total_runs, after.last_fired_at, after.last_run_id) == (1, at, fired.run_id)
        assert after.next_fire_at == at + MINUTE
        assert (await bench.store.overview.horizon([])).schedule == at + MINUTE

    async def test_a_version_that_is_not_said_is_the_default_one(self, bench: Bench) -> None:
        found = await made(bench, version="")
        until(bench, found.next_fire_at)
        (fired,) = (await fire(bench)).runs
        assert (await bench.run(fired.run_id)).version == "1"
        await bench.store.versions.set_default(NAMESPACE, TYPE, "7", True)
        bench.clock.advance(MINUTE)
        (fired,) = (await fire(bench)).runs
        assert (await bench.run(fired.run_id)).version == "7"

    async def test_large_inputs_are_copied(self, bench: Bench) -> None:
        found = await made(bench, input=b"x" * 5000)
        until(bench, found.next_fire_at)
        (fired,) = (await fire(bench)).runs
        assert (await bench.claim(fired.run_id)).input == b"x" * 5000
        assert (await look(bench, found)).input == b"x" * 5000

    async def test_many_are_fired_a_few_at_a_time(self, bench: Bench) -> None:
        found = [await made(bench) for _ in range(5)]
        until(bench, found[0].next_fire_at)
        assert [(await fire(bench, 2)).looked for _ in range(4)] == [2, 2, 1, 0]
        assert [len(await runs(bench, each)) for each in found] == [1] * 5

    async def test_any_number_of_coordinators_fire_an_instant_once(self, bench: Bench) -> None:
        found = [await made(bench, max_catchup=50) for _ in range(5)]
        until(bench, found[0].next_fire_at)
        bench.clock.advance(10 * MINUTE)
        for _ in range(4):
            await asyncio.gather(*(fire(bench) for _ in range(4)))
        for each in found:
            assert len(set(await instants(bench, each))) == len(await runs(bench, each)) == 11
            assert (await look(bench, each)).total_runs == 11

    async def test_missed_firings_the_newest_ones_oldest_first(self, bench: Bench) -> None:
        found = await made(bench, max_catchup=3)
        first = found.next_fire_at
        assert first is not None
        until(bench, first + 9 * MINUTE + SECOND)
        assert len((await fire(bench)).runs) == 3
        assert await instants(bench, found) == [firing_id(found.schedule_id, first + n * MINUTE) for n in (7, 8, 9)]
        assert await skips(bench, found) == [(first, first + 6 * MINUTE, 7, SkipReason.CATCHUP)]
        after = await look(bench, found)
        assert (after.total_runs, after.skipped_runs, after.next_fire_at) == (3, 7, first + 10 * MINUTE)

    async def test_a_long_catch_up_takes_turns_with_others(self, bench: Bench) -> None:
        busy = await made(bench, cron_expr="every 1s")
        bench.clock.advance(3 * SECOND)
        other = await made(bench, cron_expr="every 100s")
        until(bench, other.next_fire_at)
        bench.clock.advance(1)
        rounds = [[run.run_id for run in (await fire(bench, 1)).runs] for _ in range(3)]
        assert len(rounds[0]) == 20
        assert len(rounds[1]) == 1  # the other one
        assert (await runs(bench, other))[0].run_id == rounds[1][0]
        assert len(rounds[2]) == 20
        ids = await instants(bench, busy)
        assert ids == sorted(ids, key=str)

    async def test_nothing_fires_again_when_its_run_is_gone_or_the_clock_steps_back(self, bench: Bench) -> None:
        found = await made(bench)
        until(bench, found.next_fire_at)
        (fired,) = (await fire(bench)).runs
        await bench.done(await bench.claim(fired.run_id), CompleteRun(output=b"1"))
        bench.clock.advance(40 * DAY)
        assert (await bench.store.duties.prune_runs(100, None))[0] == 1
        bench.clock.step_back(40 * DAY + 30 * SECOND)
        assert (await fire(bench)).runs == []
        bench.clock.advance(30 * SECOND)
        assert (await fire(bench)).runs == []
        assert await bench.store.runs.get(NAMESPACE, fired.run_id) is None

    async def test_an_id_that_somebody_has_taken_keeps_nothing_from_firing(self, bench: Bench) -> None:
        found = await made(bench)
        assert found.next_fire_at is not None
        taken = await bench.start(external_id=firing_id(found.schedule_id, found.next_fire_at))
        until(bench, found.next_fire_at)
        (fired,) = (await fire(bench)).runs
        assert fired.run_id != taken
        assert await instants(bench, found) == [None]
        assert (await fire(bench)).runs == []

    async def test_jitter_delays_the_run_and_not_the_schedule(self, bench: Bench) -> None:
        found = await made(bench, jitter=30 * SECOND)
        until(bench, found.next_fire_at)
        (fired,) = (await fire(bench)).runs
        delay = delay_of(found.schedule_id, bench.now(), 30 * SECOND)
        assert fired.available_at == bench.now() + delay
        assert await bench.claims() == ()
        bench.clock.advance(delay)
        assert (await bench.claim()).run_id == fired.run_id
        assert (await look(bench, found)).next_fire_at == found.next_fire_at + MINUTE  # type: ignore[operator]

    async def test_a_disabled_namespace_fires_nothing_and_catches_up_later(self, bench: Bench) -> None:
        found = await made(bench)
        await bench.store.namespaces.update(NAMESPACE, None, None, False)
        until(bench, found.next_fire_at)
        assert (await fire(bench)).runs == []
        assert (await fire(bench)).looked == 0  # not before half a minute has passed
        await bench.store.namespaces.update(NAMESPACE, None, None, True)
        bench.clock.advance(30 * SECOND)
        assert len((await fire(bench)).runs) == 1

    async def test_a_schedule_that_cannot_fire_says_why_and_leaves_the_others_alone(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = await made(bench, cron_expr="* * * * *", timezone="Europe/Berlin")
        good = await made(bench)
        update = UpdateSchedule(namespace=NAMESPACE, schedule_id=broken.schedule_id, next_fire_at=good.next_fire_at)
        assert isinstance(await bench.store.schedules.update(update), Schedule)

        def on_a_host_without_the_zone(text: object, zone: object) -> Times:
            return parse_times(text, "Mars/Olympus" if zone == "Europe/Berlin" else zone)

        monkeypatch.setattr("kagzi.store.schedules.parse_times", on_a_host_without_the_zone)
        until(bench, good.next_fire_at)
        fired = await fire(bench)
        assert [run.run_id for run in fired.runs] == [(await runs(bench, good))[0].run_id]
        ((_, schedule_id, why),) = fired.errors
        assert schedule_id == broken.schedule_id
        assert "Mars/Olympus" in why
        after = await look(bench, broken)
        assert after.error == why
        assert after.next_fire_at == good.next_fire_at
        assert (await fire(bench)).looked == 0


class TestOverlap:
    async def _second(self, bench: Bench, overlap: Overlap) -> tuple[Schedule, str]:
        """A schedule whose first run is live when its second firing is due."""
        found = await made(bench, overlap=overlap)
        until(bench, found.next_fire_at)
        (first,) = (await fire(bench)).runs
        bench.clock.advance(MINUTE)
        return found, first.run_id

    async def test_allow(self, bench: Bench) -> None:
        await self._second(bench, Overlap.ALLOW)
        assert len((await fire(bench)).runs) == 1

    async def test_skip_leaves_a_record(self, bench: Bench) -> None:
        found, first = await self._second(bench, Overlap.SKIP)
        fired = await fire(bench)
        assert (fired.runs, fired.turns) == (
            [],
            [Turned(namespace=NAMESPACE, schedule_id=found.schedule_id, started=0, skipped=1)],
        )
        assert await skips(bench, found) == [(bench.now(), bench.now(), 1, SkipReason.OVERLAP)]
        assert (await look(bench, found)).skipped_runs == 1
        assert await bench.store.schedules.count(NAMESPACE) == ScheduleCounts(1, 1, 1, 0, 0, 1)
        await bench.done(await bench.claim(first), CompleteRun(output=b"1"))
        bench.clock.advance(MINUTE)
        assert len((await fire(bench)).runs) == 1

    async def test_cancel_previous_ends_what_nobody_has_begun(self, bench: Bench) -> None:
        _, first = await self._second(bench, Overlap.CANCEL_PREVIOUS)
        fired = await fire(bench)
        assert [(namespace, answer.run_id, answer.status) for namespace, answer in fired.told] == [
            (NAMESPACE, first, RunStatus.CANCELLED)
        ]
        assert (await bench.run(first)).status is RunStatus.CANCELLED
        assert len(fired.runs) == 1

    async def test_cancel_previous_tells_a_run_that_is_driven(self, bench: Bench) -> None:
        found = await made(bench, overlap=Overlap.CANCEL_PREVIOUS)
        until(bench, found.next_fire_at)
        await fire(bench)
        claim = await bench.claim()
        bench.clock.advance(MINUTE)
        fired = await fire(bench)
        assert [(answer.run_id, answer.status, answer.effective) for _, answer in fired.told] == [
            (claim.run_id, RunStatus.RUNNING, True)
        ]
        assert (await bench.store.overview.horizon([])).cancel == bench.now() + CANCEL_GRACE

    async def test_buffer_waits_for_the_end_of_the_run_before(self, bench: Bench) -> None:
        found, first = await self._second(bench, Overlap.BUFFER)
        second = bench.now()
        assert (await fire(bench)).runs == []
        assert (await look(bench, found)).buffered_for == second
        bench.clock.advance(MINUTE)  # a third takes its place
        third = bench.now()
        assert (await fire(bench)).runs == []
        assert await skips(bench, found) == [(second, second, 1, SkipReason.OVERLAP)]
        assert await bench.store.schedules.fold_ends(10) == 0
        bench.clock.advance(SECOND)
        await bench.done(await bench.claim(first), CompleteRun(output=b"1"))
        assert (await fire(bench)).looked == 0
        assert await bench.store.schedules.fold_ends(10) == 1
        (fired,) = (await fire(bench)).runs
        assert (await bench.run(fired.run_id)).external_id == firing_id(found.schedule_id, third)
        after = await look(bench, found)
        assert (after.buffered_for, after.next_fire_at) == (None, third + MINUTE)

    async def test_buffer_does_not_wait_for_an_instant_that_has_its_run_by_a_backfill(self, bench: Bench) -> None:
        found, first = await self._second(bench, Overlap.BUFFER)
        second = bench.now()
        assert (await fire(bench)).runs == []
        started = await bench.store.schedules.backfill(found, [(second, bench.new_id())])
        assert started is not None
        claims = await bench.claims()
        assert {claim.run_id for claim in claims} == {first, started[0].run_id}
        for claim in claims:
            await bench.done(claim, CompleteRun(output=b"1"))
        bench.clock.advance(MINUTE)  # a third is due before the ends are folded
        third = bench.now()
        assert (await fire(bench)).runs == []
        (fired,) = (await fire(bench)).runs
        assert (await bench.run(fired.run_id)).external_id == firing_id(found.schedule_id, third)
        after = await look(bench, found)
        assert (after.buffered_for, after.next_fire_at) == (None, third + MINUTE)

    async def test_a_schedule_may_have_several_live_runs_and_each_is_told(self, bench: Bench) -> None:
        found = await made(bench, overlap=Overlap.CANCEL_PREVIOUS)
        ids = [bench.new_id(), bench.new_id()]
        for run_id in ids:
            await bench.store.schedules.trigger(NAMESPACE, found.schedule_id, run_id)
        until(bench, found.next_fire_at)
        assert [answer.run_id for _, answer in (await fire(bench)).told] == ids


class TestCounters:
    async def test_ends_are_counted_exactly_before_and_after_folding(self, bench: Bench) -> None:
        found = await made(bench)
        for n in range(5):
            until(bench, (await look(bench, found)).next_fire_at)
            await fire(bench)
            claim = await bench.claim()
            if n < 2:
                await bench.done(claim, CompleteRun(output=b"1"))
            elif n == 2:
                await bench.done(claim, FailRun(error=b"no"))
            elif n == 3:
                await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=claim.run_id))
        for _ in range(2):
            after = await look(bench, found)
            assert (after.total_runs, after.successful_runs, after.failed_runs) == (5, 2, 1)
            assert await bench.store.schedules.count(NAMESPACE) == ScheduleCounts(1, 1, 5, 2, 1, 0)
            assert await bench.store.schedules.fold_ends(10) in (0, 1)
        assert (await bench.store.overview.horizon([])).schedule_end is None

    async def test_the_counters_of_all_are_the_sums_of_those_there_are(self, bench: Bench) -> None:
        nothing = ScheduleCounts(0, 0, 0, 0, 0, 0)
        assert await bench.store.schedules.count(None) == nothing
        first, second = await made(bench), await made(bench, enabled=False)
        for _ in range(2):
            await bench.store.schedules.trigger(NAMESPACE, second.schedule_id, bench.new_id())
        until(bench, first.next_fire_at)
        assert (await fire(bench)).turns == [
            Turned(namespace=NAMESPACE, schedule_id=first.schedule_id, started=1, skipped=0)
        ]
        for claim in await bench.claims(limit=10):
            await bench.done(claim, CompleteRun(output=b"1"))
        for namespace in (NAMESPACE, None):
            assert await bench.store.schedules.count(namespace) == ScheduleCounts(2, 1, 3, 3, 0, 0)
        assert await bench.store.schedules.count("nowhere") == nothing
        # Ends that nobody has folded yet go with their schedule.
        await bench.store.schedules.delete(NAMESPACE, second.schedule_id)
        assert await bench.store.schedules.count(None) == ScheduleCounts(1, 1, 1, 1, 0, 0)

    async def test_every_way_to_end_is_counted(self, bench: Bench) -> None:
        found = await made(bench, timeout=5 * SECOND)
        until(bench, found.next_fire_at)
        await fire(bench)
        bench.clock.advance(5 * SECOND)
        await bench.store.duties.time_out_runs(10)
        assert (await bench.store.overview.horizon([])).schedule_end == bench.now()
        assert (await look(bench, found)).failed_runs == 1

    async def test_repeats_are_for_the_same_instant_and_are_no_firings(self, bench: Bench) -> None:
        found = await made(bench)
        until(bench, found.next_fire_at)
        at = bench.now()
        (fired,) = (await fire(bench)).runs
        await bench.done(await bench.claim(fired.run_id), FailRun(error=b"no"))
        repeat = RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=fired.run_id, keep_steps=True)
        assert isinstance(await bench.answer(repeat), Started)
        claim = await bench.claim(repeat.run_id)
        assert claim.scheduled_for == at
        await bench.done(claim, CompleteRun(output=b"1"))
        after = await look(bench, found)
        assert (after.total_runs, after.successful_runs, after.failed_runs) == (1, 0, 1)
        assert len(await runs(bench, found)) == 1

    async def test_ends_of_a_deleted_schedule_are_forgotten(self, bench: Bench) -> None:
        found = await made(bench)
        until(bench, found.next_fire_at)
        (fired,) = (await fire(bench)).runs
        assert await bench.store.schedules.delete(NAMESPACE, found.schedule_id)
        await bench.done(await bench.claim(fired.run_id), CompleteRun(output=b"1"))
        assert await bench.store.schedules.fold_ends(10) == 1
        assert await bench.store.schedules.fold_ends(10) == 0

    async def test_records_of_skipped_firings_are_kept_as_long_as_runs(self, bench: Bench) -> None:
        found = await made(bench, max_catchup=1)
        bench.clock.advance(5 * MINUTE)
        await fire(bench)
        assert await bench.store.schedules.prune_skips(10) == 0
        bench.clock.advance(31 * DAY)
        assert await bench.store.schedules.prune_skips(10) == 1
        assert await skips(bench, found) == []


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
        assert [(claim.scheduled_for, claim.external_id) for claim in claims] == [(None, None)] * 2
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

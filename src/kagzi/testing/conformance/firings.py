"""Firing schedules: each due instant becomes one run, or is on record as skipped, whatever happens beside it."""

from __future__ import annotations

import asyncio

import pytest

from kagzi.api.operations import CompleteRun, FailRun, RepeatRun, Started, TerminateRun
from kagzi.api.schedules import UpdateSchedule
from kagzi.core.cron import Times, parse_times
from kagzi.core.instant import SECOND
from kagzi.core.run import CANCEL_GRACE, RunStatus
from kagzi.core.schedule import Overlap, Schedule, ScheduleCounts, SkipReason, delay_of, firing_id
from kagzi.store.protocol.schedules import Turned
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench
from kagzi.testing.conformance.schedules import DAY, MINUTE, fire, instants, look, made, runs, skips, until


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

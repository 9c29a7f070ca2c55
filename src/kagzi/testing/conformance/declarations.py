"""Schedules that code declares: whose word counts, and that nothing due is lost by it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from kagzi.api.schedules import DeclareSchedule, UpdateSchedule
from kagzi.core.declaration import Declaration, Verdict
from kagzi.core.schedule import Schedule, SkipReason
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench
from kagzi.testing.conformance.schedules import DAY, MINUTE, fire, look, made, runs, skips


def declared(bench: Bench, worker_id: str, *, starting: bool = True, **fields: Any) -> DeclareSchedule:
    about = {"name": "nightly", "workflow_type": TYPE, "task_queue": QUEUE, "cron_expr": "every 1m", **fields}
    return DeclareSchedule(
        namespace=NAMESPACE,
        schedule_id=bench.new_id(),
        worker_id=worker_id,
        starting=starting,
        declaration=Declaration(hash=repr(sorted(fields.items())), **about),
    )


async def registered(bench: Bench) -> str:
    registration = bench.registration(worker_id=bench.new_id())
    await bench.store.workers.register(registration)
    return registration.worker_id


class TestDeclarations:
    async def test_the_last_worker_to_start_rules_for_as_long_as_it_lives(self, bench: Bench) -> None:
        store = bench.store
        old, new = await registered(bench), await registered(bench)
        assert await store.schedules.declare(declared(bench, old, timeout=DAY, input=b"x" * 5000)) is Verdict.CREATED
        assert await store.schedules.declare(declared(bench, old, timeout=DAY, input=b"x" * 5000)) is Verdict.SAME
        schedule_id = await store.schedules.find(NAMESPACE, "nightly")
        assert schedule_id is not None
        changed = declared(bench, new, priority=2, on_failure="mend", on_failure_queue="ops")
        assert await store.schedules.declare(changed) is Verdict.TAKEN_OVER
        found = await store.schedules.get(NAMESPACE, schedule_id)
        assert found is not None
        assert (found.priority, found.timeout, found.input, found.version) == (2, None, b"[]", "")
        assert (found.on_failure, found.on_failure_queue, found.declared, found.abandoned) == (
            "mend",
            "ops",
            True,
            False,
        )
        looking = declared(bench, old, starting=False, timeout=DAY)
        assert await store.schedules.declare(looking) is Verdict.OTHERS
        await store.workers.deregister(new, NAMESPACE)
        gone = await store.schedules.get(NAMESPACE, schedule_id)
        assert gone is not None
        assert gone.abandoned
        assert await store.schedules.declare(looking) is Verdict.TAKEN_OVER
        found = await store.schedules.get(NAMESPACE, schedule_id)
        assert found is not None
        assert (found.priority, found.timeout, found.on_failure, found.abandoned) == (0, DAY, None, False)

    async def test_what_is_due_stays_due_unless_the_times_change(self, bench: Bench) -> None:
        worker = await registered(bench)
        await bench.store.schedules.declare(declared(bench, worker))
        schedule_id = await bench.store.schedules.find(NAMESPACE, "nightly")
        assert schedule_id is not None
        first = await bench.store.schedules.get(NAMESPACE, schedule_id)
        assert first is not None
        bench.clock.advance(3 * MINUTE)
        await bench.store.schedules.declare(declared(bench, worker, priority=1))
        assert await look(bench, first) == replace(first, priority=1, updated_at=bench.now())
        await fire(bench)
        assert len(await runs(bench, first)) == 3
        bench.clock.advance(3 * MINUTE)
        await bench.store.schedules.declare(declared(bench, worker, cron_expr="every 2m"))
        await fire(bench)
        assert len(await runs(bench, first)) == 3
        moved = await look(bench, first)
        assert moved.next_fire_at is not None
        assert moved.next_fire_at > bench.now()

    async def test_a_catch_up_goes_on_as_the_code_says_now(self, bench: Bench) -> None:
        worker = await registered(bench)
        await bench.store.schedules.declare(declared(bench, worker, max_catchup=50))
        schedule_id = await bench.store.schedules.find(NAMESPACE, "nightly")
        assert schedule_id is not None
        found = await bench.store.schedules.get(NAMESPACE, schedule_id)
        assert found is not None
        bench.clock.advance(40 * MINUTE)
        assert len((await fire(bench)).runs) == 20
        await bench.store.schedules.declare(declared(bench, worker, max_catchup=3))
        assert len((await fire(bench)).runs) == 3
        assert (await fire(bench)).runs == []
        assert [(count, reason) for _, _, count, reason in await skips(bench, found)] == [(17, SkipReason.CATCHUP)]

    async def test_a_person_has_the_last_word_until_it_is_reset(self, bench: Bench) -> None:
        worker = await registered(bench)
        await bench.store.schedules.declare(declared(bench, worker))
        schedule_id = await bench.store.schedules.find(NAMESPACE, "nightly")
        assert schedule_id is not None
        key: dict[str, Any] = {"namespace": NAMESPACE, "schedule_id": schedule_id}
        paused = await bench.store.schedules.update(UpdateSchedule(**key, enabled=False))
        assert isinstance(paused, Schedule)
        assert not paused.changed_by_hand
        assert await bench.store.schedules.declare(declared(bench, worker, priority=1)) is Verdict.TAKEN_OVER
        changed = await bench.store.schedules.update(UpdateSchedule(**key, priority=5))
        assert isinstance(changed, Schedule)
        assert (changed.enabled, changed.changed_by_hand) == (False, True)
        await bench.store.schedules.update(UpdateSchedule(**key, enabled=True))
        assert await bench.store.schedules.declare(declared(bench, worker)) is Verdict.CHANGED_BY_HAND
        reset = await bench.store.schedules.update(UpdateSchedule(**key, reset=True))
        assert isinstance(reset, Schedule)
        assert (reset.priority, reset.changed_by_hand, reset.abandoned) == (5, False, True)
        assert await bench.store.schedules.declare(declared(bench, worker, starting=False)) is Verdict.TAKEN_OVER
        await made(bench, name="by hand")
        by_hand = declared(bench, worker, name="by hand")
        assert await bench.store.schedules.declare(by_hand) is Verdict.MADE_BY_HAND

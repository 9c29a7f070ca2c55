"""Versions of workflows: what workers have offered, and what starts by name get."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import CompleteRun, FailRun, Fork, ParkRun, RepeatRun, Started, StartRun
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.versions import (
    FIRST_VERSION,
    CheckedRun,
    DebounceDefaults,
    Resolved,
    StartDefaults,
    WorkflowInterface,
    WorkflowVersion,
)
from kagzi.core.worker import WorkflowType
from kagzi.store import counting
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, STALE, TYPE, Bench

HOUR = 3600 * SECOND
DAY = 24 * HOUR


async def offer(bench: Bench, *versions: str | None, **fields: Any) -> str:
    """A worker registers with these versions; returns its id."""
    worker_id = bench.new_id()
    types = tuple(WorkflowType(TYPE, version) for version in versions)
    await bench.store.workers.register(bench.registration(**({"worker_id": worker_id, "types": types} | fields)))
    return worker_id


async def listed(bench: Bench, workflow_type: str | None = TYPE) -> dict[str | None, WorkflowVersion]:
    found = await bench.store.versions.read(NAMESPACE, workflow_type, 100, STALE)
    assert not found.more
    return {each.version: each for each in found.items}


def interface(version: str | None, summary: str, schema: str | None = "{}") -> WorkflowInterface:
    return WorkflowInterface(workflow_type=TYPE, version=version, summary=summary, input_schema=schema)


class TestInterfaces:
    async def test_what_the_last_worker_has_told_of_a_version_is_remembered(self, bench: Bench) -> None:
        read = bench.store.versions.read_interface
        assert await read(NAMESPACE, TYPE, "1") is None
        await offer(bench, "1", "2", interfaces=(interface("1", "Sells.", '{"title":"1"}'), interface("2", "Rents.")))
        assert await read(NAMESPACE, TYPE, "1") == interface("1", "Sells.", '{"title":"1"}')
        assert {version: each.summary for version, each in (await listed(bench)).items()} == {
            "1": "Sells.",
            "2": "Rents.",
        }
        # Other code of the same version counts at once, also if its schema is too large to be told.
        await offer(bench, "1", interfaces=(interface("1", "Sells more.", None),))
        assert await read(NAMESPACE, TYPE, "1") == interface("1", "Sells more.", None)
        # A worker that tells nothing, as older ones do, takes nothing back, however late it comes.
        bench.clock.advance(2 * HOUR)
        await offer(bench, "1", "2", "3")
        assert await read(NAMESPACE, TYPE, "1") == interface("1", "Sells more.", None)
        assert await read(NAMESPACE, TYPE, "2") == interface("2", "Rents.")
        assert await read(NAMESPACE, TYPE, "3") == interface("3", "", None)
        assert await read("tenant", TYPE, "1") is None

    async def test_workers_that_execute_every_version_tell_of_those_that_no_other_tells_of(self, bench: Bench) -> None:
        await offer(bench, None, "2", interfaces=(interface(None, "Any."), interface("2", "The second.")))
        assert await bench.store.versions.read_interface(NAMESPACE, TYPE, "1") == interface(None, "Any.")
        assert await bench.store.versions.read_interface(NAMESPACE, TYPE, "2") == interface("2", "The second.")

    async def test_starts_by_name_get_what_was_told_of_their_version(self, bench: Bench) -> None:
        resolve = bench.store.versions.resolve
        assert await resolve(NAMESPACE, TYPE) == Resolved(FIRST_VERSION)
        defaults = StartDefaults(
            queue="slow",
            on_failure="notify",
            on_failure_queue="ops",
            timeout=HOUR,
            limit_name="gpu",
            limit_key="order.tenant",
            debounce=DebounceDefaults(wait=SECOND, most=HOUR, key="order.id"),
            codec=True,
        )
        told = replace(interface("1", ""), defaults=defaults)
        await offer(bench, "1", interfaces=(told,))
        known = Resolved("1", True, told.input_schema, defaults)
        assert await resolve(NAMESPACE, TYPE) == known
        assert await bench.store.versions.read_interface(NAMESPACE, TYPE, "1") == told
        bench.clock.advance(2 * HOUR)
        await offer(bench, "1")
        assert await resolve(NAMESPACE, TYPE) == known, "nothing was told"
        other = replace(told, defaults=StartDefaults(timeout=SECOND))
        await offer(bench, "1", interfaces=(other,))
        assert await resolve(NAMESPACE, TYPE) == Resolved("1", True, told.input_schema, other.defaults)
        bench.clock.advance(SECOND)
        await offer(bench, "2")
        assert await resolve(NAMESPACE, TYPE) == Resolved("2", True), "each version has its own"
        assert (await resolve(NAMESPACE, TYPE, "1")).defaults == other.defaults
        assert await resolve(NAMESPACE, TYPE, "3") == Resolved("3")
        assert await resolve("tenant", TYPE) == Resolved(FIRST_VERSION)
        told = replace(interface(None, ""), defaults=StartDefaults(on_failure="notify"))
        await offer(bench, None, interfaces=(told,))
        await bench.store.versions.set_default(NAMESPACE, TYPE, "7", True)
        of_all = Resolved("7", True, told.input_schema, told.defaults)
        assert await resolve(NAMESPACE, TYPE) == of_all, "of workers that execute every version"


class TestDefaultVersions:
    async def test_a_workflow_that_nobody_has_offered_has_the_first_version(self, bench: Bench) -> None:
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == FIRST_VERSION
        assert await listed(bench) == {}

    async def test_the_version_first_seen_last_is_the_default(self, bench: Bench) -> None:
        await offer(bench, "2")
        bench.clock.advance(SECOND)
        await offer(bench, "1")
        bench.clock.advance(2 * HOUR)
        await offer(bench, "2")  # it was there first, however often it comes back
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == "1"
        assert [each.version for each in (await listed(bench)).values()] == ["1", "2"]

    @pytest.mark.parametrize(("offered", "newest"), [(("9", "10"), "10"), (("b", "a"), "b"), (("2", "1.5"), "1.5")])
    async def test_of_versions_first_seen_together_the_longer_number_is_newer(
        self, bench: Bench, offered: tuple[str, ...], newest: str
    ) -> None:
        await offer(bench, *offered)
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == newest

    async def test_a_default_that_is_set_counts_until_it_is_taken_back(self, bench: Bench) -> None:
        await offer(bench, "1")
        bench.clock.advance(SECOND)
        await offer(bench, "2")
        assert await bench.store.versions.set_default(NAMESPACE, TYPE, "1", False)
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == "1"
        versions = await listed(bench)
        assert [(each.default, each.chosen) for each in versions.values()] == [(False, False), (True, True)]
        assert await bench.store.versions.set_default(NAMESPACE, TYPE, "2", False)
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == "2"
        assert await bench.store.versions.set_default(NAMESPACE, TYPE, None, False)
        versions = await listed(bench)
        assert [(each.default, each.chosen) for each in versions.values()] == [(True, False), (False, False)]

    async def test_a_version_that_nobody_has_offered_is_refused_unless_forced(self, bench: Bench) -> None:
        await offer(bench, "1")
        assert not await bench.store.versions.set_default(NAMESPACE, TYPE, "2", False)
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == "1"
        assert await bench.store.versions.set_default(NAMESPACE, TYPE, "2", True)
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == "2"
        assert (await listed(bench))["2"].first_seen_at is None

    async def test_workers_that_execute_every_version_offer_any(self, bench: Bench) -> None:
        await offer(bench, None)
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == FIRST_VERSION
        assert await bench.store.versions.set_default(NAMESPACE, TYPE, "7", False)
        assert (await bench.store.versions.resolve(NAMESPACE, TYPE)).version == "7"
        versions = await listed(bench)
        assert {version: each.workers for version, each in versions.items()} == {None: 1, "7": 1}

    async def test_namespaces_and_workflows_do_not_share_versions(self, bench: Bench) -> None:
        await offer(bench, "2")
        await bench.store.versions.set_default(NAMESPACE, TYPE, "2", False)
        assert (await bench.store.versions.resolve("tenant", TYPE)).version == FIRST_VERSION
        assert (await bench.store.versions.resolve(NAMESPACE, "refund")).version == FIRST_VERSION
        assert not await bench.store.versions.set_default("tenant", TYPE, "2", False)
        assert (await bench.store.versions.read("tenant", None, 100, STALE)).items == ()

    async def test_what_comes_again_after_the_default_has_changed_finds_its_run(self, bench: Bench) -> None:
        start = bench.start_run(version="1")
        assert isinstance(await bench.answer(start), Started)
        again = await bench.answer(bench.start_run(run_id=start.run_id, version="2"))
        assert isinstance(again, Started)
        assert again.run_id == start.run_id
        assert (await bench.run(start.run_id)).version == "1"


class TestRememberedVersions:
    async def test_what_workers_offer_is_remembered_when_they_are_gone(self, bench: Bench) -> None:
        worker_id = await offer(bench, "1", queues=("b", "a"))
        version = (await listed(bench))["1"]
        assert (version.workers, version.queues) == (1, ("a", "b"))
        await bench.store.workers.deregister(worker_id)
        version = (await listed(bench))["1"]
        assert (version.workers, version.first_seen_at, version.last_seen_at) == (0, bench.now(), bench.now())

    async def test_a_worker_that_is_silent_or_drains_is_not_online(self, bench: Bench) -> None:
        await offer(bench, "1")
        draining = await offer(bench, "1")
        assert (await listed(bench))["1"].workers == 2
        await bench.store.workers.drain(draining)
        assert (await listed(bench))["1"].workers == 1
        bench.clock.advance(STALE)
        assert (await listed(bench))["1"].workers == 0

    async def test_queues_are_gathered(self, bench: Bench) -> None:
        await offer(bench, "1", queues=("b",))
        await offer(bench, "1", queues=("a", "b"))
        await offer(bench, "1", queues=("b",))
        assert (await listed(bench))["1"].queues == ("a", "b")

    async def test_a_type_with_a_queue_of_its_own_waits_there(self, bench: Bench) -> None:
        for queue in ("ops", "night"):
            await offer(bench, types=(WorkflowType(TYPE, "1", queue), WorkflowType("refund", "1")), queues=("a",))
            assert (await listed(bench))["1"].queues == (queue,)
        assert (await listed(bench, "refund"))["1"].queues == ("a",)

    async def test_that_a_type_was_seen_is_written_once_an_hour(self, bench: Bench) -> None:
        began = bench.now()
        await offer(bench, "1")
        bench.clock.advance(HOUR - 1)
        await offer(bench, "1")
        assert (await listed(bench))["1"].last_seen_at == began
        bench.clock.advance(1)
        await offer(bench, "1")
        version = (await listed(bench))["1"]
        assert (version.first_seen_at, version.last_seen_at) == (began, began + HOUR)

    async def test_a_type_that_is_offered_twice_is_remembered_once(self, bench: Bench) -> None:
        await offer(bench, "1", "1", None)
        assert set(await listed(bench)) == {None, "1"}

    async def test_what_nobody_offers_any_more_is_forgotten_with_its_workers(self, bench: Bench) -> None:
        await offer(bench, "1")
        gone = await offer(bench, "2")
        await bench.store.versions.set_default(NAMESPACE, TYPE, "2", False)
        await bench.store.workers.deregister(gone)
        bench.clock.advance(29 * DAY)
        assert await bench.store.workers.prune(100) == 0
        bench.clock.advance(DAY)
        await bench.store.workers.prune(100)
        await bench.store.workers.prune(100)
        versions = await listed(bench)
        assert versions["1"].first_seen_at is not None  # its worker never left
        assert versions["2"].first_seen_at is None  # it is known as the default that somebody chose, and no more


class TestRunsOfVersions:
    async def test_live_runs_are_counted_by_version(self, bench: Bench) -> None:
        await offer(bench, "1", "2")
        began = bench.now()
        sleeping = await bench.started_claim(version="1")
        await bench.done(sleeping, ParkRun(available_at=bench.now() + HOUR, inbox_seq=0))
        bench.clock.advance(SECOND)
        await bench.started_claim(version="1")
        await bench.start(version="1")
        await bench.start(version="1", task_queue="other", delay=HOUR)
        await bench.start(version="2")
        await bench.start(workflow_type="refund", version="3")
        versions = await listed(bench)
        assert set(versions) == {"1", "2"}
        one, two = versions["1"], versions["2"]
        assert (one.pending, one.running, one.sleeping, one.oldest_run_at) == (2, 1, 1, began)
        assert (two.pending, two.running, two.sleeping, two.oldest_run_at) == (1, 0, 0, began + SECOND)
        assert not one.at_least
        refund = (await listed(bench, "refund"))["3"]  # known from its runs alone
        assert (refund.pending, refund.first_seen_at, refund.default) == (1, None, False)
        assert set(await listed(bench, None)) == {"1", "2", "3"}

    async def test_a_version_can_be_retired_when_no_run_and_no_start_needs_it(self, bench: Bench) -> None:
        await offer(bench, "1")
        bench.clock.advance(SECOND)
        await offer(bench, "2")
        claim = await bench.started_claim(version="1")
        assert {version: each.retirable for version, each in (await listed(bench)).items()} == {"1": False, "2": False}
        await bench.done(claim, CompleteRun(output=b"1"))
        assert {version: each.retirable for version, each in (await listed(bench)).items()} == {"1": True, "2": False}
        await bench.store.versions.set_default(NAMESPACE, TYPE, "1", False)
        assert {version: each.retirable for version, each in (await listed(bench)).items()} == {"1": False, "2": True}

    async def test_counting_is_bounded_and_says_so(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counting, "OF_A_QUEUE", 3)
        await offer(bench, "1", "2")
        for _ in range(5):
            await bench.start(version="1", task_queue=QUEUE)
        versions = await listed(bench)
        assert (versions["1"].pending, versions["1"].at_least) == (3, True)
        assert not versions["2"].retirable  # one of the runs that were not looked at may be its own

    async def test_a_list_that_is_cut_says_so(self, bench: Bench) -> None:
        await offer(bench, "1", "2", "3")
        found = await bench.store.versions.read(NAMESPACE, None, 2, STALE)
        assert ([each.version for each in found.items], found.more) == (["3", "2"], True)
        assert not (await bench.store.versions.read(NAMESPACE, None, 3, STALE)).more


class TestMovingRuns:
    """Runs that go on in another version."""

    async def move(self, bench: Bench, *, limit: int = 100, dry_run: bool = False) -> tuple[int, set[str]]:
        moved, queues = 0, set[str]()
        after: tuple[str, int, str] | None = ("", -(2**63), "00000000-0000-0000-0000-000000000000")
        while after is not None:
            page = await bench.store.versions.move_runs(NAMESPACE, TYPE, "1", "2", after, limit, dry_run)
            moved, after = moved + page.moved, page.last
            queues.update(page.queues)
        return moved, queues

    @pytest.mark.parametrize("limit", [2, 100])
    async def test_what_waits_or_sleeps_is_moved_and_nothing_else(self, bench: Bench, limit: int) -> None:
        asleep = await bench.started_claim()
        parked = ParkRun(available_at=bench.now() + 10**12, inbox_seq=0, waiting_for=("s:go",))
        await bench.done(asleep, bench.completed("charge", 1), parked)
        held = await bench.started_claim()
        over = await bench.started_claim()
        await bench.done(over, CompleteRun(output=b"1"))
        waiting = [await bench.start(task_queue=queue) for queue in ("a", "b", "b")]
        others = [await bench.start(workflow_type="other"), await bench.start(version="3")]
        before = [await bench.state(run_id) for run_id in (held.run_id, over.run_id, *others)]

        assert await self.move(bench, limit=limit, dry_run=True) == (4, {"a", "b", QUEUE})
        assert (await bench.run(asleep.run_id)).version == "1"
        assert await self.move(bench, limit=limit) == (4, {"a", "b", QUEUE})
        assert await self.move(bench, limit=limit) == (0, set())

        assert [(await bench.run(run_id)).version for run_id in (asleep.run_id, *waiting)] == ["2"] * 4
        assert [await bench.state(run_id) for run_id in (held.run_id, over.run_id, *others)] == before
        moved = await bench.run(asleep.run_id)
        assert (moved.available_at, moved.waiting_for) == (parked.available_at, ("s:go",))
        assert len(await bench.steps(asleep.run_id)) == 1
        assert await bench.claimed_ids(queues=("a",), types=(WorkflowType(TYPE, "1"),)) == []
        assert await bench.claimed_ids(queues=("a",), types=(WorkflowType(TYPE, "2"),)) == waiting[:1]

    async def test_what_made_a_run_and_comes_again_finds_it_moved(self, bench: Bench) -> None:
        failed = await bench.started_claim()
        await bench.done(failed, FailRun(error=Failure.of(ValueError, "no").encode()))
        again = RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=failed.run_id, keep_steps=True)
        fork = replace(again, run_id=bench.new_id(), fork=Fork(version="1"))
        requests: list[StartRun | RepeatRun] = [bench.start_run(external_id="order-7"), again, fork]
        for request in requests:
            assert isinstance(await bench.answer(request), Started)
        assert (await self.move(bench))[0] == 3
        for request in requests:
            answer = await bench.answer(request)
            assert isinstance(answer, Started), answer
            assert (answer.run_id, (await bench.run(answer.run_id)).version) == (request.run_id, "2")

    async def test_runs_that_were_looked_at_are_moved_unless_somebody_has_claimed_them_since(
        self, bench: Bench
    ) -> None:
        async def seen(run_id: str) -> CheckedRun:
            return CheckedRun(run_id, (await bench.run(run_id)).executions)

        async def move(*runs: CheckedRun) -> tuple[int, tuple[str, ...]]:
            page = await bench.store.versions.move_checked_runs(NAMESPACE, TYPE, "1", "2", runs)
            return page.moved, page.queues

        again = await bench.started_claim()
        await bench.done(again, ParkRun(available_at=bench.now(), inbox_seq=0))
        looked = [await seen(again.run_id)]
        # Somebody goes on with it, records more, and parks it again.
        later = ParkRun(available_at=bench.now() + 10**12, inbox_seq=0)
        await bench.done(await bench.claim(again.run_id), bench.completed("charge", 1), later)
        asleep, held = await bench.started_claim(), await bench.started_claim()
        await bench.done(asleep, later)
        looked += [await seen(claim.run_id) for claim in (asleep, held)]
        waiting = await bench.start(task_queue="a")
        unasked = await bench.start()
        others = [await bench.start(workflow_type="other"), await bench.start(version="3")]
        looked += [await seen(run_id) for run_id in (waiting, *others)]
        stay = (again.run_id, held.run_id, unasked, *others)
        before = [await bench.state(run_id) for run_id in stay]

        assert await move(*looked) == (2, ("a", QUEUE))
        assert await move(*looked) == (0, ())
        assert await move() == (0, ())
        assert [(await bench.run(run_id)).version for run_id in (asleep.run_id, waiting)] == ["2", "2"]
        assert [await bench.state(run_id) for run_id in stay] == before

"""Due runs that no worker of their queue executes."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.api.operations import CancelRun, ParkRun, SendSignal, TerminateRun
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.store.protocol.duties import Offer, SetAside
from kagzi.store.unserved import OVERDUE
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, STALE, TYPE, Bench

ALL = (WorkflowType(TYPE), WorkflowType("rare"))


async def look(bench: Bench, *offers: Offer, limit: int = 100) -> SetAside:
    return await bench.store.duties.set_runs_aside(offers, STALE, limit)


async def offer(bench: Bench, *types: WorkflowType, **fields: Any) -> str:
    """A worker registers with these; returns its id."""
    worker_id = bench.new_id()
    await bench.store.workers.register(bench.registration(**({"worker_id": worker_id, "types": types} | fields)))
    return worker_id


class TestUnservedRuns:
    async def test_what_no_worker_executes_is_set_aside_and_comes_back_with_one_that_does(self, bench: Bench) -> None:
        first = await bench.start(workflow_type="rare")
        second = await bench.start(version="2")
        ours = await bench.start()
        urgent = await bench.start(workflow_type="rare", priority=5)
        elsewhere = await bench.start(workflow_type="rare", task_queue="nobody's")
        runs = (first, second, ours, urgent, elsewhere)
        bench.clock.advance(OVERDUE)
        assert await look(bench) == SetAside()  # there is no worker, so there is nobody to spare

        await offer(bench, WorkflowType(TYPE, "1"))
        before = [await bench.state(run_id) for run_id in runs]
        assert await look(bench) == SetAside(aside=3, left=True, more=True)
        assert await look(bench) == SetAside(left=True)
        assert [await bench.state(run_id) for run_id in runs] == before  # for people nothing has changed
        assert await bench.claimed_ids(types=ALL, limit=1) == [ours]
        assert await bench.claimed_ids(types=ALL) == []
        assert await bench.claimed_ids(types=ALL, queues=("nobody's",)) == [elsewhere]

        await offer(bench, WorkflowType("rare", "1"), WorkflowType(TYPE, "3"))
        done = await look(bench)
        assert (done.aside, done.back, done.left) == (0, ((NAMESPACE, QUEUE),), True)
        assert await bench.claimed_ids(types=ALL) == [urgent, first]  # in their order
        await offer(bench, WorkflowType(TYPE))
        assert (await look(bench)).back == ((NAMESPACE, QUEUE),)
        assert await look(bench) == SetAside()
        assert await bench.claimed_ids(types=ALL) == [second]

    async def test_what_polls_ask_for_counts_beside_what_workers_have_registered(self, bench: Bench) -> None:
        run_id = await bench.start(workflow_type="rare")
        await offer(bench, WorkflowType(TYPE))
        bench.clock.advance(OVERDUE)
        await bench.beat()
        asked = Offer(NAMESPACE, QUEUE, "rare", None)
        assert (await look(bench, asked)).aside == 0
        assert (await look(bench, Offer("other", QUEUE, "rare", None), Offer(NAMESPACE, "b", "rare", "1"))).aside == 1
        assert (await look(bench, asked)).back == ((NAMESPACE, QUEUE),)
        assert await bench.claimed_ids(types=ALL) == [run_id]

    async def test_what_is_due_for_a_moment_or_held_or_asleep_stays(self, bench: Bench) -> None:
        held = await bench.claim(await bench.start(workflow_type="rare"), types=ALL)
        asleep = await bench.claim(await bench.start(workflow_type="rare"), types=ALL)
        await bench.done(asleep, ParkRun(available_at=bench.now() + 100 * OVERDUE, inbox_seq=0))
        await offer(bench, WorkflowType(TYPE))
        bench.clock.advance(OVERDUE)
        late = await bench.start(workflow_type="rare")
        assert await look(bench) == SetAside()
        bench.clock.advance(OVERDUE - 1)
        assert await look(bench) == SetAside()
        assert [(await bench.run(run_id)).status for run_id in (held.run_id, asleep.run_id, late)] == [
            RunStatus.RUNNING,
            RunStatus.SLEEPING,
            RunStatus.PENDING,
        ]

    async def test_a_lost_worker_executes_nothing(self, bench: Bench) -> None:
        await offer(bench, WorkflowType("rare"))
        bench.clock.advance(STALE)
        await offer(bench, WorkflowType(TYPE))
        await bench.start(workflow_type="rare")
        bench.clock.advance(OVERDUE)
        assert (await look(bench)).aside == 1

    @pytest.mark.parametrize("how", [CancelRun, TerminateRun])
    async def test_what_is_set_aside_can_be_ended(self, bench: Bench, how: type[CancelRun | TerminateRun]) -> None:
        unbegun = await bench.start(workflow_type="rare")
        await offer(bench, WorkflowType(TYPE))
        bench.clock.advance(OVERDUE)
        assert (await look(bench)).aside == 1
        await bench.answer(how(namespace=NAMESPACE, run_id=unbegun))
        assert (await bench.run(unbegun)).status is RunStatus.CANCELLED
        assert await look(bench) == SetAside()

    async def test_news_of_a_run_that_is_set_aside_are_there_when_it_comes_back(self, bench: Bench) -> None:
        begun = await bench.started_claim(version="2")
        await bench.done(begun, ParkRun(available_at=bench.now(), inbox_seq=0, waiting_for=("s:go",)))
        await offer(bench, WorkflowType(TYPE, "1"))
        bench.clock.advance(OVERDUE)
        assert (await look(bench)).aside == 1
        await bench.answer(SendSignal(namespace=NAMESPACE, run_id=begun.run_id, name="go", value=b"1", key="k"))
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=begun.run_id))
        await offer(bench, WorkflowType(TYPE, "2"))
        await look(bench)
        claim = await bench.claim(begun.run_id)
        assert (claim.inbox_seq, claim.cancel_requested) == (2, True)

    async def test_queues_count_what_is_set_aside(self, bench: Bench) -> None:
        await bench.start(workflow_type="rare")
        due = bench.now()
        await offer(bench, WorkflowType(TYPE))
        bench.clock.advance(OVERDUE)
        before = (await bench.store.overview.load(STALE)).queues
        assert (await look(bench)).aside == 1
        assert (await bench.store.overview.load(STALE)).queues == before
        assert [(queue.ready, queue.oldest_due_at) for queue in before] == [(1, due)]

    async def test_what_nobody_executes_hides_nothing_behind_it(self, bench: Bench) -> None:
        """However many workflows and versions there are of it, in this namespace and in others."""
        many = [bench.start_run(workflow_type=f"gone-{number}") for number in range(1100)]
        versions = [bench.start_run(workflow_type="rare", version=str(number)) for number in range(1100)]
        await bench.apply([*many, *versions])
        await offer(bench, WorkflowType(TYPE))
        bench.clock.advance(OVERDUE)
        assert (await look(bench, limit=3000)).aside == 2200

        await offer(bench, WorkflowType("rare", "999"))
        assert (await look(bench)).back == ((NAMESPACE, QUEUE),)
        assert await bench.claimed_ids(types=ALL) == [versions[999].run_id]

        await offer(bench, WorkflowType("rare"))  # each version in its turn
        for _ in range(3):
            assert (await look(bench)).more
        assert len(await bench.claimed_ids(types=ALL)) == 3

    async def test_a_look_is_bounded(self, bench: Bench) -> None:
        runs = [await bench.start(workflow_type="rare") for _ in range(3)]
        await offer(bench, WorkflowType(TYPE))
        bench.clock.advance(OVERDUE)
        assert [(await look(bench, limit=2)).aside for _ in range(3)] == [2, 1, 0]
        await offer(bench, WorkflowType("rare"))
        assert [(done.more, done.left) for done in [await look(bench, limit=2) for _ in range(3)]] == [
            (True, True),
            (True, False),
            (False, False),
        ]
        assert await bench.claimed_ids(types=ALL) == runs

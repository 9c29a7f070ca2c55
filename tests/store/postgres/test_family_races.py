"""Parents and children that are changed at the same time: in both orders, and by chance on two stores at once."""

from __future__ import annotations

import asyncio
import random
from itertools import permutations
from typing import Any

import asyncpg
import pytest

from kagzi.api.operations import (
    CancelRun,
    ChunkAnswer,
    CompleteRun,
    ContinueRun,
    FailRun,
    Fork,
    ParkRun,
    RepeatRun,
    RetryRun,
    SendSignal,
    TerminateRun,
    Write,
)
from kagzi.api.workers import Claim
from kagzi.core.conflict import OnConflict
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.step import StepStatus
from kagzi.store.postgres.cancels import apply_requests, lock_runs, wake_run
from kagzi.store.postgres.duties import Duties
from kagzi.store.postgres.signals import apply_signals
from kagzi.store.postgres.starts import apply_starts
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.postgres.versions import Versions
from kagzi.testing.conformance.bench import NAMESPACE, Bench
from kagzi.testing.conformance.children import ERROR, FAR, parent_and_child, spawn
from tests.campaigns import length
from tests.store.postgres.test_cancel_races import Ring, Side, ring  # noqa: F401 (a fixture)
from tests.store.shared import OneConnection

pytestmark = pytest.mark.postgres

SIDES = ("child ends", "parent records", "parent parks", "parent ends", "signal", "cancel", "terminate")
# Beside those: what nobody waits for, or what does not wait itself.
OTHERS = (
    "spawn",
    "retry",
    "deadline",
    "recovery",
    "grace",
    "prune",
    "cascade",
    "restart",
    "fork",
    "move",
    "wake",
    "claim",
    "continue",
)
TURNS = length(25, 2500)  # of four batches each
MOVED, BEGINNING = "moved", ("", -(2**63), "00000000-0000-0000-0000-000000000000")
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def side(ring: Ring, name: str, parent: Claim, child: Claim) -> Side:  # noqa: F811
    bench = ring.bench
    match name:
        case "child ends":
            return ring.chunk(child, CompleteRun(output=b"7"))
        case "parent records":
            return ring.chunk(parent, bench.completed("other", 1))
        case "parent parks":
            return ring.chunk(parent, ParkRun(available_at=bench.now() + FAR, inbox_seq=0, waiting_for=("c:*", "s:x")))
        case "parent ends":
            return ring.chunk(parent, CompleteRun(output=b"1", unless_cancelled=True))
        case "cancel":
            return ring.cancel(parent.run_id)
        case "terminate":
            return ring.terminate(parent.run_id)
        case "spawn":
            return ring.chunk(parent, spawn(bench, "another"))
        case "retry":
            return ring.chunk(parent, RetryRun(available_at=bench.now(), keep_seq=0, error=ERROR))
        case "claim":
            return ring.claim()
        case "continue":
            return ring.chunk(parent, ContinueRun(input=b"[]", version=parent.version))
        case "signal":
            return lambda connection: apply_signals(connection, [_signal(parent)], bench.now())

    async def other(connection: Any) -> Any:
        pool: Any = OneConnection(connection)
        indexes: Any = bench.store.duties.indexes  # type: ignore[attr-defined]
        duties, now = Duties(pool, bench.now, indexes), bench.now()
        match name:
            case "deadline":
                return await duties.time_out_runs(10)
            case "recovery":
                return await duties.recover_runs(10, 1, lambda _: 0)
            case "grace":
                return await duties.end_cancelled_runs(10)
            case "prune":
                return await duties.prune_runs(10, None)
            case "cascade":
                return await duties.cascade_ends(10)
            case "restart":
                start = bench.start_run(external_id="old", on_conflict=OnConflict.RESTART_FINISHED)
                return await apply_starts(connection, [start], now)
            case "fork":
                fork = Fork(from_step=None)
                source = {"of_run_id": parent.run_id, "keep_steps": True, "keep_id": False, "fork": fork}
                request = RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), **source)
                return await apply_requests(connection, [request], now)
            case "wake":
                async with connection.transaction():
                    await lock_runs(connection, [(NAMESPACE, parent.run_id)])
                    return await wake_run(connection, NAMESPACE, parent.run_id, now)
        assert name == "move"
        return await Versions(pool, bench.now, indexes).move_runs(NAMESPACE, MOVED, "1", "2", BEGINNING, 10, False)

    return other


def _signal(parent: Claim) -> SendSignal:
    return SendSignal(namespace=NAMESPACE, run_id=parent.run_id, name="x", value=b"1", key="k")


async def check_family(bench: Bench, parent: str, child: str) -> None:
    """What must hold of a parent and its child, whatever has happened to them."""
    above, below = await bench.run(parent), await bench.run(child)
    (step,) = [step for step in await bench.steps(parent) if step.child_run_id == child]
    if not above.status.finished:
        assert (step.status is StepStatus.RUNNING) == (not below.status.finished), (above, below, step)
    if above.status is RunStatus.SLEEPING and step.status is not StepStatus.RUNNING and "c:*" in above.waiting_for:
        assert (above.available_at or 0) <= bench.now(), above
    if above.status.finished and not below.status.finished:
        assert child in [request.run_id for request in await bench.store.duties.cascade_ends(1000)]


@pytest.mark.parametrize(("first", "second"), [pair for pair in permutations(SIDES, 2) if "child ends" in pair])
async def test_a_child_ends_while_its_parent_is_changed(
    ring: Ring,  # noqa: F811
    connection: asyncpg.Connection,
    first: str,
    second: str,
) -> None:
    parent, child = await parent_and_child(ring.bench)
    answers = await ring.fight(side(ring, first, parent, child), side(ring, second, parent, child))
    assert ChunkAnswer.LEASE_LOST not in answers or first == "terminate"
    await check_family(ring.bench, parent.run_id, child.run_id)
    assert await connection.fetchval(DEADLOCKS) == 0


async def test_whatever_meets_of_a_family_ends_in_both_orders(
    ring: Ring,  # noqa: F811
    connection: asyncpg.Connection,
) -> None:
    """One begins, and the other waits for it or passes it by: none of them waits in a circle, and no end is lost. Every
    pair of which one is not among SIDES; those have tests of their own."""
    bench = ring.bench
    pairs = [pair for pair in permutations((*SIDES, *OTHERS), 2) if not set(pair) <= set(SIDES)]
    for first, second in pairs[:: length(5, 1)]:
        await bench.start(task_queue="moved", workflow_type=MOVED)
        old = await bench.start(external_id="old", task_queue="moved", on_conflict=OnConflict.RESTART_FINISHED)
        await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=old))
        parent, child = await parent_and_child(bench, timeout=20 * SECOND)
        if {"deadline", "grace"} & {first, second}:
            bench.clock.advance(25 * SECOND)
        if "recovery" in (first, second):
            bench.clock.advance(parent.lease + SECOND)
        await ring.meet(side(ring, first, parent, child), side(ring, second, parent, child))
        await check_family(bench, parent.run_id, child.run_id)
        for run in await connection.fetch("SELECT run_id FROM kagzi.workflow_runs WHERE finished_at IS NULL"):
            await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=str(run["run_id"])))
    assert await connection.fetchval(DEADLOCKS) == 0


async def test_duties_leave_a_child_whose_parent_is_held(bench: Bench, postgres_database: str) -> None:
    parent, child = await parent_and_child(bench, timeout=20 * SECOND)
    other = await asyncpg.connect(postgres_database)
    async with other.transaction():
        await other.execute(
            "SELECT FROM kagzi.workflow_runs WHERE run_id = $1::text::uuid FOR NO KEY UPDATE", parent.run_id
        )
        bench.clock.advance(25 * SECOND)
        assert (await bench.store.duties.time_out_runs(10)).runs == []
        bench.clock.advance(10 * SECOND)
        recovered = (await bench.store.duties.recover_runs(10, 1, lambda _: 0)).runs
        assert child.run_id not in [run.run_id for run in recovered]
    await other.close()
    changed = await bench.store.duties.time_out_runs(10)
    assert [run.run_id for run in changed.runs] == [child.run_id]
    assert [told.run_id for told in changed.woken] == [parent.run_id]


async def test_families_in_any_order_never_deadlock(
    bench: Bench, connection: asyncpg.Connection, postgres_database: str
) -> None:
    other = PostgresStore(postgres_database, now=bench.clock.now)
    chance = random.Random(5)
    families: list[tuple[str, str]] = []
    for turn in range(TURNS):
        queue = f"turn {turn}"  # parents of earlier turns may be claimable once more
        await bench.apply([bench.start_run(task_queue=queue) for _ in range(4)])
        parents = await bench.claims(queues=(queue,))
        await bench.apply([bench.chunk(each, *[spawn(bench, f"pay#{n}") for n in range(2, 6)]) for each in parents])
        children = await bench.claims(queues=("children",))
        assert len(children) == 16
        families += [((await bench.run(each.run_id)).parent_run_id or "", each.run_id) for each in children]
        writes: list[Write] = []
        for child in children:
            end = chance.choice((CompleteRun(output=b"7"), FailRun(error=ERROR)))
            terminate = TerminateRun(namespace=NAMESPACE, run_id=child.run_id)
            writes.append(chance.choice((bench.chunk(child, end), bench.chunk(child, end), terminate)))
        for parent in parents:
            park = ParkRun(available_at=bench.now() + FAR, inbox_seq=0, waiting_for=("c:*",))
            writes += [
                bench.chunk(parent, spawn(bench, "late", task_queue="late", external_id=f"late {chance.randrange(3)}")),
                chance.choice((bench.chunk(parent, park), bench.chunk(parent, CompleteRun(output=b"1")))),
                CancelRun(namespace=NAMESPACE, run_id=parent.run_id),
                SendSignal(namespace=NAMESPACE, run_id=parent.run_id, name="x", value=b"1", key="k"),
            ]
        chance.shuffle(writes)
        parts = [writes[start::4] for start in range(4)]
        duties = [bench.store.duties.end_cancelled_runs(10), other.duties.recover_runs(10, 3, lambda _: 0)]
        applied = [(bench.store if n % 2 else other).work.apply(part) for n, part in enumerate(parts)]
        await asyncio.gather(*applied, *duties)
        if turn % 10 == 9:
            await bench.store.work.apply(await bench.store.duties.cascade_ends(1000))
            for parent_id, child_id in families:
                await check_family(bench, parent_id, child_id)
            families.clear()
    for parent_id, child_id in families:
        await check_family(bench, parent_id, child_id)
    assert await connection.fetchval(DEADLOCKS) == 0
    await other.close()

"""What holds runs back, fires them and does things to many of them, beside all that happens to a family of runs: one
side is stopped before one of its statements, the other one comes meanwhile, in both orders. None waits in a
circle."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import asyncpg
import pytest

from kagzi.api.operations import CompleteRun, ParkRun, TerminateRun
from kagzi.api.workers import DeclaredLimit
from kagzi.api.workflows import RunFilter
from kagzi.core.conflict import OnConflict
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.job import JobAction, JobOptions
from kagzi.core.schedule import Overlap
from kagzi.store.postgres.jobs import Jobs
from kagzi.store.postgres.limits import Limits
from kagzi.store.postgres.schedules import Schedules
from kagzi.store.postgres.workers import Workers
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench
from kagzi.testing.conformance.children import parent_and_child
from kagzi.testing.conformance.jobs import start_job
from kagzi.testing.conformance.schedules import fire, made, until
from tests.campaigns import length
from tests.store.postgres.test_cancel_races import Ring, Side, ring  # noqa: F401 (a fixture)
from tests.store.postgres.test_family_races import DEADLOCKS, MOVED, OTHERS, SIDES, check_family, side
from tests.store.postgres.test_locks import somebody_waits
from tests.store.shared import OneConnection

pytestmark = pytest.mark.postgres

JOBS = {f"job: {action}": action for action in JobAction}
OPTIONS = {JobAction.MOVE: JobOptions(from_version="1", version="2")}
FLOW = ("unhold", "set limit", "pause", "register", "fire", "fold", *JOBS)
EVERY = length(17, 1)  # of the pairs
STOPS = length((1,), (1, 2, 3, 4))  # before which of its statements the first stops


class _Stepped:
    """A connection that waits before one of its statements until it may go on."""

    def __init__(self, connection: Any, before: int) -> None:
        self._connection = connection
        self._left = before
        self.stopped = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if name not in ("fetch", "fetchrow", "fetchval", "execute"):
            return found

        async def asked(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                self.stopped.set()
                await self.go_on.wait()
            return await found(*args, **kwargs)

        return asked


async def _meet(ring: Ring, first: Side, second: Side, before: int) -> None:  # noqa: F811
    stepped: Any = _Stepped(ring._first, before)

    async def slowly() -> None:
        async with ring._first.transaction():
            await first(stepped)
        stepped.stopped.set()

    slow = asyncio.ensure_future(slowly())
    await stepped.stopped.wait()
    quick = asyncio.ensure_future(ring._alone(second))
    while not quick.done() and not await somebody_waits(ring._watcher):
        await asyncio.sleep(0.001)
    stepped.go_on.set()
    await asyncio.gather(slow, quick)


def _flow(ring: Ring, name: str) -> Side:  # noqa: F811
    bench = ring.bench

    async def flow(connection: Any) -> Any:
        pool: Any = OneConnection(connection)
        given: Any = (pool, bench.now, bench.store.duties.indexes)  # type: ignore[attr-defined]
        limits = Limits(*given)
        match name:
            case "unhold":
                return await limits.unhold(NAMESPACE, ())
            case "set limit":
                return await limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(concurrency=2))
            case "pause":
                return await limits.pause(NAMESPACE, Scope.WORKFLOW, TYPE, "ops", "")
            case "register":
                declared = (DeclaredLimit(TYPE, 3, 2), DeclaredLimit("other", 1))
                await Workers(*given).register(bench.registration(worker_id=bench.new_id(), limits=declared))
                return await limits.declare(NAMESPACE)
            case "fire":
                return await Schedules(*given).fire(10, bench.new_id)
            case "fold":
                return await Schedules(*given).fold_ends(10)
        return await Jobs(*given).run_batch(bench.new_id)

    return flow


async def _scene(ring: Ring, names: tuple[str, str]) -> tuple[Any, Any]:  # noqa: F811
    """A family, runs that are held for a limit, schedules that are due and have runs, and a job."""
    bench = ring.bench
    parent, child = await parent_and_child(bench, timeout=20 * SECOND)
    for overlap in (Overlap.CANCEL_PREVIOUS, Overlap.BUFFER):
        schedule = await made(bench, overlap=overlap, cron_expr="every 1s", on_failure=None)
        until(bench, schedule.next_fire_at)
        await fire(bench)
    await bench.start(task_queue="moved", workflow_type=MOVED)
    old = await bench.start(external_id="old", task_queue="moved", on_conflict=OnConflict.RESTART_FINISHED)
    await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=old))
    for claim in await bench.claims():  # one sleeps, one has ended, the others run
        operation = ParkRun(available_at=bench.now() + SECOND, inbox_seq=claim.inbox_seq)
        await bench.done(claim, operation)
    done = await bench.start()
    await bench.done(await bench.claim(done), CompleteRun(output=b"1"))
    await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(concurrency=1))
    await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(concurrency=5))
    for _ in range(2):
        await bench.start(limit_key="a")
    bench.clock.advance(2 * SECOND)
    await bench.claims()  # some are held now
    for name in names:
        if name in JOBS:
            await start_job(bench, JOBS[name], RunFilter(), options=OPTIONS.get(JOBS[name], JobOptions()))
    if {"deadline", "grace"} & set(names):
        bench.clock.advance(25 * SECOND)
    if "recovery" in names:
        bench.clock.advance(parent.lease + SECOND)
    return parent, child


@pytest.mark.timeout(length(300, 1800))
async def test_whatever_meets_what_holds_fires_and_changes_many_ends(
    ring: Ring,  # noqa: F811
    connection: asyncpg.Connection,
) -> None:
    bench: Bench = ring.bench
    pairs = [pair for pair in permutations((*FLOW, *SIDES, *OTHERS), 2) if set(pair) & set(FLOW)]
    for place, (first, second) in enumerate(pairs[::EVERY]):
        for before in STOPS:
            parent, child = await _scene(ring, (first, second))
            one, other = [
                _flow(ring, name) if name in FLOW else side(ring, name, parent, child) for name in (first, second)
            ]
            await _meet(ring, one, other, before + place % 2)
            if "delete" not in first + second and "prune" not in (first, second):
                await check_family(bench, parent.run_id, child.run_id)
            assert await connection.fetchval(DEADLOCKS) == 0, (first, second, before)
            await _tidy(bench, connection)


async def _tidy(bench: Bench, connection: asyncpg.Connection) -> None:
    await connection.execute("UPDATE kagzi.jobs SET status = 'CANCELLED', next_at = NULL WHERE next_at IS NOT NULL")
    await connection.execute("DELETE FROM kagzi.limits")
    for row in await connection.fetch("SELECT schedule_id FROM kagzi.schedules"):
        await bench.store.schedules.delete(NAMESPACE, str(row["schedule_id"]))
    live = "SELECT run_id FROM kagzi.workflow_runs WHERE finished_at IS NULL AND claim_key IS DISTINCT FROM -1"
    for row in await connection.fetch(live):
        await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=str(row["run_id"])))

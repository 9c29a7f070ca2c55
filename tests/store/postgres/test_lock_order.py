"""Rows are locked in one order, whatever the ids are: shown one lock after the other, not by chance.

Somebody holds the row that comes first in that order. Who locks several rows then waits for it, and holds none of the
others yet: so no two can wait in a circle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from kagzi.api.operations import CompleteRun, FailRun, TerminateRun
from kagzi.api.workers import Claim
from kagzi.api.workflows import RunFilter
from kagzi.core.flow import Scope
from kagzi.core.job import JobAction
from kagzi.store.postgres.cancels import apply_requests
from kagzi.store.postgres.chunks import apply_chunks
from kagzi.store.postgres.connection import Connector
from kagzi.store.postgres.jobs import Jobs
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import NAMESPACE
from kagzi.testing.conformance.children import ERROR, parent_and_child, spawn
from kagzi.testing.conformance.jobs import start_job
from tests.store.postgres.test_locks import until_somebody_waits
from tests.store.shared import OneConnection

pytestmark = pytest.mark.postgres

BELOW = "00000000-0000-7000-8000-00000000000{}"  # less than every id that a bench makes
FREE = "SELECT run_id::text FROM kagzi.workflow_runs WHERE run_id = ANY ($1::uuid[]) FOR UPDATE SKIP LOCKED"


def end(bench: Bench, claims: list[Claim]) -> Callable[[Any], Awaitable[Any]]:
    return lambda c: apply_chunks(c, [bench.chunk(claim, CompleteRun(output=b"1")) for claim in claims], bench.now())


def end_large(bench: Bench, claims: list[Claim]) -> Callable[[Any], Awaitable[Any]]:
    chunks = [bench.chunk(claim, CompleteRun(output=b"x" * 5000)) for claim in claims]
    return lambda c: apply_chunks(c, chunks, bench.now())


def fail(bench: Bench, claims: list[Claim]) -> Callable[[Any], Awaitable[Any]]:
    chunks = [bench.chunk(claim, FailRun(error=ERROR)) for claim in claims]
    return lambda c: apply_chunks(c, chunks, bench.now())


def record(bench: Bench, claims: list[Claim]) -> Callable[[Any], Awaitable[Any]]:
    chunks = [bench.chunk(claim, bench.completed("a", 1)) for claim in claims]
    return lambda c: apply_chunks(c, chunks, bench.now())


def cancel(bench: Bench, claims: list[Claim]) -> Callable[[Any], Awaitable[Any]]:
    request = TerminateRun(namespace=NAMESPACE, run_id=claims[0].run_id)
    return lambda c: apply_requests(c, [request], bench.now())


async def check_order(url: str, rows: list[str], side: Callable[[Any], Awaitable[Any]], place: int = 0) -> None:
    """Checks that the side locks these rows in the order of their ids: while it waits for the one at this place, it
    holds none behind it."""
    first, *others = sorted(rows)[place:]
    holder, watcher = await asyncpg.connect(url), await asyncpg.connect(url)
    ours = await Connector(url).connect(lock_timeout="60s", statement_timeout="60s")
    holding = holder.transaction()
    await holding.start()
    await holder.execute("SELECT FROM kagzi.workflow_runs WHERE run_id = $1::text::uuid FOR UPDATE", first)
    waiting = asyncio.ensure_future(side(ours))
    await until_somebody_waits(watcher)
    async with watcher.transaction():
        free = {row[0] for row in await watcher.fetch(FREE, others)}
    await holding.rollback()
    await waiting
    for connection in (holder, watcher, ours):
        await connection.close()
    assert free == set(others)


@pytest.mark.parametrize("make", [end, end_large, fail, cancel], ids=lambda make: make.__name__)
@pytest.mark.parametrize("child", ["above", "below"])
async def test_a_child_that_ends_and_its_parent(
    bench: Bench, postgres_database: str, make: Callable[..., Any], child: str
) -> None:
    below = {"run_id": BELOW.format(1)} if child == "below" else {}
    parent, one = await parent_and_child(bench, **below)
    assert (one.run_id < parent.run_id) == (child == "below")
    await check_order(postgres_database, [parent.run_id, one.run_id], make(bench, [one]))


@pytest.mark.parametrize("make", [end, end_large, fail, record], ids=lambda make: make.__name__)
@pytest.mark.parametrize("backwards", [False, True])
async def test_the_runs_of_a_batch_and_their_parents(
    bench: Bench, postgres_database: str, make: Callable[..., Any], backwards: bool
) -> None:
    families = [
        await parent_and_child(bench, run_id=BELOW.format(1)),
        await parent_and_child(bench),
        await parent_and_child(bench, run_id=BELOW.format(2)),
    ]
    children = sorted([child for _, child in families], key=lambda claim: claim.run_id, reverse=backwards)
    locked = children if make is record else [claim for family in families for claim in family]
    await check_order(postgres_database, [claim.run_id for claim in locked], make(bench, children))


@pytest.mark.parametrize("action", [JobAction.CANCEL, JobAction.TERMINATE])
async def test_a_job_that_ends_runs_and_their_parents(bench: Bench, postgres_database: str, action: JobAction) -> None:
    """All before the first is changed, also where a parent comes after its child."""
    parent = await bench.started_claim()
    await bench.done(parent, *[spawn(bench, f"step {n}", run_id=BELOW.format(n)) for n in (1, 2, 3)])
    rows = [parent.run_id, *(claim.run_id for claim in await bench.claims(queues=("children",)))]
    assert max(rows) == parent.run_id
    await start_job(bench, action, RunFilter(task_queue="children"), children=True)

    async def batch(connection: Any) -> None:
        pool: Any = OneConnection(connection)
        indexes: Any = bench.store.jobs.indexes  # type: ignore[attr-defined]
        turn = await Jobs(pool, bench.now, indexes).run_batch(bench.new_id)
        assert turn.job is not None
        assert turn.job.done == 3

    await check_order(postgres_database, rows, batch, place=1)


@pytest.mark.parametrize("which", ["claim", "free"])
async def test_limits_are_locked_before_runs(bench: Bench, postgres_database: str, which: str) -> None:
    await bench.store.limits.change(NAMESPACE, Scope.QUEUE, "orders", LimitChange(concurrency=1))
    runs = [await bench.start() for _ in range(3)]
    running = await bench.claim(runs[0], limit=1)
    assert await bench.claims() == ()  # which holds the others
    await bench.done(running, CompleteRun(output=b"1"))
    holder, watcher = await asyncpg.connect(postgres_database), await asyncpg.connect(postgres_database)
    async with holder.transaction():
        await holder.execute("SELECT FROM kagzi.limits FOR UPDATE")
        ours: Any = bench.claims() if which == "claim" else bench.store.limits.unhold(NAMESPACE, ())
        waiting = asyncio.ensure_future(ours)
        await until_somebody_waits(watcher)
        async with watcher.transaction():
            assert {row[0] for row in await watcher.fetch(FREE, runs)} == set(runs)
    await asyncio.wait([waiting])
    await holder.close()
    await watcher.close()


@pytest.mark.parametrize("which", ["claim", "free"])
async def test_who_holds_limits_waits_for_no_run(bench: Bench, postgres_database: str, which: str) -> None:
    """Which may be that of a start that joins it, for example, whose transaction asks for limits later."""
    await bench.store.limits.change(NAMESPACE, Scope.QUEUE, "orders", LimitChange(concurrency=1))
    runs = [await bench.start() for _ in range(3)]
    if which == "free":
        running = await bench.claim(runs.pop(0), limit=1)
        assert await bench.claims() == ()
        await bench.done(running, CompleteRun(output=b"1"))
    holder = await asyncpg.connect(postgres_database)
    async with holder.transaction():
        await holder.execute("SELECT FROM kagzi.workflow_runs WHERE run_id = $1::text::uuid FOR UPDATE", runs[0])
        await bench.store.limits.unhold(NAMESPACE, ())
        assert runs[0] not in [claim.run_id for claim in await bench.claims()]  # and Locked was not raised
    await bench.store.limits.unhold(NAMESPACE, ())
    assert [claim.run_id for claim in await bench.claims()] == runs[:1]
    await holder.close()

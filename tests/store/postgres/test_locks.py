"""What only shows when two transactions meet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import asyncpg
import pytest

from kagzi.api.operations import Chunk, ChunkAnswer, CompleteRun, HandBackRun
from kagzi.api.workers import Heartbeat
from kagzi.core.run import RunStatus
from kagzi.engine.answers import give_answers
from kagzi.engine.batcher import Batcher
from kagzi.engine.lock_lane import LockLane
from kagzi.engine.settings import EngineSettings
from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import LEASE, NAMESPACE

pytestmark = pytest.mark.postgres


async def somebody_waits(connection: asyncpg.Connection) -> bool:
    """Whether a statement of a store waits for a lock of another transaction: in this database, as pg_locks shows those
    of the whole server, and tests that run beside this one have theirs there."""
    waiting = (
        "SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE NOT granted AND datname = current_database() AND application_name = 'kagzi')"
    )
    return bool(await connection.fetchval(waiting))


async def until_somebody_waits(connection: asyncpg.Connection) -> None:
    async with asyncio.timeout(60):
        while not await somebody_waits(connection):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("ending", [None, CompleteRun(output=b"1"), HandBackRun()])
async def test_a_write_that_waits_for_a_takeover_is_refused(
    bench: Bench, connection: asyncpg.Connection, postgres_database: str, ending: CompleteRun | HandBackRun | None
) -> None:
    """The fence is looked at again once the row is free, not only when the statement began."""
    claim = await bench.started_claim()
    other = await asyncpg.connect(postgres_database)
    takeover = other.transaction()
    await takeover.start()
    await other.execute("UPDATE kagzi.workflow_runs SET token = $1", bench.new_id())
    operations = (bench.completed("charge", 1),) if ending is None else (bench.completed("charge", 1), ending)

    stale = asyncio.create_task(bench.send(claim, *operations))
    await until_somebody_waits(connection)
    assert not stale.done()
    await takeover.commit()

    assert await stale is ChunkAnswer.LEASE_LOST
    run, steps = await bench.state(claim.run_id)
    assert (run.status, steps) == (RunStatus.RUNNING, [])
    await other.close()


async def test_a_takeover_waits_for_a_write_and_its_history_has_the_step(
    bench: Bench, connection: asyncpg.Connection, postgres_database: str
) -> None:
    claim = await bench.started_claim()
    other = await asyncpg.connect(postgres_database)
    write = other.transaction()
    await write.start()
    await other.fetch("SELECT FROM kagzi.workflow_runs FOR NO KEY UPDATE")
    await other.execute(
        "INSERT INTO kagzi.step_runs (namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at)"
        " VALUES ($1, $2, 'charge', 1, 'FUNCTION', 'COMPLETED', 1, 0)",
        NAMESPACE,
        claim.run_id,
    )

    leaving = asyncio.create_task(bench.store.workers.deregister(bench.worker_id))
    await until_somebody_waits(connection)
    await write.commit()
    await leaving

    again = await bench.claim(claim.run_id)
    assert [step.step_id for step in again.history] == ["charge"]
    await other.close()


async def test_many_writers_of_the_same_runs_in_any_order_never_deadlock(
    bench: Bench, connection: asyncpg.Connection, postgres_database: str
) -> None:
    """Commits, heartbeats, recovery and leaving, all at once; each locks its runs in the order of their keys."""
    await bench.apply([bench.start_run() for _ in range(60)])
    claims = await bench.claims()
    other = PostgresStore(postgres_database, now=bench.clock.now)
    chance = random.Random(7)
    held = tuple((claim.run_id, claim.token) for claim in claims)

    async def write(store: PostgresStore, name: str) -> None:
        for turn in range(25):
            shuffled = chance.sample(claims, len(claims))
            chunks = [bench.chunk(claim, bench.completed(f"{name}-{turn}", turn)) for claim in shuffled]
            assert await bench.apply(chunks, store) == [ChunkAnswer.DONE] * len(claims)

    async def beat(store: PostgresStore) -> None:
        for _ in range(25):
            shuffled = tuple(chance.sample(held, len(held)))
            (beaten,) = await store.workers.heartbeats([Heartbeat(worker_id=bench.worker_id, held=shuffled, heard=10)])
            assert beaten.answer.lost == ()
            await store.duties.recover_runs(10, 3, lambda crashes: crashes)

    store = bench.store
    assert isinstance(store, PostgresStore)
    await asyncio.gather(*(write(*pair) for pair in ((store, "a"), (other, "b"))), beat(store), beat(other))

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await connection.fetchval("SELECT count(*) FROM kagzi.step_runs") == 2 * 25 * 60
    assert await connection.fetchval(deadlocks) == 0
    await other.close()


async def test_starts_of_the_same_ids_in_any_order_never_deadlock(bench: Bench, postgres_database: str) -> None:
    other = PostgresStore(postgres_database, now=bench.clock.now)
    chance = random.Random(7)
    for turn in range(10):
        names = [f"order-{turn}-{number}" for number in range(40)]
        batches = [[bench.start_run(external_id=name) for name in chance.sample(names, len(names))] for _ in range(2)]
        answers = await asyncio.gather(bench.apply(batches[0]), bench.apply(batches[1], other))
        ids = [
            {start.external_id: answer.run_id for start, answer in zip(batch, given, strict=True)}  # type: ignore[union-attr]
            for batch, given in zip(batches, answers, strict=True)
        ]
        assert ids[0] == ids[1]
        assert sum(not answer.already_exists for given in answers for answer in given) == 40  # type: ignore[union-attr]
    await other.close()


async def test_concurrent_claims_respect_their_limits_and_share_nothing(bench: Bench, postgres_database: str) -> None:
    await bench.apply([bench.start_run() for _ in range(100)])
    stores = [PostgresStore(postgres_database, now=bench.clock.now) for _ in range(4)]
    polls = [bench.poll(limit=7, worker_id=bench.new_id()) for _ in range(20)]

    answers = await asyncio.gather(*(stores[number % 4].work.claim(poll, LEASE) for number, poll in enumerate(polls)))

    claimed = [claim.run_id for polled in answers for claim in polled.claims]
    assert all(len(polled.claims) <= 7 for polled in answers)
    assert len(claimed) == len(set(claimed))
    # Whoever met locked rows took later ones, or none: nothing may be lost for good.
    while rest := await bench.claimed_ids():
        claimed += rest
    assert len(claimed) == len(set(claimed)) == 100
    for store in stores:
        await store.close()


async def test_a_cancelled_caller_leaves_its_write_to_finish(
    bench: Bench, connection: asyncpg.Connection, postgres_database: str
) -> None:
    """As it goes through an engine: the batcher's task is nobody's to cancel."""
    claim = await bench.started_claim()
    other = await asyncpg.connect(postgres_database)
    holding = other.transaction()
    await holding.start()
    await other.fetch("SELECT FROM kagzi.workflow_runs FOR UPDATE")
    work = bench.store.work
    batcher = Batcher(work.apply, locked=LockLane(work.apply_patiently, give_answers(None), EngineSettings()))

    async def write() -> None:
        await batcher.submit(bench.chunk(claim, bench.completed("charge", 1)))

    writing = asyncio.create_task(write())
    await until_somebody_waits(connection)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await connection.execute("SELECT pg_sleep(0.05)")  # in which the query would be cancelled, if it were to be
    await until_somebody_waits(connection)
    await holding.rollback()
    await other.close()

    await batcher.close()
    assert [step.step_id for step in await bench.steps(claim.run_id)] == ["charge"]


async def test_duties_skip_what_somebody_holds(bench: Bench, postgres_database: str) -> None:
    await bench.apply([bench.start_run(timeout=LEASE) for _ in range(4)])
    first, *rest = await bench.claims()
    await bench.done(first, bench.begun("slow", timeout=LEASE))
    bench.clock.advance(LEASE)
    other = await asyncpg.connect(postgres_database)
    holding = other.transaction()
    await holding.start()
    await other.fetch("SELECT FROM kagzi.workflow_runs WHERE run_id = $1 FOR UPDATE", first.run_id)

    assert (await bench.store.duties.time_out_steps(10, 0)).runs == []
    assert {run.run_id for run in await bench.recover()} == {claim.run_id for claim in rest}
    assert {run.run_id for run in (await bench.store.duties.time_out_runs(10)).runs} == {claim.run_id for claim in rest}
    await holding.rollback()
    assert [run.run_id for run in (await bench.store.duties.time_out_steps(10, 0)).runs] == [first.run_id]
    await other.close()


async def test_a_value_that_cannot_be_stored_fails_alone(bench: Bench) -> None:
    good, bad = await bench.started_claim(), await bench.started_claim()
    spoil: list[Callable[[], Chunk]] = [
        lambda: bench.chunk(bad, bench.completed("nul\0", 1)),
        lambda: bench.chunk(bad, bench.completed("half \ud800", 1)),
        lambda: bench.chunk(bad, bench.completed("big", 2**40)),
        lambda: Chunk(namespace=NAMESPACE, run_id="no id", token=bad.token, operations=()),
    ]
    for number, make in enumerate(spoil):
        name = f"step-{number}"
        answers = await bench.apply([make(), bench.chunk(good, bench.completed(name, number))])
        assert isinstance(answers[0], Exception)
        assert answers[1] is ChunkAnswer.DONE
    assert len(await bench.steps(good.run_id)) == len(spoil)
    assert await bench.steps(bad.run_id) == []

    answers = await bench.apply([bench.start_run(workflow_type="nul\0"), bench.start_run()])
    assert isinstance(answers[0], Exception)
    assert not isinstance(answers[1], Exception)

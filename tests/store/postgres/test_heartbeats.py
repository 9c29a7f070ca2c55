"""What the heartbeats of many workers cost, and what happens when they meet other transactions."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from kagzi.api.workers import Claim, Heartbeat
from kagzi.core.run import RunStatus
from kagzi.store.postgres.connection import Connector
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.postgres.workers import Workers
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import LEASE, NAMESPACE
from tests.store.postgres.test_plans import explain, explain_again, pages_read
from tests.store.shared import OneConnection

pytestmark = pytest.mark.postgres


@pytest.fixture
def postgres_database(fresh_database: str) -> str:
    """Without the statistics that other tests have left behind: plans are looked at."""
    return fresh_database


# Somebody else's runs, so many that reading all of them shows.
RUNNING = """
INSERT INTO kagzi.workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at, started_at,
    token, worker_id, poll, lease_expires_at, lease_length)
SELECT gen_random_uuid(), 'default', 'orders', 'checkout', '1', 'RUNNING', 1, 1, gen_random_uuid(), gen_random_uuid(),
    1, 9000000000000000, 30000000
FROM generate_series(1, 20000)
"""
COMPLETED = """
INSERT INTO kagzi.workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at, finished_at)
SELECT gen_random_uuid(), 'default', 'orders', 'checkout', '1', 'COMPLETED', 1, 1 FROM generate_series(1, 1000)
"""
WORKERS = """
INSERT INTO kagzi.workers (worker_id, namespace, queues, types, versions, hostname, pid, version, concurrency, status,
    registered_at, last_heartbeat_at)
SELECT gen_random_uuid(), 'default', '{}', '{}', '{}', 'host', 1, '1', 1, 'ONLINE', 1, 1 FROM generate_series(1, 5000)
"""


async def register(bench: Bench, count: int) -> list[str]:
    worker_ids = [bench.new_id() for _ in range(count)]
    for worker_id in worker_ids:
        await bench.store.workers.register(bench.registration(worker_id=worker_id))
    return worker_ids


async def claims_of(bench: Bench, worker_ids: list[str]) -> dict[str, Claim]:
    return {worker_id: await bench.claim(await bench.start(), worker_id=worker_id) for worker_id in worker_ids}


class Statements:
    """Those that a connection sends."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._pool: Any = OneConnection(connection)
        self._indexes: Any = None
        self.texts: list[str] = []

    async def beat(self, bench: Bench, beats: list[Heartbeat]) -> list[str]:
        self.texts.clear()
        with self._connection.query_logger(self._note):
            beaten = await Workers(self._pool, bench.now, self._indexes).heartbeats(beats)
            await asyncio.sleep(0)  # the last one is noted in this turn
        assert all(each.answer.known for each in beaten)
        names = {text: name for name, text in STATEMENTS.items()}
        return [names[text] for text in self.texts if text in names]  # the driver asks about types, once

    def _note(self, record: Any) -> None:
        self.texts.append(record.query)


async def test_any_number_of_workers_takes_as_few_statements_as_one(
    bench: Bench, connection: asyncpg.Connection
) -> None:
    worker_ids = await register(bench, 200)
    statements = Statements(connection)
    idle = [bench.heartbeat(worker_id=worker_id, heard=99) for worker_id in worker_ids]
    assert await statements.beat(bench, idle) == ["beat"]

    confirmed = [bench.heartbeat(worker_id=worker_id, confirmed=True) for worker_id in worker_ids]
    assert await statements.beat(bench, confirmed) == ["beat"]

    claims = await claims_of(bench, worker_ids[:20])
    holding = [bench.heartbeat(claim, worker_id=worker_id, heard=99) for worker_id, claim in claims.items()]
    assert await statements.beat(bench, holding + idle[20:]) == ["beat", "renew_leases"]

    # Ten of them have never heard of what they hold, ten have lost it.
    for claim in list(claims.values())[10:]:
        await connection.execute(
            "UPDATE kagzi.workflow_runs SET token = gen_random_uuid() WHERE run_id = $1", claim.run_id
        )
    mixed = idle[:10] + holding[10:] + idle[20:]
    assert await statements.beat(bench, mixed) == ["beat", "renew_leases", "forget_step_timeouts", "find_let_go"]


# What the planner knows of the table: nothing, when it was empty and now; all; that nothing was under way in it, which
# is also what a sample of a large table says; that there were these workers' runs alone.
@pytest.mark.parametrize("known", ["nothing then", "nothing", "all", "idle", "theirs"])
async def test_only_the_rows_of_these_workers_are_read(
    bench: Bench, postgres_database: str, connection: asyncpg.Connection, known: str
) -> None:
    await connection.execute("ALTER TABLE kagzi.workflow_runs SET (autovacuum_enabled = off)")
    worker_ids = await register(bench, 20)
    if known == "idle":
        await connection.execute(COMPLETED)
        await connection.execute("ANALYZE")
    claims = await claims_of(bench, worker_ids)
    if known == "theirs":
        await connection.execute("ANALYZE")
    listed = ",".join(worker_ids)
    runs, tokens = (",".join(each) for each in zip(*((c.run_id, c.token) for c in claims.values()), strict=True))
    twenty = [f"'{{{','.join([value] * 20)}}}'" for value in ("NULL", "99", "false", "1")]
    every, heard, confirmed, one = twenty
    arguments = {
        "beat": f"NULL, '{{{listed}}}', {every}, {heard}, {confirmed}, {one}, {one}",
        "renew_leases": f"NULL, '{{{listed}}}', {every}, {heard}, {confirmed},"
        f" '{{{listed}}}', '{{{runs}}}', '{{{tokens}}}'",
        "find_let_go": f"'{{{listed}}}', {every}, '{{{runs}}}', '{{{tokens}}}'",
        "release_runs": f"NULL, '{worker_ids[0]}', NULL",
        "get_worker": f"'{worker_ids[0]}', NULL, NULL, 1",
    }
    connector = Connector(postgres_database, statement_cache_size=0)
    planners = {name: await connector.connect(statement_timeout="60s") for name in arguments}
    try:
        if known == "nothing then":
            for name, given in arguments.items():
                await explain(planners[name], name, given)
        await connection.execute(RUNNING)
        await connection.execute(WORKERS)
        if known == "all":
            await connection.execute("ANALYZE")
        for name, given in arguments.items():
            again = known == "nothing then"
            plan = await (explain_again(planners[name], given) if again else explain(planners[name], name, given))
            assert "Seq Scan on workflow_runs" not in plan, plan
            assert pages_read(plan) < 1000, plan
    finally:
        for planner in planners.values():
            await planner.close()


async def test_heartbeats_of_the_same_workers_in_any_order_never_deadlock(
    bench: Bench, connection: asyncpg.Connection, postgres_database: str
) -> None:
    claims = await claims_of(bench, await register(bench, 40))
    stores = [bench.store, *(PostgresStore(postgres_database, now=bench.clock.now) for _ in range(2))]
    chance = random.Random(7)
    beats = [bench.heartbeat(claim, worker_id=worker_id, heard=99) for worker_id, claim in claims.items()]

    async def beat(store: Any) -> None:
        for _ in range(30):
            beaten = await store.workers.heartbeats(chance.sample(beats, len(beats)))
            assert all(each.answer.known and each.answer.lost == () for each in beaten)

    async def write(store: Any, name: str) -> None:
        for turn in range(30):
            shuffled = chance.sample(list(claims.values()), len(claims))
            await store.work.apply([bench.chunk(claim, bench.completed(f"{name}-{turn}", turn)) for claim in shuffled])

    await asyncio.gather(*(beat(store) for store in stores), write(stores[0], "a"), write(stores[1], "b"))

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await connection.fetchval(deadlocks) == 0
    for store in stores[1:]:
        await store.close()


@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_lease_that_is_being_lost_is_not_renewed(bench: Bench, postgres_database: str, confirmed: bool) -> None:
    """While another transaction takes the run over, nobody waits for it; then the lease is lost."""
    worker_ids = await register(bench, 2)
    kept, lost = (await claims_of(bench, worker_ids)).values()
    for claim in (kept, lost):
        await bench.store.work.read_lease(NAMESPACE, claim.run_id, claim.token, True)
    beats = [
        bench.heartbeat(*(() if confirmed else (claim,)), worker_id=worker_id, heard=99, confirmed=confirmed)
        for worker_id, claim in zip(worker_ids, (kept, lost), strict=True)
    ]
    other = await asyncpg.connect(postgres_database)
    write = other.transaction()
    await write.start()
    await other.execute(
        "UPDATE kagzi.workflow_runs SET status = 'PENDING', token = NULL, worker_id = NULL, lease_expires_at = NULL,"
        " available_at = 1, claim_key = 1 WHERE run_id = $1",
        lost.run_id,
    )
    first, second = await bench.store.workers.heartbeats(beats)
    assert (first.answer.lost, first.answer.unrenewed, first.shortest) == ((), (), LEASE)
    assert (second.answer.lost, second.shortest, second.released) == ((), None, [])
    assert second.answer.unrenewed == (() if confirmed else (lost.run_id,))

    await write.commit()
    _, second = await bench.store.workers.heartbeats(beats)
    assert (second.answer.lost, second.shortest) == (() if confirmed else (lost.run_id,), None)
    assert second.released == []
    assert (await bench.run(lost.run_id)).status is RunStatus.PENDING
    await other.close()

"""Plans: each statement of the hot path reaches rows by an index, whatever the planner believes about the tables."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

from kagzi.store.postgres.connection import Connector
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.store import PostgresStore

pytestmark = pytest.mark.postgres


@pytest.fixture
def postgres_database(fresh_database: str) -> str:
    """Without the statistics that other tests have left behind: plans are looked at."""
    return fresh_database


WORKER = "00000000-0000-7000-8000-0000000000aa"
TOKEN = "00000000-0000-7000-8000-0000000000bb"

# Arguments of each statement, written as SQL.
CLAIM = f"NULL, 30000000, 'default', '{WORKER}', '{TOKEN}', 1, '{{orders,mail}}', 10, '{{checkout}}', '{{}}'"
HORIZON = "NULL, '{default}', '{orders}'"

FILL = """
INSERT INTO kagzi.workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at,
    available_at, claim_key, finished_at, started_at, token, worker_id, lease_expires_at, lease_length)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'default', 'orders', 'checkout', '1',
    kind.status, 1, kind.due, kind.due, kind.finished_at, 1,
    CASE WHEN kind.status = 'RUNNING' THEN gen_random_uuid() END,
    CASE WHEN kind.status = 'RUNNING' THEN gen_random_uuid() END,
    CASE WHEN kind.status = 'RUNNING' THEN 9000000000000000 END, 30000000
FROM generate_series(1, $1::integer) AS n
CROSS JOIN LATERAL (
    SELECT CASE WHEN n % 11 = 0 THEN 'SLEEPING' WHEN n % 1000 = 1 THEN 'PENDING' WHEN n % 1000 = 2 THEN 'RUNNING'
                ELSE 'COMPLETED' END AS status,
           CASE WHEN n % 11 = 0 THEN 9000000000000000 WHEN n % 1000 = 1 THEN n END AS due,
           CASE WHEN n % 11 <> 0 AND n % 1000 NOT IN (1, 2) THEN 2 END AS finished_at
) AS kind
"""


@pytest.fixture
async def planner(postgres_database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection as the store makes them, on tables about which nothing is known yet."""
    store = PostgresStore(postgres_database)
    await store.open()
    await store.close()
    connection = await Connector(postgres_database, statement_cache_size=0).connect(statement_timeout="60s")
    await connection.execute("ALTER TABLE kagzi.workflow_runs SET (autovacuum_enabled = off)")
    yield connection
    await connection.close()


async def explain(connection: asyncpg.Connection, name: str, arguments: str) -> str:
    """The plan that is kept for a prepared statement, and what it did."""
    await connection.execute(f"DEALLOCATE ALL; PREPARE planned AS {STATEMENTS[name]}")
    return await explain_again(connection, arguments)


async def explain_again(connection: asyncpg.Connection, arguments: str) -> str:
    await connection.execute("BEGIN")
    rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE planned{arguments and f' ({arguments})'}")
    await connection.execute("ROLLBACK")
    return "\n".join(row[0] for row in rows)


def pages_read(plan: str) -> int:
    """Pages touched by the whole statement; not by planning it, which may have to read the catalog anew."""
    executed = plan.partition("Planning:")[0]
    found = re.findall(r"Buffers: shared hit=(\d+)(?: read=(\d+))?", executed)
    return max(int(hit) + int(read or 0) for hit, read in found)


async def test_a_claim_is_flat_with_100_000_finished_and_10_000_sleeping_runs(planner: asyncpg.Connection) -> None:
    # Planned while the table was empty, as in a process that has just created it.
    await explain(planner, "claim_runs", CLAIM)
    await planner.execute(FILL, 110_000)

    kept = await explain_again(planner, CLAIM)
    fresh = await explain(planner, "claim_runs", CLAIM)
    past_limits = await explain(planner, "claim_runs_past_limits", CLAIM)
    await planner.execute("ANALYZE kagzi.workflow_runs")
    informed = await explain(planner, "claim_runs", CLAIM)

    for plan in (kept, fresh, past_limits, informed):
        assert "Index Scan using workflow_runs_claim" in plan
        assert "Index Scan using workflow_runs_leased" in plan
        assert "Seq Scan" not in plan
        assert pages_read(plan) < 600, plan


async def test_a_claim_passes_over_nothing_that_was_set_aside(planner: asyncpg.Connection) -> None:
    await planner.execute(FILL, 20_000)
    await planner.execute(
        """INSERT INTO kagzi.workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at,
               available_at, claim_key)
           SELECT gen_random_uuid(), 'default', 'orders', 'rare', '1', 'PENDING', 1, n, 253402300799000002
           FROM generate_series(1, 20000) AS n"""
    )
    await planner.execute("ANALYZE kagzi.workflow_runs")

    assert pages_read(await explain(planner, "claim_runs", CLAIM)) < 600
    served = "'{default,default}', '{orders,orders}', '{rare,rare}', '{1,NULL}'"
    for name, arguments in (("is_any_aside", ""), ("served_aside", served)):
        lines = await explain(planner, name, arguments)
        assert "workflow_runs_aside" in lines
        assert pages_read(lines) < 50, lines
    back = await explain(planner, "bring_back", "NULL, 'default', 'orders', 'rare', '1', 10")
    assert "workflow_runs_aside" in back
    assert pages_read(back) < 300, back
    overdue = await explain(planner, "find_overdue", "'{default}', '{orders}', 9000000, 500")
    assert "workflow_runs_claim" in overdue
    assert pages_read(overdue) < 600, overdue


FILL_STEPS = """
INSERT INTO kagzi.step_runs (namespace, run_id, step_id, attempt, kind, status, completed_seq, started_at, input_hash)
SELECT 'default', ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'pay', 1, 'FUNCTION', 'COMPLETED',
    1, 1, 0
FROM generate_series(1, $1::integer) AS n
"""


async def test_histories_are_read_run_by_run(planner: asyncpg.Connection) -> None:
    runs = ",".join(f"00000000-0000-7000-8000-{number:012x}" for number in range(1, 50_000, 1000))
    asked = f"'default', '{{{runs}}}'"
    # Planned while the table was empty, as in a process that has just created it.
    await explain(planner, "read_history", asked)
    await planner.execute(FILL, 50_000)
    await planner.execute(FILL_STEPS, 50_000)

    kept = await explain_again(planner, asked)
    fresh = await explain(planner, "read_history", asked)
    await planner.execute("ANALYZE kagzi.step_runs")
    informed = await explain(planner, "read_history", asked)

    for plan in (kept, fresh, informed):
        assert "rows=50 " in plan
        assert "Seq Scan" not in plan
        assert pages_read(plan) < 600, plan


async def test_the_horizon_is_flat_as_well(planner: asyncpg.Connection) -> None:
    await planner.execute(FILL, 110_000)

    plan = await explain(planner, "horizon", HORIZON)

    assert "workflow_runs_claim" in plan
    assert "workflow_runs_leased" in plan
    assert "Seq Scan" not in plan
    assert pages_read(plan) < 600, plan


async def test_gauges_do_not_look_at_what_sleeps(planner: asyncpg.Connection) -> None:
    loads = "NULL, 10000, 100000, 100"
    # Planned while the table was empty, as in a process that has just created it.
    await explain(planner, "queue_loads", loads)
    await planner.execute(FILL, 110_000)

    plans = [await explain_again(planner, loads), await explain(planner, "queue_loads", loads)]
    await planner.execute("ANALYZE kagzi.workflow_runs")
    plans += [await explain(planner, "queue_loads", loads), await explain(planner, "running_loads", "NULL, 1000")]

    for plan in plans:
        assert "Seq Scan on workflow_runs" not in plan
        assert pages_read(plan) < 600, plan


@pytest.mark.parametrize("namespace", ["'default'", "NULL"])
async def test_counting_looks_at_a_bounded_part(planner: asyncpg.Connection, namespace: str) -> None:
    live, newest = f"{namespace}, NULL, NULL, 10, 10, 500, 1000, 100", f"{namespace}, NULL, NULL, 10, 500, 1000, 100"
    # Planned while the table was empty, as in a process that has just created it.
    await explain(planner, "count_live_runs", live)
    await planner.execute(FILL, 110_000)
    kept = await explain_again(planner, live)
    plans = [
        kept,
        *[await explain(planner, *asked) for asked in (("count_live_runs", live), ("count_newest_runs", newest))],
    ]
    await planner.execute("ANALYZE kagzi.workflow_runs")
    plans += [await explain(planner, *asked) for asked in (("count_live_runs", live), ("count_newest_runs", newest))]

    for plan in plans:
        assert "Seq Scan on workflow_runs" not in plan
        assert pages_read(plan) < 1500, plan


async def test_a_filter_that_nothing_matches_reads_a_bounded_part(planner: asyncpg.Connection) -> None:
    newest, edge = "ffffffff-ffff-ffff-ffff-ffffffffffff", "'default', 'ffffffff-ffff-ffff-ffff-ffffffffffff', 1000"
    # Planned while the table was empty, as in a process that has just created it.
    await explain(planner, "edge_walk", edge)
    await planner.execute(FILL, 110_000)
    kept = await explain_again(planner, edge)
    border = await planner.fetchval(STATEMENTS["edge_walk"], "default", newest, 1000)
    nothing = ", NULL" * 7
    search = f"'default', '{newest}', NULL, 'rare', NULL, NULL, NULL, 21, NULL, '{border}'{nothing}"
    plans = [kept, await explain(planner, "edge_walk", edge), await explain(planner, "list_walk", search)]

    for plan in plans:
        assert "Seq Scan on workflow_runs" not in plan
        assert pages_read(plan) < 1500, plan


@pytest.mark.parametrize(
    ("lead", "index", "value"),
    [
        ("failed", "workflow_runs_failed", ""),
        ("error", "workflow_runs_errors", ", 'CardDeclined'"),
        ("schedule", "workflow_runs_scheduled", f", '{WORKER}'"),
        ("children", "workflow_runs_children", f", '{WORKER}'"),
    ],
)
async def test_what_leads_a_search_is_read_by_its_own_index(
    planner: asyncpg.Connection, lead: str, index: str, value: str
) -> None:
    newest, oldest = "ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"
    await planner.execute(FILL, 50_000)
    await planner.execute(
        """INSERT INTO kagzi.workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at,
               finished_at, error)
           SELECT gen_random_uuid(), 'default', 'orders', 'checkout', '1', 'FAILED', 1, 2,
               convert_to('{"type":"shop.Timeout' || n % 9 || '"}', 'UTF8')
           FROM generate_series(1, 5000) AS n"""
    )
    await planner.execute("ANALYZE kagzi.workflow_runs")
    asked = {"error": 4, "schedule": 6, "children": 7}
    more = ["NULL"] * 7
    if lead in asked:
        more[asked[lead] - 1] = value[2:]
    search = f"'default', '{newest}', NULL, 'rare', NULL, NULL, NULL, 21, NULL, '{oldest}', {', '.join(more)}"

    for plan in (
        await explain(planner, f"edge_{lead}", f"'default', '{newest}', 1000{value}"),
        await explain(planner, f"list_{lead}", search),
    ):
        assert index in plan, plan
        assert lead == "failed" or pages_read(plan) < 200, plan


@pytest.mark.parametrize("statement", ["record_steps", "record_steps_and_move_runs"])
@pytest.mark.parametrize("planned", ["empty", "filled", "analyzed"])
async def test_a_batch_grows_with_its_size_alone(planner: asyncpg.Connection, statement: str, planned: str) -> None:
    if planned == "empty":
        await planner.execute(f"DEALLOCATE ALL; PREPARE planned AS {STATEMENTS[statement]}")
        await explain_again(planner, batch_of(statement, []))
    await planner.execute(FILL, 50_000)
    if planned == "analyzed":
        await planner.execute("ANALYZE kagzi.workflow_runs")
    if planned != "empty":
        await planner.execute(f"DEALLOCATE ALL; PREPARE planned AS {STATEMENTS[statement]}")
    await planner.execute("UPDATE kagzi.workflow_runs SET token = run_id WHERE status = 'RUNNING'")
    runs = [str(row[0]) for row in await planner.fetch("SELECT run_id FROM kagzi.workflow_runs WHERE token = run_id")]
    assert len(runs) >= 40

    plan = await explain_again(planner, batch_of(statement, runs[:40]))

    assert "Index Scan using workflow_runs_pkey" in plan
    assert plan.count("hashed SubPlan") == (1 if statement == "record_steps" else 2)
    assert "Seq Scan" not in plan
    assert "Tuples Inserted: 40" in plan
    assert pages_read(plan) < 40 * 25, plan


def batch_of(statement: str, runs: list[str]) -> str:
    """One completed step each; with the other statement, the runs complete too."""

    def array(values: list[str]) -> str:
        return "'{" + ",".join(values) + "}'"

    ids = array(runs)
    leases = f"{array(['default'] * len(runs))}, {ids}, {ids}"
    ones = array(["1"] * len(runs))
    steps = f"NULL, NULL, NULL, {array(['charge'] * len(runs))}, NULL, NULL, NULL, {ones}, {ones}, {ones}"
    steps += f", NULL, NULL, {ones}, NULL, NULL, NULL"
    if statement == "record_steps":
        return f"{leases}, {steps}"
    moves = f"NULL, NULL, NULL, {array(['COMPLETED'] * len(runs))}, NULL, NULL, NULL, NULL, NULL"
    return f"{leases}, {steps}, NULL, NULL, {moves}"

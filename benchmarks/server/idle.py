"""Workers that wait for work: what they cost the server and the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from benchmarks.server.bars import Verdict
from benchmarks.server.site import Site
from benchmarks.systems.processes import cpu_seconds

PROCESSES = 4
MOST_CPU_PERCENT = 10
MOST_QUERIES_PER_SECOND = 2
# The pool keeps some open between uses and one listens; as many as there are polls would be a connection for each poll.
MOST_CONNECTIONS = 10
# A backend tells its counters within a second, an idle one within ten.
SETTLE_SECONDS = 15.0
SAMPLE_SECONDS = 1.0

TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
_STATEMENTS = """pg_stat_statements WHERE query NOT LIKE '%pg_stat_%'
                AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""
STATEMENTS = f"SELECT coalesce(sum(calls), 0)::bigint FROM {_STATEMENTS}"
MOST_FREQUENT = f"""SELECT coalesce(array_agg(calls || ' × ' || query), ARRAY[]::text[]) FROM (
    SELECT calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 100) AS query
    FROM {_STATEMENTS} ORDER BY calls DESC LIMIT 5) AS found"""
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
ONLINE = "SELECT count(*) FROM kagzi.workers WHERE status = 'ONLINE'"


async def idle(site: Site, workers: int, seconds: float, say: Callable[[str], None]) -> list[Verdict]:
    share, rest = divmod(workers, PROCESSES)
    shares = [share + (i < rest) for i in range(PROCESSES)]
    await asyncio.gather(*(site.start_workers(count) for count in shares if count))
    online = await site.ask(ONLINE)
    if online != workers:
        raise RuntimeError(f"{online} of {workers} workers are registered")
    await site.ask("CREATE EXTENSION pg_stat_statements")
    await asyncio.sleep(SETTLE_SECONDS)
    await site.ask("SELECT pg_stat_statements_reset()")
    transactions = await site.ask(TRANSACTIONS)
    cpu, begin = cpu_seconds(site.server.pid), time.perf_counter()
    connections, asked = 0, 2
    while time.perf_counter() - begin < seconds:
        await asyncio.sleep(SAMPLE_SECONDS)
        connections = max(connections, await site.ask(CONNECTIONS))
        asked += 1
    elapsed = time.perf_counter() - begin
    cpu = cpu_seconds(site.server.pid) - cpu
    statements = await site.ask(STATEMENTS)
    for line in await site.ask(MOST_FREQUENT):
        say(f"idle: {line}")
    transactions = await site.ask(TRANSACTIONS) - transactions - asked
    still_online = await site.ask(ONLINE)
    return [
        Verdict(f"{workers} idle workers: the server", 100 * cpu / elapsed, "% of a core", MOST_CPU_PERCENT),
        Verdict(f"{workers} idle workers: statements", statements / elapsed, "a second", MOST_QUERIES_PER_SECOND),
        Verdict(f"{workers} idle workers: transactions", transactions / elapsed, "a second"),
        Verdict(f"{workers} idle workers: database connections", connections, "", MOST_CONNECTIONS),
        Verdict(f"{workers} idle workers: lost by the server", workers - still_online, "workers", 0),
    ]

"""Duties of two coordinators, and what happens between the statements of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kagzi.api.operations import CancelRun, ParkRun
from kagzi.core.instant import SECOND
from kagzi.core.schedule import Overlap, SkipReason
from kagzi.core.worker import WorkflowType
from kagzi.store.postgres import unserved
from kagzi.store.postgres.firings import fire
from kagzi.store.unserved import ASIDE, OVERDUE
from kagzi.testing.conformance.bench import NAMESPACE, STALE, TYPE
from kagzi.testing.conformance.debounce import debounced, started
from kagzi.testing.conformance.schedules import MINUTE, look, made, runs, skips, until
from kagzi.testing.conformance.unserved import offer
from tests.store.postgres.test_cancel_races import Ring, Side, ring

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

pytestmark = pytest.mark.postgres
__all__ = ["ring"]  # a fixture of the neighbour's


# Schedules.


def firing(ring: Ring) -> Side:
    async def side(connection: Connection) -> Any:
        async with connection.transaction():
            return await fire(connection, 100, ring.bench.new_id, ring.bench.now())

    return side


async def test_a_schedule_that_one_coordinator_fires_is_passed_over_by_another(ring: Ring) -> None:
    found = await made(ring.bench, max_catchup=3)
    until(ring.bench, found.next_fire_at)
    first = ring.bench.now()
    ring.bench.clock.advance(9 * MINUTE)

    one, other = await ring.meet(firing(ring), firing(ring))

    assert (len(one.runs), other.looked) == (3, 0)
    assert await skips(ring.bench, found) == [(first, first + 6 * MINUTE, 7, SkipReason.CATCHUP)]
    after = await look(ring.bench, found)
    assert (after.total_runs, after.skipped_runs) == (3, 7)


async def test_two_coordinators_do_not_both_cancel_the_run_before(ring: Ring) -> None:
    found = await made(ring.bench, overlap=Overlap.CANCEL_PREVIOUS)
    for expected in (0, 1):
        until(ring.bench, (await look(ring.bench, found)).next_fire_at)
        one, other = await ring.meet(firing(ring), firing(ring))
        assert (len(one.runs), len(one.told), other.looked) == (1, expected, 0)
    assert len(await runs(ring.bench, found)) == 2


# Runs that no worker executes.


class Meanwhile:
    """A connection on which something happens behind a statement."""

    def __init__(self, connection: Connection, statement: object, happens: Any) -> None:
        self._connection = connection
        self._statement = statement
        self._happens = happens

    async def fetch(self, statement: object, *values: object) -> Any:
        rows = await self._connection.fetch(statement, *values)  # type: ignore[arg-type]
        if statement is self._statement:
            assert rows
            await self._happens()
        return rows

    async def fetchval(self, *values: Any) -> Any:
        return await self._connection.fetchval(*values)


CHANGES = ["claimed", "parked", "cancelled", "put off by a start that joins it"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("aside", [False, True])
async def test_a_run_that_changes_between_looking_and_setting_is_left_alone(
    ring: Ring, change: str, aside: bool
) -> None:
    """Found overdue, it is not set aside; found set aside and served, it is not brought back."""
    bench = ring.bench
    debounces = "joins" in change
    first = await started(bench, b"1", workflow_type="rare") if debounces else None
    run_id = await bench.start(workflow_type="rare") if first is None else first.run_id
    everything = (WorkflowType("rare"), WorkflowType(TYPE))

    async def happens() -> None:
        if debounces:
            await bench.answer(debounced(bench, b"2", workflow_type="rare"))
        elif change == "cancelled":
            await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id))
        else:
            if aside:
                await watch.execute("UPDATE kagzi.workflow_runs SET claim_key = available_at")
            claim = await bench.claim(run_id, types=everything)
            if change == "parked":
                await bench.done(claim, ParkRun(available_at=bench.now() + 1000 * SECOND, inbox_seq=0))
        happened.append(await kept())

    async def kept() -> Any:
        return await watch.fetchrow("SELECT status, claim_key, held_key, xmin FROM kagzi.workflow_runs")

    happened: list[Any] = []
    watch = ring._watcher
    await offer(bench, WorkflowType(TYPE))
    bench.clock.advance(OVERDUE + (40 * SECOND if debounces else 0))
    await bench.beat()
    await offer(bench, WorkflowType(TYPE))
    statement = unserved._FIND_OVERDUE
    if aside:
        assert (await unserved.set_runs_aside(ring._first, (), 100, STALE, bench.now())).aside == 1
        await offer(bench, WorkflowType("rare"))
        statement = unserved._SERVED_ASIDE
    connection: Any = Meanwhile(ring._first, statement, happens)

    done = await unserved.set_runs_aside(connection, (), 100, STALE, bench.now())

    assert (done.aside, done.back) == (0, ())
    assert happened == [await kept()]
    assert happened[0]["claim_key"] != ASIDE

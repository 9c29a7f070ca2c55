"""A debounced start meets the claim of the run it would join, in both orders, statement by statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kagzi.api.operations import Answer, Started, StartRun
from kagzi.core.flow import Scope
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.store.postgres import lines
from kagzi.store.postgres.claims import claim_runs
from kagzi.store.postgres.debounce import start_debounced
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, TYPE
from kagzi.testing.conformance.debounce import LARGE, WAIT, debounced, started
from tests.store.postgres.test_cancel_races import Ring, Side, ring

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

pytestmark = pytest.mark.postgres
__all__ = ["ring"]  # a fixture of the neighbour's


def starting(ring: Ring, start: StartRun) -> Side:
    async def side(connection: Connection) -> Answer:
        return await start_debounced(connection, start, ring.bench.now())

    return side


@pytest.mark.parametrize("later", [b"2", LARGE])
async def test_a_claim_then_a_start_that_makes_another_run(ring: Ring, later: bytes) -> None:
    first = await started(ring.bench, b"1")
    ring.bench.clock.advance(WAIT)
    polled, answer = await ring.fight(ring.claim(), starting(ring, debounced(ring.bench, later)))
    assert [(claim.run_id, claim.input) for claim in polled.claims] == [(first.run_id, b"1")]
    assert isinstance(answer, Started)
    assert (answer.already_exists, answer.run_id != first.run_id) == (False, True)
    assert (await ring.bench.run(answer.run_id)).input == later


async def test_a_start_then_another_that_joins_it(ring: Ring) -> None:
    one, other = (debounced(ring.bench, input) for input in (b"1", b"2"))
    made, joined = await ring.fight(starting(ring, one), starting(ring, other))
    assert isinstance(made, Started)
    assert isinstance(joined, Started)
    assert (joined.run_id, joined.already_exists) == (made.run_id, True)
    assert (await ring.bench.run(made.run_id)).input == b"2"


async def test_a_claim_passes_over_a_run_that_is_being_put_off(ring: Ring) -> None:
    first = await started(ring.bench, b"1", most=WAIT)
    ring.bench.clock.advance(WAIT)
    transaction = ring._first.transaction()
    await transaction.start()
    await starting(ring, debounced(ring.bench, LARGE, most=WAIT))(ring._first)
    assert (await ring.claim()(ring._second)).claims == ()
    await transaction.commit()
    # It is due all the same, and has the input that was committed.
    assert (await ring.bench.claim(first.run_id)).input == LARGE


@pytest.mark.parametrize("change", [{"limit_key": "b"}, {"version": "2"}])
async def test_a_start_between_choosing_and_claiming_changes_what_the_run_counts_for(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    """The claim has chosen the run by its key and its version; as another one it is chosen anew."""
    bench = ring.bench
    await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(key_concurrency=1))
    only = (WorkflowType(TYPE, "1"),)
    await bench.claim(await bench.start(limit_key="b"), types=only)  # the only slot of b is taken
    first = await started(bench, b"1", most=WAIT, limit_name=TYPE, limit_key="a", version="1")
    bench.clock.advance(WAIT)
    later = debounced(bench, b"2", **({"most": WAIT, "limit_name": TYPE, "limit_key": "a", "version": "1"} | change))

    async def meanwhile(*args: Any) -> None:
        await starting(ring, later)(ring._second)
        await read_turns(*args)

    read_turns = lines._read_turns
    monkeypatch.setattr(lines, "_read_turns", meanwhile)
    polled = await claim_runs(ring._first, bench.poll(types=only), LEASE, bench.now())
    monkeypatch.undo()
    assert polled.claims == ()
    assert (await bench.run(first.run_id)).status is RunStatus.PENDING
    assert await bench.claimed_ids(types=only) == []

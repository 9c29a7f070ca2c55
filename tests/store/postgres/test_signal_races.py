"""A signal meets whatever else may happen to a run, in both orders, statement by statement.

Whoever is second finds what the first has made of the run: a signal wakes, is declined, or keeps its run from parking,
and is never in an inbox that nobody looks into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kagzi.api.operations import (
    Answer,
    ChunkAnswer,
    CompleteRun,
    HandBackRun,
    ParkRun,
    RetryRun,
    SendSignal,
    SetValue,
    SignalAnswer,
)
from kagzi.api.workers import Claim, Polled
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict
from kagzi.store.postgres.signals import apply_signals
from kagzi.testing.conformance.bench import NAMESPACE
from kagzi.testing.conformance.signals import signal, take
from tests.store.postgres.test_cancel_races import FAR, Ring, Side, ring

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

pytestmark = pytest.mark.postgres
__all__ = ["ring"]  # a fixture of the neighbour's

DONE, NEWS = ChunkAnswer.DONE, ChunkAnswer.NEWS


def telling(ring: Ring, *signals: SendSignal) -> Side:
    async def side(connection: Connection) -> list[Answer]:
        return (await apply_signals(connection, signals, ring.bench.now())).answers

    return side


async def held(ring: Ring) -> Claim:
    return await ring.bench.claim(await ring.bench.start())


def park(ring: Ring, *, seen: int = 0) -> ParkRun:
    return ParkRun(available_at=ring.bench.now() + FAR, inbox_seq=seen, waiting_for=("s:approved",))


async def keys(ring: Ring, run_id: str) -> list[tuple[str, int | None]]:
    return [(row.key, row.taken_seq) for row in await ring.bench.store.signals.page(NAMESPACE, run_id, 0, 10)]


async def test_a_signal_then_a_park_that_has_not_seen_it(ring: Ring) -> None:
    claim = await held(ring)
    _, parked = await ring.fight(telling(ring, signal(claim.run_id)), ring.chunk(claim, park(ring)))
    assert parked is NEWS
    assert (await ring.bench.run(claim.run_id)).status is RunStatus.RUNNING


async def test_a_park_then_the_signal_it_is_for(ring: Ring) -> None:
    claim = await held(ring)
    parked, (told,) = await ring.fight(ring.chunk(claim, park(ring)), telling(ring, signal(claim.run_id)))
    assert parked is DONE
    assert isinstance(told, SignalAnswer)
    assert (told.status, told.available_at) == (RunStatus.SLEEPING, ring.bench.now())
    assert (await ring.bench.claim()).inbox_seq == 1


async def test_a_signal_then_the_end(ring: Ring) -> None:
    claim = await held(ring)
    end = CompleteRun(output=b"1", unless_cancelled=True)
    (told,), ended = await ring.fight(telling(ring, signal(claim.run_id)), ring.chunk(claim, end))
    assert isinstance(told, SignalAnswer)
    assert ended is DONE  # what nobody takes does not keep a run from ending
    assert await keys(ring, claim.run_id) == [("k1", None)]


async def test_the_end_then_a_signal(ring: Ring) -> None:
    claim = await held(ring)
    ended, (told,) = await ring.fight(ring.chunk(claim, CompleteRun(output=b"1")), telling(ring, signal(claim.run_id)))
    assert ended is DONE
    assert isinstance(told, Conflict)
    assert await keys(ring, claim.run_id) == []


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_signal_and_a_cancellation_of_a_held_run(ring: Ring, signal_first: bool) -> None:
    claim = await held(ring)
    sides = [telling(ring, signal(claim.run_id)), ring.cancel(claim.run_id)]
    await ring.fight(*(sides if signal_first else reversed(sides)))
    found = await ring.bench.store.signals.read_inbox(NAMESPACE, claim.run_id, claim.token, ("approved",), 10)
    assert found is not None
    assert (found.inbox_seq, found.cancel_requested, len(found.signals)) == (2, True, 1)
    assert found.signals[0].seq == (1 if signal_first else 2)


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_signal_and_a_cancellation_of_a_run_that_nobody_has_begun(ring: Ring, signal_first: bool) -> None:
    run_id = await ring.bench.start()
    sides = [telling(ring, signal(run_id)), ring.cancel(run_id)]
    first, second = await ring.fight(*(sides if signal_first else reversed(sides)))
    told, cancelled = (first, second) if signal_first else (second, first)
    assert cancelled == (True, RunStatus.CANCELLED)
    assert isinstance(told[0], SignalAnswer if signal_first else Conflict)
    assert await keys(ring, run_id) == ([("k1", None)] if signal_first else [])


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_signal_and_a_retry_that_gives_another_back(ring: Ring, signal_first: bool) -> None:
    claim = await held(ring)
    await ring.bench.answer(signal(claim.run_id))
    await ring.bench.done(claim, take(ring.bench, 1))
    retry = RetryRun(available_at=ring.bench.now(), keep_seq=0, error=b"no")
    sides = [telling(ring, signal(claim.run_id, key="k2")), ring.chunk(claim, retry)]
    await ring.fight(*(sides if signal_first else reversed(sides)))
    assert await keys(ring, claim.run_id) == [("k1", None), ("k2", None)]
    again = await ring.bench.claim()
    assert again.inbox_seq == 2


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_signal_and_the_taking_of_another(ring: Ring, signal_first: bool) -> None:
    claim = await held(ring)
    await ring.bench.answer(signal(claim.run_id))
    sides = [
        telling(ring, signal(claim.run_id, key="k2")),
        ring.chunk(claim, take(ring.bench, 1), SetValue(name="stage", value=b"1")),
    ]
    await ring.fight(*(sides if signal_first else reversed(sides)))
    assert await keys(ring, claim.run_id) == [("k1", 1), ("k2", None)]
    assert len(await ring.bench.store.runs.values(NAMESPACE, claim.run_id, (), "")) == 1


@pytest.mark.parametrize("same_key", [True, False])
async def test_two_signals(ring: Ring, same_key: bool) -> None:
    claim = await held(ring)
    other = signal(claim.run_id, key="k1" if same_key else "k2")
    (first,), (second,) = await ring.fight(telling(ring, signal(claim.run_id)), telling(ring, other))
    assert isinstance(first, SignalAnswer)
    assert isinstance(second, SignalAnswer)
    assert (first.seq, first.repeated) == (1, False)
    assert (second.seq, second.repeated) == ((1, True) if same_key else (2, False))
    assert len(await keys(ring, claim.run_id)) == (1 if same_key else 2)


async def test_a_claim_then_a_signal(ring: Ring) -> None:
    run_id = await ring.bench.start()
    claimed, (told,) = await ring.fight(ring.claim(), telling(ring, signal(run_id)))
    assert isinstance(claimed, Polled)
    assert [claim.inbox_seq for claim in claimed.claims] == [0]
    assert isinstance(told, SignalAnswer)
    assert told.status is RunStatus.RUNNING  # so its holder is told
    assert await ring.bench.send(claimed.claims[0], park(ring)) is NEWS


async def test_a_hand_back_then_a_signal(ring: Ring) -> None:
    claim = await held(ring)
    back, (told,) = await ring.fight(ring.chunk(claim, HandBackRun()), telling(ring, signal(claim.run_id)))
    assert back is DONE
    assert isinstance(told, SignalAnswer)
    assert told.status is RunStatus.PENDING
    assert (await ring.bench.claim()).inbox_seq == 1


async def test_signals_for_many_runs_in_two_batches_do_not_wait_in_a_circle(ring: Ring) -> None:
    run_ids = [await ring.bench.start() for _ in range(5)]
    there = telling(ring, *(signal(run_id, key="k1") for run_id in run_ids))
    back = telling(ring, *(signal(run_id, key="k2") for run_id in reversed(run_ids)))
    first, second = await ring.fight(there, back)
    assert [answer.seq for answer in first] == [1] * 5
    assert [answer.seq for answer in second] == [2] * 5

"""A cancellation meets whatever else may happen to a run, in both orders, statement by statement.

One side holds its transaction open on a connection of its own, the other one comes while it does. Whoever is second
finds what the first has made of the run, and both hear the truth.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from kagzi.api.operations import (
    Answer,
    CancelAnswer,
    CancelRun,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    HandBackRun,
    Operation,
    ParkRun,
    RetryRun,
    TerminateRun,
)
from kagzi.api.workers import Claim, Poll, Polled
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.wake import Woken, read_woken
from kagzi.store.postgres.cancels import apply_requests, lock_runs, wake_run
from kagzi.store.postgres.chunks import apply_chunks
from kagzi.store.postgres.claims import claim_runs
from kagzi.store.postgres.connection import Connector
from kagzi.store.postgres.duties import Duties
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.protocol.changes import Applied
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import LEASE, NAMESPACE
from tests.store.postgres.test_locks import somebody_waits, until_somebody_waits
from tests.store.shared import OneConnection

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

pytestmark = pytest.mark.postgres

FAR = 1000 * SECOND
RACES = 300
CANCELLED, COMPLETED, PENDING = RunStatus.CANCELLED, RunStatus.COMPLETED, RunStatus.PENDING
RUNNING, SLEEPING = RunStatus.RUNNING, RunStatus.SLEEPING

Side = Callable[["Connection"], Awaitable[Any]]


class Ring:
    """Two sides and somebody who watches them."""

    def __init__(self, bench: Bench, first: Connection, second: Connection, watcher: asyncpg.Connection) -> None:
        self.bench = bench
        self._first = first
        self._second = second
        self._watcher = watcher

    async def fight(self, first: Side, second: Side) -> tuple[Any, Any]:
        """The first holds its transaction open until the second waits for it."""
        transaction = self._first.transaction()
        await transaction.start()
        one = await first(self._first)
        late = asyncio.ensure_future(self._alone(second))
        await until_somebody_waits(self._watcher)
        assert not late.done()
        await transaction.commit()
        return one, await late

    async def meet(self, first: Side, second: Side) -> tuple[Any, Any]:
        """The same, of sides of which the second may also pass by what the first holds."""
        transaction = self._first.transaction()
        await transaction.start()
        one = await first(self._first)
        late = asyncio.ensure_future(self._alone(second))
        while not late.done() and not await somebody_waits(self._watcher):
            await asyncio.sleep(0.002)
        await transaction.commit()
        return one, await late

    async def _alone(self, side: Side) -> Any:
        return await side(self._second)

    # Sides.

    def cancel(self, run_id: str) -> Side:
        return self._request(CancelRun(namespace=NAMESPACE, run_id=run_id))

    def terminate(self, run_id: str) -> Side:
        return self._request(TerminateRun(namespace=NAMESPACE, run_id=run_id, reason="enough"))

    def _request(self, request: CancelRun | TerminateRun) -> Side:
        async def side(connection: Connection) -> tuple[bool, RunStatus]:
            (answer,) = (await apply_requests(connection, [request], self.bench.now())).answers
            assert isinstance(answer, CancelAnswer)
            return answer.effective, answer.status

        return side

    def chunk(self, claim: Claim, *operations: Operation) -> Side:
        chunk: Chunk = self.bench.chunk(claim, *operations)

        async def side(connection: Connection) -> Answer:
            (answer,) = (await apply_chunks(connection, [chunk], self.bench.now())).answers
            return answer

        return side

    def claim(self) -> Side:
        poll: Poll = self.bench.poll()

        async def side(connection: Connection) -> Polled:
            return await claim_runs(connection, poll, LEASE, self.bench.now())

        return side


@pytest.fixture
async def ring(bench: Bench, connection: asyncpg.Connection, postgres_database: str) -> AsyncIterator[Ring]:
    connector = Connector(postgres_database, statement_cache_size=100)
    first, second = await connector.connect(), await connector.connect()
    yield Ring(bench, first, second, connection)
    await first.close()
    await second.close()


@pytest.mark.parametrize("first", ["cancel", "complete"])
async def test_cancel_and_complete(ring: Ring, first: str) -> None:
    claim = await ring.bench.started_claim()
    cancel, complete = ring.cancel(claim.run_id), ring.chunk(claim, CompleteRun(output=b"1", unless_cancelled=True))

    if first == "cancel":
        # Whoever cancelled it was promised that it is told.
        assert await ring.fight(cancel, complete) == ((True, RUNNING), ChunkAnswer.NEWS)
    else:
        assert await ring.fight(complete, cancel) == (ChunkAnswer.DONE, (False, COMPLETED))

    assert (await ring.bench.run(claim.run_id)).status is (RUNNING if first == "cancel" else COMPLETED)
    if first == "cancel":
        await ring.bench.done(claim, CompleteRun(output=b"1"))
    ring.bench.clock.advance(FAR)
    assert (await ring.bench.store.duties.end_cancelled_runs(10)).runs == []


@pytest.mark.parametrize("first", ["terminate", "complete"])
async def test_terminate_and_complete(ring: Ring, first: str) -> None:
    claim = await ring.bench.started_claim()
    terminate = ring.terminate(claim.run_id)
    complete = ring.chunk(claim, ring.bench.completed("step", 1), CompleteRun(output=b"1"))

    if first == "terminate":
        assert await ring.fight(terminate, complete) == ((True, CANCELLED), ChunkAnswer.LEASE_LOST)
    else:
        assert await ring.fight(complete, terminate) == (ChunkAnswer.DONE, (False, COMPLETED))

    run, steps = await ring.bench.state(claim.run_id)
    assert (run.status, len(steps)) == ((CANCELLED, 0) if first == "terminate" else (COMPLETED, 1))


@pytest.mark.parametrize("first", ["cancel", "park"])
async def test_cancel_and_park(ring: Ring, first: str) -> None:
    claim = await ring.bench.started_claim()
    cancel = ring.cancel(claim.run_id)
    park = ring.chunk(claim, ParkRun(available_at=ring.bench.now() + FAR, inbox_seq=claim.inbox_seq))

    if first == "cancel":
        assert await ring.fight(cancel, park) == ((True, RUNNING), ChunkAnswer.NEWS)
        assert (await ring.bench.run(claim.run_id)).status is RUNNING
    else:
        assert await ring.fight(park, cancel) == (ChunkAnswer.DONE, (True, SLEEPING))
        assert (await ring.bench.claim(claim.run_id)).cancel_requested


@pytest.mark.parametrize("first", ["cancel", "retry"])
async def test_cancel_and_retry(ring: Ring, first: str) -> None:
    claim = await ring.bench.started_claim()
    cancel = ring.cancel(claim.run_id)
    retry = ring.chunk(claim, RetryRun(available_at=ring.bench.now() + FAR, keep_seq=0, error=b"no"))

    if first == "cancel":
        assert await ring.fight(cancel, retry) == ((True, RUNNING), ChunkAnswer.DONE)
    else:
        assert await ring.fight(retry, cancel) == (ChunkAnswer.DONE, (True, PENDING))

    # Either way it is due now, and whoever takes it hears why.
    again = await ring.bench.claim(claim.run_id)
    assert (again.cancel_requested, again.attempts) == (True, 1)


@pytest.mark.parametrize("records", [True, False])
async def test_two_wakes_and_a_claim_between_them_that_parks_again(ring: Ring, records: bool) -> None:
    """The next one to claim the run hears of the second wake, too: nobody is told for nothing that a run was woken."""
    bench = ring.bench
    claim = await bench.started_claim()
    until = bench.now() + FAR
    await bench.done(claim, bench.completed("one", 1), ParkRun(available_at=until, inbox_seq=claim.inbox_seq))

    async def wake(connection: Connection) -> bool:
        async with connection.transaction():
            await lock_runs(connection, [(NAMESPACE, claim.run_id)])
            answer = await wake_run(connection, NAMESPACE, claim.run_id, bench.now())
        assert answer is not None
        return answer.woken

    async def wake_claim_and_park(connection: Connection) -> bool:
        woken = await wake(connection)
        (again,) = (await claim_runs(connection, bench.poll(), LEASE, bench.now())).claims
        steps = [bench.completed("two", 2)] if records else []
        await ring.chunk(again, *steps, ParkRun(available_at=until, inbox_seq=again.inbox_seq))(connection)
        return woken

    assert await ring.fight(wake_claim_and_park, wake) == (True, True)
    note = read_woken((await bench.claim(claim.run_id)).woken, incarnation=0, attempts=0)
    assert note == Woken(0, 0, 2 if records else 1, until)


async def test_a_claim_passes_over_a_run_that_is_being_cancelled(ring: Ring) -> None:
    run_id = await ring.bench.start()
    transaction = ring._first.transaction()
    await transaction.start()
    assert await ring.cancel(run_id)(ring._first) == (True, CANCELLED)

    assert (await ring.claim()(ring._second)).claims == ()

    await transaction.commit()
    assert await ring.bench.claims() == ()


@pytest.mark.parametrize("state", ["fresh", "parked"])
@pytest.mark.parametrize("request_", ["cancel", "terminate"])
async def test_a_request_waits_for_a_claim(ring: Ring, state: str, request_: str) -> None:
    run_id = await ring.bench.start()
    if state == "parked":
        await ring.bench.done(await ring.bench.claim(), ParkRun(available_at=ring.bench.now(), inbox_seq=0))
    request = ring.cancel(run_id) if request_ == "cancel" else ring.terminate(run_id)

    polled, answer = await ring.fight(ring.claim(), request)

    (claim,) = polled.claims
    assert not claim.cancel_requested
    if request_ == "cancel":
        # It has been begun, so it is told, and its new holder cannot park past it.
        assert answer == (True, RUNNING)
        park = ParkRun(available_at=ring.bench.now() + FAR, inbox_seq=claim.inbox_seq)
        assert await ring.bench.send(claim, park) is ChunkAnswer.NEWS
    else:
        assert answer == (True, CANCELLED)
        assert await ring.bench.send(claim, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST


async def test_two_requests(ring: Ring) -> None:
    first, second = await ring.bench.started_claim(), await ring.bench.started_claim()
    assert await ring.fight(ring.cancel(first.run_id), ring.cancel(first.run_id)) == ((True, RUNNING),) * 2
    assert await ring.fight(ring.terminate(second.run_id), ring.cancel(second.run_id)) == ((True, CANCELLED),) * 2
    await ring.bench.done(first, HandBackRun())
    assert (await ring.bench.claim(first.run_id)).inbox_seq == first.inbox_seq + 1


async def test_a_recovery_keeps_a_cancellation(ring: Ring) -> None:
    claim = await ring.bench.started_claim()
    ring.bench.clock.advance(claim.lease)

    async def recover(connection: Connection) -> Any:
        pool: Any = OneConnection(connection)
        indexes: Any = None
        duties = Duties(pool, ring.bench.now, indexes)
        return await duties.recover_runs(10, 3, lambda crashes: crashes - 1)

    recovered, answer = await ring.fight(recover, ring.cancel(claim.run_id))

    assert [run.status for run in recovered.runs] == [PENDING]
    assert answer == (True, PENDING)
    assert (await ring.bench.claim(claim.run_id)).cancel_requested


# Races that nobody arranges.


async def test_exactly_one_side_wins(bench: Bench, postgres_database: str) -> None:
    """Terminations against completions, and cancellations of runs that nobody has begun against claims."""
    other = PostgresStore(postgres_database, now=bench.clock.now)
    chance = random.Random(11)
    won: Counter[str] = Counter()

    async def after(delay: int, work: Awaitable[Any]) -> Any:
        for _ in range(delay):
            await asyncio.sleep(0)
        answer = await work
        return answer.answers if isinstance(answer, Applied) else answer

    for number in range(RACES):
        run_id = await bench.start()
        if number % 2:
            claim = await bench.claim(run_id)
            (asked,), (done,) = await asyncio.gather(
                after(chance.randrange(4), other.work.apply([TerminateRun(namespace=NAMESPACE, run_id=run_id)])),
                after(chance.randrange(4), bench.apply([bench.chunk(claim, CompleteRun(output=b"1"))])),
            )
            outcome = (asked.effective, asked.status, done)
            terminated = (True, CANCELLED, ChunkAnswer.LEASE_LOST)
            assert outcome in (terminated, (False, COMPLETED, ChunkAnswer.DONE))
            won["terminate" if outcome == terminated else "complete"] += 1
            assert (await bench.run(run_id)).status is asked.status
        else:
            polled: Polled
            (asked,), polled = await asyncio.gather(
                after(chance.randrange(4), other.work.apply([CancelRun(namespace=NAMESPACE, run_id=run_id)])),
                after(chance.randrange(4), bench.polled(bench.poll())),
            )
            assert asked.effective
            claimed = len(polled.claims) == 1
            assert asked.status is (RUNNING if claimed else CANCELLED)
            won["claim" if claimed else "cancel"] += 1
            if claimed:
                # The claim was first, so its holder hears of the cancellation afterwards.
                (claim,) = polled.claims
                park = ParkRun(available_at=bench.now() + FAR, inbox_seq=claim.inbox_seq)
                assert await bench.send(claim, park) is ChunkAnswer.NEWS
                await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=run_id))
            assert (await bench.run(run_id)).status is CANCELLED
    assert sum(won.values()) == RACES
    assert set(won) == {"terminate", "complete", "cancel", "claim"}, won
    await other.close()

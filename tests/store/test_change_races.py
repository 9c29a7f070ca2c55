"""Restarts, forks, continuations and moves meet whatever else may happen to their run, in both orders, on both stores.

On PostgreSQL the first side holds its transaction open while the second one comes, and that waits for it, passes it by,
or finds what was there before. SQLite has one writer, so there the two come one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import msgspec
import pytest

from kagzi.api.operations import (
    CancelRun,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    ContinueRun,
    FailRun,
    Fork,
    ParkRun,
    RepeatRun,
    RetryRun,
    SendSignal,
    SignalAnswer,
    Started,
    StartRun,
    StartSignal,
    TerminateRun,
)
from kagzi.api.workers import Claim
from kagzi.core.conflict import OnConflict
from kagzi.core.instant import SECOND
from kagzi.core.run import Run, RunStatus
from kagzi.errors import Conflict, NotFound
from kagzi.store.postgres.cancels import apply_requests
from kagzi.store.postgres.chunks import apply_chunks
from kagzi.store.postgres.claims import claim_runs
from kagzi.store.postgres.connection import Connector
from kagzi.store.postgres.duties import Duties
from kagzi.store.postgres.signals import apply_signals
from kagzi.store.postgres.starts import apply_starts
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.postgres.versions import Versions
from kagzi.store.sqlite import SqliteStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, TYPE
from kagzi.testing.conformance.children import ERROR
from kagzi.testing.conformance.restarts import ID, finished, holder, repeat_of
from tests.store.postgres.test_cancel_races import Ring
from tests.store.shared import OneConnection

Side = Any  # a write, or the word for a duty, a move or a claim
Meet = Callable[[Side, Side], Awaitable[tuple[Any, Any]]]
BEGINNING = ("", -(2**63), "00000000-0000-0000-0000-000000000000")
CANCELLED, PENDING, RUNNING = RunStatus.CANCELLED, RunStatus.PENDING, RunStatus.RUNNING
DONE, LEASE_LOST = ChunkAnswer.DONE, ChunkAnswer.LEASE_LOST
RETENTION = 40 * 24 * 3600 * SECOND
ORDERS = pytest.mark.parametrize("change_first", [True, False])


class Arena:
    def __init__(self, bench: Bench, ring: Ring | None = None) -> None:
        self.bench = bench
        self._ring = ring

    async def meet(self, first: Side, second: Side) -> tuple[Any, Any]:
        if self._ring is not None:
            return await self._ring.meet(self._on_connection(first), self._on_connection(second))
        return await self._alone(first), await self._alone(second)

    async def both(self, change: Side, other: Side, change_first: bool) -> tuple[Any, Any]:
        """What the two answer, that of the change first, whoever came first."""
        if change_first:
            return await self.meet(change, other)
        later, sooner = await self.meet(other, change)
        return sooner, later

    async def _alone(self, side: Side) -> Any:
        store, bench = self.bench.store, self.bench
        match side:
            case "prune":
                return await store.duties.prune_runs(10, None)
            case "deadline":
                return await store.duties.time_out_runs(10)
            case "move":
                return await store.versions.move_runs(NAMESPACE, TYPE, "1", "2", BEGINNING, 10, False)
            case "claim":
                return await bench.claims()
        return await bench.answer(side)

    def _on_connection(self, side: Side) -> Callable[[Any], Awaitable[Any]]:
        bench = self.bench

        async def act(connection: Any) -> Any:
            pool: Any = OneConnection(connection)
            indexes: Any = bench.store.duties.indexes  # type: ignore[attr-defined]
            now = bench.now()
            match side:
                case "prune":
                    return await Duties(pool, bench.now, indexes).prune_runs(10, None)
                case "deadline":
                    return await Duties(pool, bench.now, indexes).time_out_runs(10)
                case "move":
                    versions = Versions(pool, bench.now, indexes)
                    return await versions.move_runs(NAMESPACE, TYPE, "1", "2", BEGINNING, 10, False)
                case "claim":
                    return (await claim_runs(connection, bench.poll(), LEASE, now)).claims
                case StartRun():
                    applied = await apply_starts(connection, [side], now)
                case SendSignal():
                    applied = await apply_signals(connection, [side], now)
                case Chunk():
                    applied = await apply_chunks(connection, [side], now)
                case _:
                    assert isinstance(side, CancelRun | TerminateRun | RepeatRun)
                    applied = await apply_requests(connection, [side], now)
            return applied.answers[0]

        return act


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def arena(request: pytest.FixtureRequest) -> AsyncIterator[Arena]:
    clock = VirtualClock()
    if request.param == "sqlite":
        store: Any = SqliteStore(request.getfixturevalue("sqlite_file"), now=clock.now)
        await store.open()
        yield Arena(Bench(store, clock))
        await store.close()
        return
    url = request.getfixturevalue("postgres_database")
    store = PostgresStore(url, now=clock.now)
    await store.open()
    connector = Connector(url, statement_cache_size=100)
    first, second, watcher = await connector.connect(), await connector.connect(), await asyncpg.connect(url)
    bench = Bench(store, clock)
    yield Arena(bench, Ring(bench, first, second, watcher))
    for connection in (first, second, watcher):
        await connection.close()
    await store.close()


# Restarts.


def restart(bench: Bench) -> StartRun:
    return bench.start_run(external_id=ID, on_conflict=OnConflict.RESTART_FINISHED)


def signal_to(run_id: str) -> SendSignal:
    return SendSignal(namespace=NAMESPACE, run_id=run_id, name="x", value=b"1", key="k")


async def keys(bench: Bench, run_id: str) -> list[str]:
    return [signal.key for signal in await bench.store.signals.page(NAMESPACE, run_id, 0, 10)]


@ORDERS
async def test_a_restart_and_the_end_of_the_run_that_has_the_id(arena: Arena, change_first: bool) -> None:
    bench = arena.bench
    claim = await bench.started_claim(external_id=ID)
    end = bench.chunk(claim, FailRun(error=ERROR))

    started, ended = await arena.both(restart(bench), end, change_first)

    assert ended is DONE
    assert isinstance(started, Started)
    # Whoever saw it alive got it; whoever saw its end made another one.
    assert started.already_exists == (started.run_id == claim.run_id)
    assert (await holder(bench)).run_id == started.run_id
    if change_first:
        assert started.already_exists


@ORDERS
async def test_a_restart_and_the_deletion_of_the_run_that_has_the_id(arena: Arena, change_first: bool) -> None:
    bench = arena.bench
    old = await finished(bench)
    bench.clock.advance(RETENTION)
    start = restart(bench)

    started, _ = await arena.both(start, "prune", change_first)

    assert isinstance(started, Started)
    assert (started.run_id, started.already_exists) == (start.run_id, False)
    assert (await holder(bench)).run_id == start.run_id
    left = await bench.store.runs.get(NAMESPACE, old.run_id)
    assert left is None or left.superseded_by == start.run_id


@ORDERS
@pytest.mark.parametrize("keep_id", [True, False])
async def test_a_restart_and_a_repeat(arena: Arena, change_first: bool, keep_id: bool) -> None:
    bench = arena.bench
    old = await finished(bench)
    start, again = restart(bench), repeat_of(bench, old.run_id, keep_id=keep_id)

    started, repeated = await arena.both(start, again, change_first)

    assert isinstance(started, Started)
    assert isinstance(repeated, Started)
    new = await holder(bench)
    assert started.run_id == new.run_id
    assert (await bench.run(old.run_id)).superseded_by == new.run_id
    if keep_id:  # both want to take its place: the second finds the first
        assert repeated.run_id == new.run_id
        assert new.run_id == (start if change_first else again).run_id
    else:
        assert repeated.run_id == again.run_id
        assert (await bench.run(again.run_id)).external_id is None


@ORDERS
async def test_a_restart_and_a_signal_to_the_old_run(arena: Arena, change_first: bool) -> None:
    bench = arena.bench
    old = await finished(bench)
    start = restart(bench)

    started, told = await arena.both(start, signal_to(old.run_id), change_first)

    assert isinstance(started, Started)
    assert started.run_id == start.run_id
    assert isinstance(told, Conflict)  # that run is over
    assert await keys(bench, old.run_id) == await keys(bench, start.run_id) == []


@ORDERS
async def test_a_start_with_its_first_signal_and_the_end_of_the_run_that_has_the_id(
    arena: Arena, change_first: bool
) -> None:
    """It is told once: the run that is still live, which then ends without having taken it, or the new one."""
    bench = arena.bench
    claim = await bench.started_claim(external_id=ID)
    signal = StartSignal(name="x", value=b"1", key="k")
    start = msgspec.structs.replace(restart(bench), signal=signal)

    started, ended = await arena.both(start, bench.chunk(claim, FailRun(error=ERROR)), change_first)

    assert ended is DONE
    assert isinstance(started, Started)
    assert started.already_exists == (started.run_id == claim.run_id)
    told = [run for run in {claim.run_id, start.run_id} if await _exists(bench, run) and await keys(bench, run)]
    assert told == [started.run_id]
    if change_first:
        assert started.run_id == claim.run_id


async def _exists(bench: Bench, run_id: str) -> bool:
    return await bench.store.runs.get(NAMESPACE, run_id) is not None


# Forks.


async def source(bench: Bench) -> Claim:
    claim = await bench.started_claim()
    await bench.done(claim, bench.completed("reserve", 1), bench.completed("charge", 2))
    return claim


def fork_of(bench: Bench, run_id: str, from_step: str) -> RepeatRun:
    fork = Fork(from_step=from_step)
    return RepeatRun(
        namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=run_id, keep_steps=True, keep_id=False, fork=fork
    )


@ORDERS
async def test_a_fork_and_a_source_that_records_more(arena: Arena, change_first: bool) -> None:
    bench = arena.bench
    claim = await source(bench)
    request = fork_of(bench, claim.run_id, "ship")
    more = bench.chunk(claim, bench.completed("ship", 3), bench.completed("mail", 4))

    forked, recorded = await arena.both(request, more, change_first)

    assert recorded is DONE
    if change_first:
        assert isinstance(forked, NotFound)  # that step has not ended yet
        assert await bench.store.runs.get(NAMESPACE, request.run_id) is None
    else:
        assert isinstance(forked, Started)
        new = await bench.claim(request.run_id)
        assert [step.step_id for step in new.history] == ["reserve", "charge"]


@ORDERS
async def test_a_fork_and_a_source_that_is_tried_again(arena: Arena, change_first: bool) -> None:
    """Its events are set aside: all of them or none are kept, never some."""
    bench = arena.bench
    claim = await source(bench)
    request = fork_of(bench, claim.run_id, "charge")
    again = bench.chunk(claim, RetryRun(available_at=bench.now() + 100 * SECOND, keep_seq=0, error=ERROR))

    forked, retried = await arena.both(request, again, change_first)

    assert retried is DONE
    if change_first:
        assert isinstance(forked, Started)
        assert [step.step_id for step in (await bench.claim(request.run_id)).history] == ["reserve"]
    else:
        assert isinstance(forked, NotFound)
        assert await bench.store.runs.get(NAMESPACE, request.run_id) is None


@ORDERS
async def test_a_fork_and_the_deletion_of_its_source(arena: Arena, change_first: bool) -> None:
    bench = arena.bench
    claim = await source(bench)
    await bench.done(claim, FailRun(error=ERROR))
    bench.clock.advance(RETENTION)
    request = fork_of(bench, claim.run_id, "charge")

    forked, _ = await arena.both(request, "prune", change_first)

    if change_first:
        assert isinstance(forked, Started)
        assert [step.step_id for step in (await bench.claim(request.run_id)).history] == ["reserve"]
    else:
        assert isinstance(forked, NotFound)
        assert await bench.store.runs.get(NAMESPACE, request.run_id) is None


async def test_a_fork_of_a_run_that_has_begun_anew_is_one_of_what_it_is_now(arena: Arena) -> None:
    bench = arena.bench
    claim = await source(bench)
    await bench.done(claim, ContinueRun(input=b"[2]"))
    claim = await bench.claim(claim.run_id)
    await bench.done(claim, bench.completed("pay", 1), bench.completed("ship", 2))

    before, now = fork_of(bench, claim.run_id, "charge"), fork_of(bench, claim.run_id, "ship")
    refused, forked = await bench.answer(before), await bench.answer(now)

    assert isinstance(refused, NotFound)  # older incarnations are shown, not forked
    assert isinstance(forked, Started)
    new = await bench.claim(now.run_id)
    assert (new.input, [step.step_id for step in new.history]) == (b"[2]", ["pay"])


# Continuations.


def anew(bench: Bench, claim: Claim) -> Chunk:
    return bench.chunk(claim, bench.completed("charge", 1), ContinueRun(input=b"[2]"))


@ORDERS
async def test_a_continuation_and_a_signal(arena: Arena, change_first: bool) -> None:
    bench = arena.bench
    claim = await bench.started_claim()

    continued, told = await arena.both(anew(bench, claim), signal_to(claim.run_id), change_first)

    assert continued is DONE
    assert isinstance(told, SignalAnswer)
    new = await bench.claim(claim.run_id)
    assert (new.input, new.incarnation, new.history) == (b"[2]", 1, ())
    inbox = await bench.store.signals.read_inbox(NAMESPACE, new.run_id, new.token, ("x",), 100, False, False)
    assert [signal.key for signal in inbox.signals] == ["k"]


@ORDERS
async def test_a_continuation_and_a_cancellation(arena: Arena, change_first: bool) -> None:
    bench = arena.bench
    claim = await bench.started_claim()
    cancel = CancelRun(namespace=NAMESPACE, run_id=claim.run_id)

    continued, asked = await arena.both(anew(bench, claim), cancel, change_first)

    assert continued is DONE
    assert asked.effective
    new = await bench.claim(claim.run_id)
    assert (new.incarnation, new.cancel_requested) == (1, True)


@ORDERS
@pytest.mark.parametrize("way", ["terminate", "deadline"])
async def test_a_continuation_and_an_end_from_outside(arena: Arena, change_first: bool, way: str) -> None:
    bench = arena.bench
    claim = await bench.started_claim(timeout=5 * SECOND)
    ended = CANCELLED
    end: Side = TerminateRun(namespace=NAMESPACE, run_id=claim.run_id, reason="enough")
    if way == "deadline":
        end, ended = "deadline", RunStatus.TIMED_OUT
        bench.clock.advance(6 * SECOND)

    continued, _ = await arena.both(anew(bench, claim), end, change_first)

    if await _is_live(bench, claim.run_id):  # a duty passes by what somebody holds, and comes again
        assert (way, change_first) == ("deadline", True)
        await bench.store.duties.time_out_runs(10)
    run = await bench.run(claim.run_id)
    assert (run.status, run.incarnation) == (ended, 1 if change_first else 0)
    assert continued is (DONE if change_first else LEASE_LOST)
    assert await bench.claims() == ()


async def _is_live(bench: Bench, run_id: str) -> bool:
    run: Run = await bench.run(run_id)
    return not run.status.finished


# Moves.


@ORDERS
async def test_a_move_and_a_claim(arena: Arena, change_first: bool) -> None:
    """It is claimed in the version it has then, or left to whoever has the other one; never held in another version
    than its holder knows."""
    bench = arena.bench
    run_id = await bench.start()

    page, claims = await arena.both("move", "claim", change_first)

    run = await bench.run(run_id)
    if claims:
        assert [(claim.run_id, claim.version) for claim in claims] == [(run_id, run.version)]
        assert run.status is RUNNING
    else:
        assert (run.status, run.version) == (PENDING, "2")
    assert page.moved == (run.version == "2")
    if not change_first:
        assert run.version == "1"


@ORDERS
async def test_a_move_and_a_park(arena: Arena, change_first: bool) -> None:
    bench = arena.bench
    claim = await bench.started_claim()
    park = bench.chunk(claim, ParkRun(available_at=bench.now() + 100 * SECOND, inbox_seq=0))

    page, parked = await arena.both("move", park, change_first)

    assert parked is DONE
    run = await bench.run(claim.run_id)
    assert run.status is RunStatus.SLEEPING
    assert page.moved == (run.version == "2")
    if change_first:
        assert (page.moved, run.version) == (0, "1")


async def test_the_end_of_a_moved_run_is_refused_to_nobody(arena: Arena) -> None:
    """A run is moved while nobody holds it, so what its last holder repeats is answered as before."""
    bench = arena.bench
    claim = await bench.started_claim()
    park = bench.chunk(claim, ParkRun(available_at=bench.now(), inbox_seq=0))
    assert await bench.answer(park) is DONE
    await bench.store.versions.move_runs(NAMESPACE, TYPE, "1", "2", BEGINNING, 10, False)
    assert await bench.answer(park) is DONE
    assert await bench.send(claim, CompleteRun(output=b"1")) is LEASE_LOST
    assert (await bench.run(claim.run_id)).version == "2"

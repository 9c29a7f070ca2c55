"""Rows that another transaction holds: who waits for them, who does not, and what those are told who wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from kagzi.api.operations import (
    CancelRun,
    ChunkAnswer,
    CompleteRun,
    FailRun,
    RepeatRun,
    SendSignal,
    StartDebounce,
    Started,
    StartSignal,
    TerminateRun,
    Write,
)
from kagzi.core.conflict import OnConflict
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.errors import Locked
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import LEASE, NAMESPACE
from kagzi.testing.conformance.children import parent_and_child, spawn

pytestmark = pytest.mark.postgres

HOLD = "SELECT FROM kagzi.workflow_runs WHERE run_id = $1 FOR UPDATE"


class Holder:
    """Another transaction, of an application with a name."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.pid = connection.get_server_pid()
        self._transaction = connection.transaction()

    async def hold(self, statement: str, *arguments: object) -> None:
        await self._transaction.start()
        await self.connection.execute(statement, *arguments)

    async def let_go(self) -> None:
        await self._transaction.commit()


@pytest.fixture
async def holder(postgres_database: str) -> AsyncIterator[Holder]:
    connection = await asyncpg.connect(postgres_database, server_settings={"application_name": "shop-web"})
    yield Holder(connection)
    await connection.close()


# Each makes a write, and says what has to be held for it to wait.


async def of_a_step(bench: Bench) -> tuple[Write, str]:
    claim = await bench.started_claim()
    return bench.chunk(claim, bench.completed("charge", 1)), claim.run_id


async def of_an_end(bench: Bench) -> tuple[Write, str]:
    claim = await bench.started_claim()
    return bench.chunk(claim, CompleteRun(output=b"x" * 5000)), claim.run_id


async def of_a_child_that_ends(bench: Bench) -> tuple[Write, str]:
    parent, child = await parent_and_child(bench)
    return bench.chunk(child, CompleteRun(output=b"1")), parent.run_id


async def of_a_child_that_fails(bench: Bench) -> tuple[Write, str]:
    parent, child = await parent_and_child(bench)
    return bench.chunk(child, FailRun(error=b"no", family=True)), parent.run_id


async def of_a_child_that_takes_an_id(bench: Bench) -> tuple[Write, str]:
    parent = await bench.started_claim()
    old = await bench.start(external_id="child-1")
    await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=old))
    child = spawn(bench, external_id="child-1", on_conflict=OnConflict.RESTART_FINISHED)
    return bench.chunk(parent, child), old


async def of_a_signal(bench: Bench) -> tuple[Write, str]:
    run_id = await bench.start()
    return SendSignal(namespace=NAMESPACE, run_id=run_id, key="k", name="added", value=b"1"), run_id


async def of_a_cancellation(bench: Bench) -> tuple[Write, str]:
    run_id = await bench.start()
    return CancelRun(namespace=NAMESPACE, run_id=run_id), run_id


async def of_a_termination(bench: Bench) -> tuple[Write, str]:
    run_id = await bench.start()
    return TerminateRun(namespace=NAMESPACE, run_id=run_id), run_id


async def of_a_repetition(bench: Bench) -> tuple[Write, str]:
    claim = await bench.started_claim()
    await bench.done(claim, CompleteRun(output=b"1"))
    return RepeatRun(namespace=NAMESPACE, of_run_id=claim.run_id, run_id=bench.new_id(), keep_steps=False), claim.run_id


async def of_a_start_with_a_signal(bench: Bench) -> tuple[Write, str]:
    run_id = await bench.start(external_id="order-1")
    return bench.start_run(external_id="order-1", signal=StartSignal(name="added", value=b"1", key="k")), run_id


async def of_a_debounced_start(bench: Bench) -> tuple[Write, str]:
    debounce = StartDebounce(key="k", wait=SECOND)
    run_id = await bench.start(debounce=debounce)
    return bench.start_run(debounce=debounce, input=b"2"), run_id


MADE: list[Callable[[Bench], Awaitable[tuple[Write, str]]]] = [
    of_a_step,
    of_an_end,
    of_a_child_that_ends,
    of_a_child_that_fails,
    of_a_child_that_takes_an_id,
    of_a_signal,
    of_a_cancellation,
    of_a_termination,
    of_a_repetition,
    of_a_start_with_a_signal,
    of_a_debounced_start,
]


async def check_apart(bench: Bench, holder: Holder, write: Write) -> None:
    """Checks that this write waits and no other does, that its answer names the holder, and that it is written when the
    holder is done."""
    claims = [await bench.started_claim() for _ in range(6)]
    others = [bench.chunk(claim, bench.completed("other", 1)) for claim in claims]
    starts = [bench.start_run(external_id=f"other-{number}") for number in range(3)]

    answers = await bench.apply_once([*others[:3], *starts, write, *others[3:]])
    assert isinstance(answers.pop(6), Locked)
    assert [answer for answer in answers if not isinstance(answer, Started)] == [ChunkAnswer.DONE] * 6
    for claim in claims:
        assert len(await bench.steps(claim.run_id)) == 1

    (waited,) = (await bench.store.work.apply_patiently([write])).answers
    assert isinstance(waited, Locked)
    if "is being given from run to run" not in str(waited):  # of which nobody waits in the database
        assert f"PostgreSQL process {holder.pid} (application shop-web, in its transaction for " in str(waited)

    await holder.let_go()
    (answer,) = (await bench.store.work.apply_patiently([write])).answers
    assert not isinstance(answer, Exception), answer


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
async def test_a_write_that_needs_a_held_run_waits_alone(
    bench: Bench, holder: Holder, make: Callable[[Bench], Awaitable[tuple[Write, str]]]
) -> None:
    write, held = await make(bench)
    await holder.hold(HOLD, held)
    await check_apart(bench, holder, write)


async def test_a_start_whose_id_is_not_committed_yet_waits_alone(bench: Bench, holder: Holder) -> None:
    columns = "run_id, namespace, task_queue, workflow_type, version, status, created_at, external_id, available_at"
    await holder.hold(
        f"INSERT INTO kagzi.workflow_runs ({columns}, claim_key, input)"
        " VALUES (gen_random_uuid(), $1, 'orders', 'checkout', '1', 'PENDING', 1, 'order-1', 1, 1, 'null')",
        NAMESPACE,
    )
    await check_apart(bench, holder, bench.start_run(external_id="order-1", input=b"null"))


async def test_what_is_behind_a_held_write_of_its_run_is_not_written_before_it(bench: Bench, holder: Holder) -> None:
    claim, other = await bench.started_claim(), await bench.started_claim()
    chunks = [bench.chunk(claim, bench.completed(f"step-{number}", number)) for number in range(1, 6)]
    await holder.hold(HOLD, claim.run_id)
    answers = await bench.apply_once([*chunks, bench.chunk(other, bench.completed("other", 1))])
    assert [type(answer) for answer in answers] == [Locked] * 5 + [ChunkAnswer]
    await holder.let_go()
    assert (await bench.store.work.apply_patiently(chunks)).answers == [ChunkAnswer.DONE] * 5
    assert [step.completed_seq for step in await bench.steps(claim.run_id)] == [1, 2, 3, 4, 5]


async def test_a_value_that_cannot_be_stored_fails_alone_beside_a_held_run(bench: Bench, holder: Holder) -> None:
    good, bad, held = [await bench.started_claim() for _ in range(3)]
    await holder.hold(HOLD, held.run_id)
    answers = await bench.apply_once(
        [
            bench.chunk(bad, bench.completed("nul\0", 1)),
            bench.chunk(held, bench.completed("charge", 1)),
            bench.chunk(good, bench.completed("charge", 1)),
        ]
    )
    assert isinstance(answers[0], Exception)
    assert not isinstance(answers[0], Locked)
    assert isinstance(answers[1], Locked)
    assert answers[2] is ChunkAnswer.DONE


async def test_a_held_table_holds_up_everything_and_says_who_holds_it(bench: Bench, holder: Holder) -> None:
    claims = [await bench.started_claim() for _ in range(2)]
    await holder.hold("LOCK TABLE kagzi.workflow_runs IN ACCESS EXCLUSIVE MODE")
    for count in (1, 2):
        with pytest.raises(Locked, match=rf"process {holder.pid} .*has all of table kagzi.workflow_runs"):
            await bench.store.work.apply([bench.chunk(claim, bench.completed("a", 1)) for claim in claims[:count]])
    await holder.let_go()
    await bench.done(claims[0], bench.completed("a", 1))


async def test_the_leases_of_others_are_renewed_and_a_held_one_is_said_not_to_be(bench: Bench, holder: Holder) -> None:
    held, kept, other = [await bench.started_claim() for _ in range(3)]
    foreign = bench.new_id()
    await bench.store.workers.register(bench.registration())
    await bench.store.workers.register(bench.registration(worker_id=foreign))
    await holder.connection.execute(
        "UPDATE kagzi.workflow_runs SET worker_id = $1 WHERE run_id = $2", foreign, other.run_id
    )
    bench.clock.advance(LEASE // 2)
    await holder.hold("SELECT FROM kagzi.workflow_runs, kagzi.workers WHERE run_id = $1 FOR UPDATE", held.run_id)
    beats = [bench.heartbeat(held, kept), bench.heartbeat(other, worker_id=foreign)]
    first, second = [each.answer for each in await bench.store.workers.heartbeats(beats)]
    assert (first.unrenewed, first.lost, first.known) == ((held.run_id,), (), True)
    assert (second.unrenewed, second.lost, second.known) == ((), (), True)
    await holder.let_go()
    bench.clock.advance(LEASE // 2)
    assert [run.run_id for run in await bench.recover()] == [held.run_id]
    again, _ = await bench.beat(held, kept)
    assert (again.unrenewed, again.lost) == ((), (held.run_id,))


async def test_a_worker_that_is_not_known_is_not_told_that_it_lost_what_is_held(bench: Bench, holder: Holder) -> None:
    claim, other = [await bench.started_claim() for _ in range(2)]
    taken = replace(claim, token=bench.new_id())
    await holder.hold(HOLD, claim.run_id)
    for mine, answer in ((claim, ((claim.run_id,), ())), (taken, ((), (claim.run_id,)))):
        beaten, _ = await bench.beat(mine, other)
        assert (beaten.known, (beaten.unrenewed, beaten.lost)) == (False, answer)


async def test_a_row_that_many_wait_for_is_blamed_on_who_holds_it(
    bench: Bench, holder: Holder, postgres_database: str
) -> None:
    """And not on one of those who wait for it, too."""
    claim = await bench.started_claim()
    chunk = bench.chunk(claim, bench.completed("a", 1))
    others: list[Any] = [PostgresStore(postgres_database, now=bench.clock.now) for _ in range(2)]
    await holder.hold(HOLD, claim.run_id)
    applied = await asyncio.gather(*(store.work.apply_patiently([chunk]) for store in (bench.store, *others)))
    for each in applied:
        assert f"process {holder.pid} " in str(each.answers[0])
    for store in others:
        await store.close()


async def test_of_a_namespace_whose_limits_are_held_one_poll_at_a_time_waits(
    bench: Bench, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.store.limits.change(NAMESPACE, Scope.QUEUE, "orders", LimitChange(concurrency=5))
    await bench.start()
    await holder.hold("SELECT FROM kagzi.limits FOR UPDATE")
    with pytest.raises(Locked):
        await bench.claims()
    store = bench.store
    assert isinstance(store, PostgresStore)
    with monkeypatch.context() as patch:
        patch.setattr(store.work, "pool", None)  # which is left to others
        for _ in range(5):
            with pytest.raises(Locked, match="limits of namespace default are locked"):
                await bench.claims()
    assert (await store.work.claim(bench.poll(namespace="other"), LEASE)).claims == ()
    await holder.let_go()
    async with asyncio.timeout(30):
        while True:
            try:
                assert len(await bench.claims()) == 1
                break
            except Locked:
                await asyncio.sleep(0.05)

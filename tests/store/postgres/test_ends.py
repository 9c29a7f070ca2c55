"""What an end of a run costs: where nothing follows from it, one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from kagzi.api.operations import CancelRun, ChunkAnswer, CompleteRun, FailRun, Operation, TerminateRun
from kagzi.core.exceptions import failure_of
from kagzi.core.run import RunStatus
from kagzi.store.postgres.cancels import apply_requests
from kagzi.store.postgres.chunks import apply_chunks
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import NAMESPACE, TYPE
from kagzi.testing.conformance.children import spawn

pytestmark = pytest.mark.postgres
ERROR = failure_of(ValueError("no")).encode()


async def statements_of(
    bench: Bench, connection: asyncpg.Connection, *operations: Operation, **start: Any
) -> Sequence[str]:
    """Starts a run, claims it and sends this chunk. Returns the statements it took, our own by their names."""
    claim = await bench.started_claim(**start)
    texts: list[str] = []
    with connection.query_logger(lambda record: texts.append(record.query)):
        applied = await apply_chunks(connection, [bench.chunk(claim, *operations)], bench.now())
        await asyncio.sleep(0)  # the last one is noted in this turn
    assert applied.answers == [ChunkAnswer.DONE]
    assert (await bench.run(claim.run_id)).status is operations[-1].status  # type: ignore[attr-defined]
    names = {text: name for name, text in STATEMENTS.items()}
    return [
        names.get(text, text) for text in texts if text in names or not text.lstrip().startswith(("SELECT", "WITH"))
    ]


async def test_a_run_alone_ends_in_one_statement(bench: Bench, connection: asyncpg.Connection) -> None:
    failed = bench.failed("charge", completed_seq=1, error=ERROR)
    assert await statements_of(bench, connection, CompleteRun(output=b"1", family=False)) == [
        "record_step_and_move_run"
    ]
    assert await statements_of(bench, connection, FailRun(error=ERROR, family=False)) == ["record_step_and_fail_run"]
    assert await statements_of(bench, connection, failed, FailRun(error=ERROR, family=False)) == [
        "record_step_and_fail_run"
    ]


async def test_a_failure_that_is_handled_is_written_with_its_handler(
    bench: Bench, connection: asyncpg.Connection
) -> None:
    fail = FailRun(error=ERROR, family=False)
    taken = await statements_of(bench, connection, fail, on_failure="notify", on_failure_queue="ops")
    assert taken[0] == "record_step_and_fail_run"
    assert "start_handlers" in taken
    assert "tell_outcomes" not in taken  # it has no parent
    await bench.store.namespaces.update(NAMESPACE, None, None, None, ("notify", "ops"))
    assert "start_handlers" in await statements_of(bench, connection, fail)


async def test_a_parent_is_told_of_a_failure(bench: Bench, connection: asyncpg.Connection) -> None:
    assert "tell_outcomes" in await statements_of(bench, connection, FailRun(error=ERROR))


async def test_a_stale_token_fails_nothing(bench: Bench) -> None:
    claim = await bench.started_claim(on_failure="notify", on_failure_queue="ops")
    answer = await bench.send(claim, FailRun(error=ERROR, family=False), token=bench.new_id())
    assert answer is ChunkAnswer.LEASE_LOST
    assert (await bench.run(claim.run_id)).status is RunStatus.RUNNING


async def test_what_nobody_else_hears_of_is_told_to_end_in_one_statement(
    bench: Bench, connection: asyncpg.Connection
) -> None:
    async def statements(request: CancelRun | TerminateRun) -> list[str]:
        texts: list[str] = []
        with connection.query_logger(lambda record: texts.append(record.query)):
            applied = await apply_requests(connection, [request], bench.now())
            await asyncio.sleep(0)
        assert getattr(applied.answers[0], "effective", False), applied
        names = {text: name for name, text in STATEMENTS.items()}
        return [names[text] for text in texts if text in names]

    begun = await bench.started_claim()
    unbegun = await bench.start()
    assert await statements(CancelRun(namespace=NAMESPACE, run_id=unbegun)) == ["cancel_run"]
    assert await statements(CancelRun(namespace=NAMESPACE, run_id=begun.run_id)) == ["cancel_run"]
    assert await statements(TerminateRun(namespace=NAMESPACE, run_id=begun.run_id)) == ["terminate_run"]
    parent = await bench.started_claim()
    child = spawn(bench)
    assert await bench.send(parent, child) is ChunkAnswer.DONE
    # A child that nobody has begun ends here, and its parent is told in the same transaction.
    assert "tell_outcomes" in await statements(CancelRun(namespace=NAMESPACE, run_id=child.child.run_id))


async def test_a_child_is_spawned_in_one_statement(bench: Bench, connection: asyncpg.Connection) -> None:
    claim = await bench.started_claim()
    texts: list[str] = []
    with connection.query_logger(lambda record: texts.append(record.query)):
        for operations in ([spawn(bench, "a")], [bench.completed("charge", 1), spawn(bench, "b")]):
            applied = await apply_chunks(connection, [bench.chunk(claim, *operations)], bench.now())
            assert applied.answers == [ChunkAnswer.DONE]
            assert [told.workflow_type for told in applied.woken] == [TYPE]
        await asyncio.sleep(0)
    assert texts == [STATEMENTS["spawn_child"]] * 2

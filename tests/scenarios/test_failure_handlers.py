"""What is started when a run fails for good."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import kagzi
from kagzi import FailedRun, InvalidRequest, Kagzi, NonRetryable, Retry, RunStatus
from kagzi.api.handling import failure_handlers
from kagzi.api.operations import StartRun
from kagzi.clock import SystemClock
from kagzi.core.failed_run import FAILURE_HANDLER
from kagzi.core.failure import SEALED
from kagzi.core.instant import SECOND
from kagzi.ids import RandomIds

IDS = RandomIds(SystemClock().now)


@dataclass
class Order:
    id: str


class Backwards:
    """A codec that nobody else has."""

    def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return base64.b64encode(data)

    def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return base64.b64decode(data)


class Program:
    """Fails, and keeps what its handlers were told."""

    def __init__(self, home: str, **options: Any) -> None:
        self.app = app = Kagzi(home, **options)
        self.told: list[FailedRun] = []

        @app.step(retry=Retry.none)
        async def fail(order: Order) -> None:
            raise NonRetryable(f"no {order.id}")

        @app.step
        async def note(failed: FailedRun) -> None:
            self.told.append(failed)

        @app.workflow
        async def notify_ops(failed: FailedRun) -> None:
            await note(failed)

        @app.workflow(on_failure=notify_ops)
        async def checkout(order: Order) -> None:
            await fail(order)

        @app.workflow
        async def sleepy() -> None:
            await kagzi.sleep("1h")

        @app.workflow(timeout="1h")
        async def hasty() -> None: ...

        self.notify_ops, self.checkout, self.sleepy = notify_ops, checkout, sleepy

    async def until_told(self, count: int) -> list[FailedRun]:
        async with asyncio.timeout(20):
            while len(self.told) < count:
                await asyncio.sleep(0.02)
        return self.told


async def test_a_failed_run_calls_its_handler(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        run = await program.checkout.options(id="failure-42").start(Order("42"))
        with pytest.raises(kagzi.WorkflowFailed):
            await run.result(timeout=20)
        (failed,) = await program.until_told(1)
        assert (failed.run_id, failed.id, failed.workflow, failed.version) == (run.id, "failure-42", "checkout", "1")
        assert (failed.queue, failed.namespace, failed.status) == ("default", "default", RunStatus.FAILED)
        assert (failed.input, failed.failure.message) == ([{"id": "42"}], "no 42")
        record = await run.get()
        assert (failed.created_at, failed.started_at) == (record.created_at, record.started_at)
        assert failed.failed_at == record.finished_at
        assert [each.workflow for each in (await app.runs()).items] == ["notify_ops", "checkout"]
        workflows = app.engine.workflows
        (handler,) = await failure_handlers(app.engine, await workflows.get("default", run.id))
        assert (handler.workflow_type, handler.handles_run_id) == ("notify_ops", run.id)
        assert await failure_handlers(app.engine, handler) == ()


async def test_a_run_that_is_started_by_its_name_calls_the_handler_of_its_decorator(home: str) -> None:
    """As commands, HTTP and other languages do. What a start says itself comes first."""
    program = Program(home)
    by_name = StartRun(
        namespace="default", run_id=IDS.run_id(), workflow_type="checkout", task_queue="default", input=b'[{"id":"1"}]'
    )
    async with program.app as app, app.worker():
        start = app.engine.workflows.start
        failed_run = await start(by_name)
        (failed,) = await program.until_told(1)
        assert failed.run_id == failed_run.run_id
        other = await start(msgspec.structs.replace(by_name, run_id=IDS.run_id(), on_failure="sleepy"))
        async with asyncio.timeout(20):
            while next(each.workflow for each in (await app.runs()).items) != "sleepy":
                await asyncio.sleep(0.02)
        named = msgspec.structs.replace(by_name, run_id=IDS.run_id(), workflow_type="hasty", input=b"[]")
        hasty = [await start(named)]
        hasty.append(await start(msgspec.structs.replace(named, run_id=IDS.run_id(), timeout=7 * SECOND)))
        runs = [await app.engine.workflows.get("default", each.run_id) for each in (*hasty, other)]
        lengths = [None if run.deadline_at is None else run.deadline_at - run.created_at for run in runs]
        assert lengths == [3600 * SECOND, 7 * SECOND, None]


async def test_a_handler_with_a_codec_reads_what_the_run_was_given(home: str) -> None:
    program = Program(home, codec=Backwards())
    async with program.app as app, app.worker():
        await program.checkout.start(Order("1"))
        (failed,) = await program.until_told(1)
        assert failed.input == [{"id": "1"}]


async def test_a_handler_with_another_codec_gets_everything_but_what_is_encoded(home: str) -> None:
    program, other = Program(home, codec=Backwards()), Program(home)
    async with program.app as app, other.app as beside:
        await program.checkout.options(on_failure="notify_ops", on_failure_queue="ops").start(Order("1"))
        async with app.worker(), beside.worker(queues=["ops"]):
            (failed,) = await other.until_told(1)
            assert (failed.failure.message, failed.failure.is_a(NonRetryable)) == (SEALED, True)
            with pytest.raises(InvalidRequest, match=f"the input of run {failed.run_id} cannot be read here"):
                _ = failed.input


async def test_a_deadline_calls_the_handler(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        await program.sleepy.options(timeout="200ms", on_failure=program.notify_ops).start()
        (failed,) = await program.until_told(1)
        assert (failed.status, failed.failure.type) == (RunStatus.TIMED_OUT, "kagzi.errors.WorkflowTimedOut")


async def test_the_handler_of_a_namespace_is_called_for_every_run_and_never_for_itself(home: str) -> None:
    program = Program(home)
    calls: list[str] = []

    @program.app.on_failure(queue="ops", retry=Retry.none)
    async def everything(failed: FailedRun) -> None:
        calls.append(failed.run_id)
        raise NonRetryable("the handler fails, too")

    async with program.app as app, app.worker(queues=["ops", "default"]):
        run = await program.checkout.start(Order("1"))
        await program.until_told(1)
        async with asyncio.timeout(20):
            while not (await app.runs(workflow=FAILURE_HANDLER, status="FAILED")).items:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert calls == [run.id]
        assert len((await app.runs()).items) == 3
        again = await program.sleepy.options(timeout="100ms").start()
        async with asyncio.timeout(20):
            while len(calls) < 2:
                await asyncio.sleep(0.02)
        assert calls == [run.id, again.id]


async def test_cancelled_runs_call_nobody(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        run = await program.sleepy.options(on_failure=program.notify_ops).start()
        await run.cancel()
        with pytest.raises(kagzi.WorkflowCancelled):
            await run.result(timeout=20)
        await asyncio.sleep(0.2)
        assert [each.workflow for each in (await app.runs()).items] == ["sleepy"]


async def test_a_handler_that_is_retried_by_hand_gets_the_same(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        await program.checkout.start(Order("1"))
        first = (await program.until_told(1))[0]
        (handler,) = (await app.runs(workflow="notify_ops")).items
        await app.handle(handler.run_id).result(timeout=20)
        await app.handle(handler.run_id).rerun()
        assert (await program.until_told(2))[1] == first


async def test_what_cannot_handle_failures_is_refused_at_once(home: str) -> None:
    app = Kagzi(home)

    @app.workflow
    async def wrong(text: str) -> None: ...

    @app.workflow
    async def right(failed: FailedRun, more: int = 0) -> None: ...

    def decorated(handler: Any) -> Any:
        @app.workflow(name="other", on_failure=handler)
        async def other() -> None: ...

        return other

    def whole(fn: Callable[..., Any]) -> Any:
        return app.on_failure(fn)

    async def nothing() -> None: ...

    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: decorated(wrong), "wrong .* cannot handle failures: it must have one parameter, annotated with"),
        (lambda: decorated("other"), "other .* cannot handle failures"),  # its own
        (lambda: decorated(7), "on_failure must be a workflow or the name of one, not 7"),
        (lambda: decorated("n" * 256), "on_failure has 256 characters"),
        (lambda: right.options(on_failure=wrong), "cannot handle failures"),
        (lambda: right.options(on_failure_queue="ops"), "on_failure_queue is the queue of on_failure"),
        (lambda: right.options(on_failure="x", on_failure_queue=""), "on_failure_queue must not be empty"),
        (lambda: whole(nothing), "^nothing .* cannot handle failures"),
        (lambda: app.on_failure("ops"), r"takes no name, and its queue is given as @app.on_failure\(queue='ops'\)"),  # type: ignore[call-overload]
        (lambda: app.workflow(name=FAILURE_HANDLER)(nothing), "is the name of what @app.on_failure makes"),
    ]
    for make, complaint in refused:
        with pytest.raises(InvalidRequest, match=complaint):
            make()
    assert decorated(right).on_failure.name == "right"
    whole(right.fn)
    with pytest.raises(InvalidRequest, match=r"of all failures with version '1' already .* needs another version"):
        whole(right.fn)


async def test_a_handler_that_no_worker_has_offered_is_told_when_a_worker_registers(
    home: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Kagzi(home)

    @app.workflow
    async def notify_ops(failed: FailedRun) -> None: ...

    @app.workflow(on_failure="notify_opps")
    async def checkout() -> None: ...

    @app.workflow(on_failure="notify_ops", queue="slow")
    async def refund() -> None: ...

    async with app, app.worker() as worker:
        told = [line for line in caplog.messages if line.startswith("on_failure of workflow")]
        nobody = "on_failure of workflow checkout is 'notify_opps', which no worker has offered in namespace default"
        assert told == [f"{nobody}; did you mean 'notify_ops'?"]
        assert worker.settings.queues == ("default", "slow"), "as the workflows name them"

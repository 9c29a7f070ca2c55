"""One program, several homes: the same scenarios over {SQLite, PostgreSQL} x {in process, gRPC}."""

from __future__ import annotations

import asyncio

import pytest

from kagzi import Kagzi, NonRetryable, Retry, WorkflowFailed
from kagzi.api.operations import CancelRun, RepeatRun, StartRun, TerminateRun
from kagzi.api.workflows import RunFilter
from kagzi.connect import connect
from kagzi.core.run import RunStatus
from kagzi.core.step import StepStatus
from kagzi.errors import Conflict, InvalidRequest, NotFound, PayloadTooLarge, WorkflowCancelled, WorkflowTimedOut
from kagzi.sdk.definitions import Workflow


class Program:
    """Workflows, and how often their steps ran."""

    def __init__(self, url: str) -> None:
        self.calls: list[str] = []
        self.app = app = Kagzi(url)
        calls = self.calls

        @app.step
        async def double(number: int) -> int:
            calls.append(f"double {number}")
            return 2 * number

        @app.step(retry=Retry(attempts=3, first="10ms"))
        async def flaky() -> str:
            calls.append("flaky")
            if calls.count("flaky") < 3:
                raise ValueError("not yet")
            return "at last"

        @app.step(retry=Retry(attempts=2, first="10ms"))
        async def broken(text: str) -> None:
            calls.append("broken")
            raise KeyError(text)

        @app.step(retry=Retry(attempts=9, first="10ms"))
        async def hopeless() -> None:
            calls.append("hopeless")
            raise NonRetryable("never")

        @app.workflow
        async def quadruple(number: int) -> int:
            return await double(await double(number))

        @app.workflow
        async def patient() -> str:
            return await flaky()

        @app.workflow
        async def failing(text: str) -> None:
            await broken(text)

        @app.workflow
        async def giving_up() -> None:
            await hopeless()

        @app.workflow
        async def sleepy(seconds: float) -> int:
            await double(1)
            await asyncio.sleep(seconds)
            return await double(2)

        @app.workflow
        async def wide(count: int) -> int:
            return sum(await asyncio.gather(*[double(number) for number in range(count)]))

        @app.workflow
        async def large(size: int) -> str:
            parts = await asyncio.gather(*[blob(size, number) for number in range(12)])
            await asyncio.sleep(1.2)
            again = await blob(size, 99)
            return str(len("".join(parts)) + len(again))

        @app.step
        async def blob(size: int, number: int) -> str:
            calls.append(f"blob {number}")
            return str(number % 10) * size

        self.quadruple: Workflow = quadruple
        self.patient: Workflow = patient
        self.failing: Workflow = failing
        self.giving_up: Workflow = giving_up
        self.sleepy: Workflow = sleepy
        self.wide: Workflow = wide
        self.large: Workflow = large


async def test_a_worker_never_drives_more_runs_than_it_has_slots(home: str) -> None:
    """Not even if a run has lent its slot for a nap, the worker has asked for another one, and the nap ends first."""
    app = Kagzi(home)
    at_work: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.step
    async def work(name: str) -> list[str]:
        at_work.append(name)
        begun.set()
        await go_on.wait()
        at_work.remove(name)
        return [*at_work]

    @app.workflow
    async def after(nap: float, name: str) -> list[str]:
        await asyncio.sleep(nap)
        return await work(name)

    async with app, app.worker(concurrency=1):
        first = await after.start(0.2, "first")
        await asyncio.wait_for(begun.wait(), 20)
        second = await after.start(0, "second")
        async with asyncio.timeout(20):
            while await second.status() is not RunStatus.PENDING:
                await asyncio.sleep(0.01)  # it may have been given to the worker, which gives it back
        assert at_work == ["first"]
        go_on.set()
        assert await first.result(timeout=20) == await second.result(timeout=20) == []


async def test_a_run_is_started_and_its_result_awaited(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        run = await program.quadruple.start(3)
        assert await run.result(timeout=20) == 12
        assert await run.status() is RunStatus.COMPLETED
        steps = await app.engine.workflows.steps("default", run.id)
        assert [(step.step_id, step.status, step.completed_seq) for step in steps] == [
            ("double", StepStatus.COMPLETED, 1),
            ("double#2", StepStatus.COMPLETED, 2),
        ]
        assert [step.output for step in steps] == [b"6", b"12"]
        found = await app.engine.workflows.get("default", run.id)
        assert (found.workflow_type, found.input, found.output, found.error) == ("quadruple", b"[3]", b"12", None)
        assert found.created_at <= (found.started_at or 0) <= (found.finished_at or 0)
    assert program.calls == ["double 3", "double 6"]


async def test_a_failed_attempt_is_tried_again(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        run = await program.patient.start()
        assert await run.result(timeout=20) == "at last"
        steps = await app.engine.workflows.steps("default", run.id)
        assert [(step.attempt, step.status) for step in sorted(steps, key=lambda step: step.attempt)] == [
            (1, StepStatus.FAILED),
            (2, StepStatus.FAILED),
            (3, StepStatus.COMPLETED),
        ]
    assert program.calls == ["flaky"] * 3


async def test_failures_arrive_as_they_were_raised(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        run = await program.failing.start("gone")
        with pytest.raises(WorkflowFailed) as failed:
            await run.result(timeout=20)
        assert str(failed.value) == f"failing {run.id} failed: KeyError: 'gone'"
        assert isinstance(failed.value.__cause__, KeyError)
        assert failed.value.__cause__.args == ("gone",)
        assert failed.value.failure is not None
        assert "broken" in failed.value.failure.traceback

        run = await program.giving_up.start()
        with pytest.raises(WorkflowFailed, match="never"):
            await run.result(timeout=20)
    assert program.calls == ["broken", "broken", "hopeless"]


@pytest.mark.parametrize("seconds", [0.2, 1.5])
async def test_sleeps_are_durable(home: str, seconds: float) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        begin = asyncio.get_running_loop().time()  # a worker may be at it before we are told that it has started
        run = await program.sleepy.start(seconds)
        assert await run.result(timeout=20) == 4
        assert asyncio.get_running_loop().time() - begin >= seconds - 0.1
    assert program.calls == ["double 1", "double 2"]


async def test_steps_run_in_parallel(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        assert await (await program.wide.start(150)).result(timeout=30) == 150 * 149
    assert len(program.calls) == 150


async def test_many_runs_at_once(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker(concurrency=50):
        runs = await asyncio.gather(*[program.quadruple.start(number) for number in range(120)])
        results = await asyncio.gather(*[run.result(timeout=60) for run in runs])
    assert results == [4 * number for number in range(120)]
    assert len(program.calls) == 240


async def test_a_start_with_the_same_id_finds_the_first_run(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        first = await program.quadruple.options(id="order-1").start(3)
        second = await program.quadruple.options(id="order-1").start(3)
        assert (first.id, first.already_exists, second.id, second.already_exists) == (first.id, False, first.id, True)
        assert await second.result(timeout=20) == 12
        assert (await app.find("order-1")).id == first.id
        assert await (await app.find("order-1", program.quadruple)).result() == 12
        with pytest.raises(InvalidRequest, match="'order-1' is of workflow quadruple, not sleepy"):
            await app.find("order-1", program.sleepy)
        with pytest.raises(Conflict, match="another type or input"):
            await program.quadruple.options(id="order-1").start(4)
    assert program.calls == ["double 3", "double 6"]


async def test_a_restarted_worker_goes_on_where_the_last_one_was(home: str) -> None:
    first = Program(home)
    async with first.app as app:
        async with app.worker():
            run = await first.sleepy.start(4)  # long enough to be seen asleep
            while "double 1" not in first.calls or await run.status() is not RunStatus.SLEEPING:
                await asyncio.sleep(0.02)
    assert first.calls == ["double 1"]
    second = Program(home)
    async with second.app as app, app.worker():
        assert await app.handle(run.id, second.sleepy).result(timeout=20) == 4
    assert second.calls == ["double 2"]


async def test_a_history_larger_than_any_message(home: str) -> None:
    program = Program(home)
    async with program.app as app, app.worker():
        run = await program.large.start(1_500_000)
        assert await run.result(timeout=60) == str(13 * 1_500_000)
        steps = await app.engine.workflows.steps("default", run.id)
        assert sum(len(step.output or b"") for step in steps) > 13 * 1_500_000
    assert len(program.calls) == 13


async def test_runs_are_listed_in_pages(home: str) -> None:
    program = Program(home)
    async with program.app as app:
        started = [(await program.quadruple.options(queue="elsewhere").start(number)).id for number in range(7)]
        page = await app.runs(page_size=3)
        assert [run.run_id for run in page.items] == started[:3:-1]
        assert page.prev is None
        second = await app.runs(page_size=3, page_token=page.next)
        assert [run.run_id for run in second.items] == started[3:0:-1]
        third = await app.runs(page_size=3, page_token=second.next)
        assert ([run.run_id for run in third.items], third.next) == ([started[0]], None)
        back = await app.runs(page_size=3, page_token=third.prev)
        assert back.items == second.items
        assert not (await app.runs(status="COMPLETED")).items
        assert len((await app.runs(status="PENDING", workflow="quadruple", queue="elsewhere")).items) == 7
        with pytest.raises(InvalidRequest, match="page token does not belong to this listing; start again"):
            await app.runs(page_size=3, status="PENDING", page_token=page.next)
        with pytest.raises(InvalidRequest, match="page token is malformed; use the token of the page before"):
            await app.runs(page_token="x")
        for size in (0, 101, -1):
            with pytest.raises(InvalidRequest, match=f"page size must be between 1 and 100, not {size}"):
                await app.runs(page_size=size)


async def test_a_deadline_ends_a_run(home: str) -> None:
    program = Program(home)
    async with program.app as app:
        run = await program.quadruple.options(timeout="300ms", queue="elsewhere").start(1)
        with pytest.raises(WorkflowTimedOut):
            await run.result(timeout=20)
        assert await run.status() is RunStatus.TIMED_OUT
        assert len((await app.runs(status="TIMED_OUT")).items) == 1


async def test_waiting_can_be_given_up(home: str) -> None:
    program = Program(home)
    async with program.app as app:
        run = await program.quadruple.start(1)
        with pytest.raises(TimeoutError, match="has not finished within"):
            await run.result(timeout=0.2)
        async with app.worker():
            assert await run.result(timeout=20) == 4


async def test_errors_are_the_same_everywhere(home: str) -> None:
    unknown, random_id = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44", "0190a5f2-7c3e-4d31-9a51-0c8e6b1f2a44"
    engine = connect(home)
    await engine.open()
    try:
        workflows = engine.workflows

        def start(**changes: object) -> StartRun:
            fields = {"namespace": "default", "run_id": unknown, "workflow_type": "w", "task_queue": "q", **changes}
            return StartRun(**fields)  # type: ignore[arg-type]

        def repeat(run_id: str) -> RepeatRun:
            return RepeatRun(namespace="default", run_id=run_id, of_run_id=unknown, keep_steps=True)

        cases = [
            (workflows.get("default", unknown), NotFound, f"there is no run {unknown} in namespace default"),
            (workflows.get("default", "nonsense"), InvalidRequest, "run id must be a UUID such as"),
            (workflows.wait("default", unknown, 10**6), NotFound, f"there is no run {unknown} in namespace default"),
            (workflows.wait("default", "nonsense", 10**6), InvalidRequest, "run id must be a UUID such as"),
            (workflows.steps("default", unknown), NotFound, f"there is no run {unknown} in namespace default"),
            (workflows.get_by_external_id("default", "x"), NotFound, "there is no run with the id 'x' in namespace"),
            (workflows.get_by_external_id("default", "\0"), InvalidRequest, "id contains a NUL byte"),
            (workflows.list(RunFilter(workflow_type="n" * 256)), InvalidRequest, "workflow type has 256 characters"),
            (workflows.start(start(workflow_type="")), InvalidRequest, "must not be empty"),
            (workflows.start(start(priority=10**6)), InvalidRequest, "priority must be between"),
            (workflows.start(start(external_id="\0")), InvalidRequest, "id contains a NUL byte"),
            (workflows.start(start(input=b"x" * 2_100_000)), PayloadTooLarge, "input of w is 2,100,000 bytes"),
            (workflows.start(start(run_id="x")), InvalidRequest, "run id must be a UUID such as"),
            # Of the random sort, and one that would be listed before every other run for ever.
            (workflows.start(start(run_id=random_id)), InvalidRequest, "run id must be a UUID of version 7"),
            (workflows.start(start(run_id="f" * 8 + unknown[8:14] + "f" + unknown[15:])), InvalidRequest, "version 7"),
            (workflows.start(start(run_id=unknown[:19] + "c" + unknown[20:])), InvalidRequest, "version 7"),
            (workflows.repeat(repeat(random_id)), InvalidRequest, "run id must be a UUID of version 7"),
        ]
        for call, error, text in cases:
            with pytest.raises(error) as raised:
                await call
            assert type(raised.value) is error
            assert text in str(raised.value)
        assert not (await workflows.list(RunFilter())).items
    finally:
        await engine.close()


async def test_a_run_is_cancelled_terminated_and_repeated(home: str) -> None:
    program = Program(home)
    unknown = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"
    async with program.app as app:
        workflows = app.engine.workflows
        waiting = await program.quadruple.start(1)
        answer = await workflows.cancel(CancelRun(namespace="default", run_id=waiting.id))
        assert (answer.effective, answer.status) == (True, RunStatus.CANCELLED)
        with pytest.raises(WorkflowCancelled):
            await waiting.result(timeout=20)
        async with app.worker():
            cancelled, terminated = await program.sleepy.start(30), await program.sleepy.start(30)
            for run in (cancelled, terminated):
                while await run.status() is not RunStatus.SLEEPING:
                    await asyncio.sleep(0.02)
            assert (await workflows.cancel(CancelRun(namespace="default", run_id=cancelled.id))).effective
            answer = await workflows.terminate(TerminateRun(namespace="default", run_id=terminated.id, reason="enough"))
            assert (answer.effective, answer.status) == (True, RunStatus.CANCELLED)
            with pytest.raises(WorkflowCancelled):
                await cancelled.result(timeout=20)
            with pytest.raises(WorkflowCancelled, match="enough"):
                await terminated.result(timeout=20)
            done = await program.quadruple.start(1)
            assert await done.result(timeout=20) == 4
            answer = await workflows.cancel(CancelRun(namespace="default", run_id=done.id))
            assert (answer.effective, answer.status) == (False, RunStatus.COMPLETED)
            again = RepeatRun(namespace="default", run_id=unknown, of_run_id=cancelled.id, keep_steps=True)
            for _ in range(2):
                assert (await workflows.repeat(again)).run_id == unknown
            assert (await workflows.get("default", unknown)).workflow_type == "sleepy"
            await workflows.terminate(TerminateRun(namespace="default", run_id=unknown))
            with pytest.raises(NotFound, match=f"there is no run {waiting.id[:-4]}aaaa in namespace default"):
                await workflows.cancel(CancelRun(namespace="default", run_id=waiting.id[:-4] + "aaaa"))

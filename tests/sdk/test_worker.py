"""A worker and what goes wrong with single runs of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from kagzi import InvalidRequest, Kagzi, KagziError, Retry, WorkflowFailed
from kagzi.api.operations import Chunk, CompleteStep, Operation, StartRun, Write
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Span
from kagzi.core.run import RunStatus
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds
from kagzi.sdk.ambient import current
from kagzi.sdk.replay.execution import Execution
from kagzi.store.protocol.changes import Applied
from kagzi.store.sqlite.work import Work
from kagzi.testing import run_virtually

IDS = RandomIds(lambda: 0)


def a_start(workflow: str, *, version: str = "1", delay: Span = SECOND) -> StartRun:
    """A run that is due in a second, so that it is claimed together with the others."""
    return StartRun(
        namespace="default",
        run_id=IDS.run_id(),
        workflow_type=workflow,
        task_queue="default",
        version=version,
        input=b"[]",
        delay=delay,
    )


async def spoil_policy(app: Kagzi, run_id: str) -> None:
    """As if another version had stored it: engines take no such policy."""
    store: Any = cast("LocalEngine", app.engine).store
    statement = "UPDATE workflow_runs SET retry_policy = ? WHERE run_id = ?"
    await store._database.write(lambda connection: connection.execute(statement, (b'{"attempts": "many"}', run_id)))


def test_a_run_that_cannot_be_begun_fails_and_the_others_of_its_claim_go_on(caplog: pytest.LogCaptureFixture) -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def order() -> str:
        return "done"

    async def main() -> None:
        starts = [a_start("order") for _ in range(3)]
        for start in starts:
            await app.engine.workflows.start(start)
        await spoil_policy(app, starts[1].run_id)
        ends = [await app.engine.workflows.wait("default", start.run_id, 60 * SECOND) for start in starts]
        assert [end.status for end in ends] == [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.COMPLETED]
        assert "the retry policy is not readable" in Failure.decode(ends[1].error or b"").message
        assert ends[1].executions == 1
        (said,) = [record for record in caplog.records if "cannot be driven" in record.message]
        assert said.levelno == logging.ERROR
        assert starts[1].run_id in said.message

    run_virtually(app, main)


@pytest.mark.parametrize("moment", ["step_returned", "step_raised", "tick", "durable"])
def test_a_run_that_cannot_be_driven_further_fails_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whatever the reason: here a fault of ours, at each moment at which something happens to a run."""
    app = Kagzi("memory://")
    real = getattr(Execution, moment)

    def faulty(self: Execution, *args: object, **kwargs: object) -> None:
        if self.workflow == "bad":
            raise RuntimeError("nobody foresaw this")
        real(self, *args, **kwargs)

    monkeypatch.setattr(Execution, moment, faulty)

    async def program() -> str:
        with pytest.raises(ValueError, match="no"):
            await refuse()
        await accept()
        await asyncio.sleep(0.5)
        return "done"

    @app.step
    async def refuse() -> None:
        raise ValueError("no")

    @app.step
    def accept() -> int:
        return 1

    app.workflow(name="good")(program)
    app.workflow(name="bad")(program)

    async def main() -> None:
        starts = [a_start("good"), a_start("bad"), a_start("good")]
        for start in starts:
            await app.engine.workflows.start(start)
        ends = [await app.engine.workflows.wait("default", start.run_id, 600 * SECOND) for start in starts]
        assert [end.status for end in ends] == [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.COMPLETED]
        assert "nobody foresaw this" in Failure.decode(ends[1].error or b"").message

    run_virtually(app, main)


class Refusing:
    """Has the database refuse what completes a step, in words that nobody foresaw: the first so many times."""

    def __init__(self, patch: pytest.MonkeyPatch, times: int, error: Exception) -> None:
        self.left = times
        self.refused: list[tuple[Operation, ...]] = []
        real = Work.apply

        async def apply(work: Work, writes: Sequence[Write]) -> Applied:
            for write in writes:
                if self.left and isinstance(write, Chunk) and isinstance(write.operations[0], CompleteStep):
                    self.left -= 1
                    self.refused.append(write.operations)
                    raise error
            return await real(work, writes)

        patch.setattr(Work, "apply", apply)


def charging(bodies: list[int]) -> tuple[Kagzi, Callable[[], Awaitable[Any]]]:
    """An app whose workflow charges once, and writes down when its step's body runs."""
    app = Kagzi("memory://")

    @app.step
    async def charge() -> None:
        bodies.append(1)

    @app.workflow(retry=Retry.none)
    async def order() -> None:
        await charge()

    return app, order.run


@pytest.mark.parametrize(
    ("error", "writes"), [(KagziError("refused (SQLSTATE 54000)"), 4), (InvalidRequest("cannot be stored"), 1)]
)
def test_a_write_that_is_refused_for_good_fails_the_run_and_no_body_runs_again(
    monkeypatch: pytest.MonkeyPatch, error: KagziError, writes: int
) -> None:
    bodies: list[int] = []
    app, order = charging(bodies)
    refusing = Refusing(monkeypatch, 1_000_000, error)

    async def main() -> None:
        began = asyncio.get_running_loop().time()
        with pytest.raises(WorkflowFailed, match=r"refused|cannot be stored"):
            await order()
        assert asyncio.get_running_loop().time() - began < 5

    run_virtually(app, main)
    assert len(bodies) == 1
    assert refusing.refused == [refusing.refused[0]] * writes  # the same again, until it counted as refused for good


@pytest.mark.parametrize("times", [1, 3])
def test_a_refusal_that_passes_costs_nothing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    bodies: list[int] = []
    app, order = charging(bodies)
    refusing = Refusing(monkeypatch, times, KagziError("nobody foresaw this"))
    run_virtually(app, order)
    assert (len(bodies), len(refusing.refused)) == (1, times)


def test_a_step_whose_id_cannot_be_stored_is_refused_before_its_body_runs() -> None:
    bodies: list[int] = []
    app, _ = charging(bodies)
    charge = app._steps["charge"]

    @app.workflow(retry=Retry.none)
    async def nested(characters: int) -> None:
        async def branch() -> None:
            await charge()

        await asyncio.create_task(branch(), name="é" * characters)

    async def main() -> None:
        longest = (1600 - len(b"/charge")) // 2
        await nested.run(longest)
        assert len(bodies) == 1
        with pytest.raises(WorkflowFailed, match="1,601 bytes; at most 1,600"):
            await nested.run(longest + 1)
        assert len(bodies) == 1

    run_virtually(app, main)


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_run_is_tried_as_often_as_its_policy_says(attempts: int) -> None:
    app = Kagzi("memory://")
    tries: list[int] = []

    @app.workflow(retry=Retry.fixed("1s", attempts=attempts, jitter=0))
    async def order() -> None:
        tries.append(1)
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(WorkflowFailed):
            await order.run()

    run_virtually(app, main)
    assert len(tries) == attempts


def test_a_run_of_another_version_is_left_to_others() -> None:
    app, _ = charging([])

    async def main() -> None:
        started = []
        for version in ("2", "1"):
            await asyncio.sleep(1)  # the worker has looked for work, and is free to take what is started
            started.append(await app.engine.workflows.start(a_start("order", version=version, delay=0)))
        assert [each.status for each in started] == [RunStatus.PENDING, RunStatus.RUNNING]
        await app.engine.workflows.wait("default", started[1].run_id, 60 * SECOND)
        assert (await app.engine.workflows.get("default", started[0].run_id)).executions == 0

    run_virtually(app, main)


async def test_results_of_exactly_the_limit_are_stored_and_one_byte_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit, quotes = 1000, 2
    monkeypatch.setenv("KAGZI_PAYLOAD_MAX_SIZE_BYTES", str(limit))
    monkeypatch.setenv("KAGZI_PAYLOAD_WARN_THRESHOLD_BYTES", str(limit))
    app = Kagzi("memory://")

    @app.step
    async def make(size: int) -> str:
        return "x" * (size - quotes)

    @app.workflow(retry=Retry.none)
    async def by_step(size: int) -> int:
        return len(await make(size)) + quotes

    @app.workflow(retry=Retry.none)
    async def by_run(size: int) -> str:
        return "x" * (size - quotes)

    async with app, app.worker():
        for size in (limit - 1, limit):
            assert await by_step.run(size) == size
            assert len(await by_run.run(size)) == size - quotes
        with pytest.raises(WorkflowFailed, match="step make returned 1,001 bytes; at most 1,000 are stored"):
            await by_step.run(limit + 1)
        with pytest.raises(WorkflowFailed, match="the result of by_run is 1,001 bytes; at most 1,000 are stored"):
            await by_run.run(limit + 1)


async def test_a_run_that_is_over_leaves_nothing_to_the_garbage_collector() -> None:
    app = Kagzi("memory://")
    seen: list[weakref.ref[Any]] = []

    @app.step
    async def add(x: int) -> int:
        return x + 1

    @app.workflow
    async def flow(x: int) -> int:
        execution = current()
        assert execution is not None
        seen.extend(map(weakref.ref, (execution, cast("Any", execution)._effects)))
        del execution
        return await add(x)

    async with app, app.worker():
        gc.collect()
        gc.disable()
        try:
            assert await flow.run(1) == 2
            for _ in range(5):
                await asyncio.sleep(0)
            assert seen
            assert [each for each in seen if each() is not None] == []
        finally:
            gc.enable()

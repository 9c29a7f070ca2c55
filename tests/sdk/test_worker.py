"""A worker and what goes wrong with single runs of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kagzi import Kagzi
from kagzi.api.operations import StartRun
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.ids import RandomIds
from kagzi.sdk.replay.execution import Execution
from kagzi.testing import run_virtually

IDS = RandomIds(lambda: 0)


def a_start(workflow: str, retry_policy: bytes | None = None) -> StartRun:
    """A run that is due in a second, so that it is claimed together with the others."""
    return StartRun(
        namespace="default",
        run_id=IDS.run_id(),
        workflow_type=workflow,
        task_queue="default",
        version="1",
        input=b"[]",
        delay=SECOND,
        retry_policy=retry_policy,
    )


def test_a_run_that_cannot_be_begun_fails_and_the_others_of_its_claim_go_on(caplog: pytest.LogCaptureFixture) -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def order() -> str:
        return "done"

    async def main() -> None:
        starts = [a_start("order"), a_start("order", b'{"attempts": "many"}'), a_start("order")]
        for start in starts:
            await app.engine.workflows.start(start)
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

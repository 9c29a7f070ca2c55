"""Steps as runs of their own, in all homes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, NonDeterminismError, Retry, WorkflowFailed
from kagzi.testing import run_virtually


@dataclass
class Order:
    id: str
    cents: int


class Reversed:
    """A layer around payloads, so that none of them passes by it."""

    def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return data[::-1]


async def test_a_step_is_a_run_of_its_own(home: str) -> None:
    app = Kagzi(home, codec=Reversed())
    charged: list[str] = []

    @app.step(retry=Retry(attempts=3, first="10ms"))
    async def charge(order: Order, *, tip: int = 0) -> Order:
        charged.append(order.id)
        if kagzi.attempt() < 2:
            raise OSError("try again")
        return Order(order.id, order.cents + tip)

    @app.step
    def double(number: int) -> int:
        return 2 * number

    async with app, app.worker():  # an app without any workflow
        run = await charge.options(id="order-42", tags={"batch": "7"}).start(Order("42", 900), tip=100)
        same = await charge.options(id="order-42").start(Order("42", 900), tip=100)
        assert (same.id, same.already_exists) == (run.id, True)
        assert await run.result(timeout=60) == Order("42", 1000)
        assert charged == ["42", "42"]
        assert [(step.name, step.status) for step in await run.steps()][-1] == ("charge", "COMPLETED")
        record = await run.get()
        assert record.tags == {"batch": "7", "step": "charge"}
        assert await (await double.start(21)).result(timeout=60) == 42
        with pytest.raises((InvalidRequest, TypeError)):
            await double.start("many")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await double.start()  # type: ignore[call-arg]
        found = [each.run_id async for each in app.search(tags={"step": "charge"})]
        assert found == [run.id]


def test_a_worker_without_the_step_lets_the_run_wait(caplog: pytest.LogCaptureFixture) -> None:
    app = Kagzi("memory://")

    @app.step
    async def other() -> None: ...

    @app.step
    async def late() -> str:
        return "here"

    async def main() -> str:
        run = await late.start()
        step = app._steps.pop("late")  # as in a worker that has older code
        await asyncio.sleep(8)
        assert await run.status() == "SLEEPING"
        app._steps["late"] = step
        return await run.result()

    assert run_virtually(app, main) == "here"
    assert "there is no step late in this worker" in caplog.text


async def test_what_is_wrong_is_said() -> None:
    app = Kagzi("memory://")

    @app.step
    async def charge(order: str) -> str:
        return order

    @app.workflow(retry=Retry.none)
    async def starts() -> None:
        await charge.start("x")

    @app.workflow(retry=Retry.none)
    async def calls() -> None:
        await charge.options(id="x")("x")

    async with app, app.worker():
        with pytest.raises(WorkflowFailed, match=r"charge\.start\(\) was called in a workflow") as caught:
            await starts.run()
        assert NonDeterminismError.__name__ in str(caught.value)
        with pytest.raises(WorkflowFailed, match="options of a run of its own"):
            await calls.run()
        for wrong in (charge.options(key="k"), charge.options(retry=Retry.none), charge.options(timeout="1s")):
            with pytest.raises(InvalidRequest, match=r"has what @app\.step says"):
                await wrong.start("x")
        with pytest.raises(InvalidRequest, match="step of no app"):
            await kagzi.Step(lambda: 1, name="alone").start()

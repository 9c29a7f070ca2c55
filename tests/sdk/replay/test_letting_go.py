"""What becomes of a run's coroutines and generators when its loop lets go of them."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from kagzi.sdk.replay.calls import call_step
from kagzi.sdk.replay.unwinding import Evicted
from tests.sdk.replay.host import Crashed, Host, step
from tests.sdk.replay.workflows import Workflow, finish, value


def parked(workflow: Workflow) -> tuple[Host, Any]:
    """Begin a run, and let go of it as soon as it waits."""
    host = Host(workflow)
    execution = host.begin()
    host.evict(execution)
    return host, execution


def test_finally_with_a_step_records_nothing() -> None:
    seen = []

    async def workflow() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            seen.append("finally")
            await step("refund", value())
            seen.append("refunded")

    host, _ = parked(workflow)
    assert seen == ["finally"]
    assert not host.pending
    assert not host.started


@pytest.mark.parametrize("durable", ["step", "sleep", "create_task", "yield", "timeout", "group"])
def test_a_coroutine_that_does_not_want_to_go(durable: str, caplog: pytest.LogCaptureFixture) -> None:
    """`while True: try … except: pass` must not hang the worker, whatever is inside."""

    async def workflow() -> None:
        while True:
            try:
                match durable:
                    case "step":
                        await step("s", value())
                    case "sleep":
                        await asyncio.sleep(1000)
                    case "create_task":
                        await asyncio.create_task(asyncio.sleep(1000))
                    case "yield":
                        await asyncio.sleep(1000)
                        await asyncio.sleep(0)
                    case "timeout":
                        async with asyncio.timeout(5):
                            await asyncio.sleep(1000)
                    case "group":
                        async with asyncio.TaskGroup() as group:
                            group.create_task(asyncio.sleep(1000))
            except BaseException:
                pass

    host, _ = parked(workflow)
    gc.collect()
    assert "does not end" in caplog.text
    assert not host.pending


def test_a_process_ends_although_a_coroutine_does_not(tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import asyncio, gc\n"
        "from tests.sdk.replay.host import Host, step\n"
        "async def workflow():\n"
        "    while True:\n"
        "        try:\n"
        "            await step('s', int)\n"
        "        except BaseException:\n"
        "            pass\n"
        "host = Host(workflow)\n"
        "host.evict(host.begin())\n"
        "del host\n"
        "gc.collect()\n"
        "print('ended')\n"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "ended\n"


def test_a_coroutine_that_wants_one_more_round() -> None:
    seen = []

    async def workflow() -> None:
        try:
            await asyncio.sleep(1000)
        except BaseException:
            seen.append("swallowed")
        try:
            await asyncio.sleep(0)
        finally:
            seen.append("ended")

    parked(workflow)
    assert seen == ["swallowed", "ended"]


@pytest.mark.parametrize("inside_await", [True, False])
@pytest.mark.parametrize("closing", [True, False])
def test_generators_end_with_the_run(inside_await: bool, closing: bool) -> None:
    seen = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.sleep(1000)
            yield 2
        finally:
            seen.append("finally")
            if closing:
                await asyncio.sleep(1000)
            await step("refund", value())
            seen.append("refunded")

    async def workflow() -> None:
        generator = numbers()
        async for _ in generator:
            if closing:
                await generator.aclose()
            if not inside_await:
                await asyncio.sleep(1000)

    host, _ = parked(workflow)
    assert seen == ["finally"]
    gc.collect()
    assert seen == ["finally"]
    assert not host.pending


def test_a_generator_left_halfway_is_ended_with_the_run_only() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await step("refund", value())

    async def workflow() -> Any:
        async for _ in numbers():
            break
        gc.collect()
        return await step("after", value(5))

    outcome, host = finish(workflow)
    assert outcome == ("completed", b"5")
    assert [step_id for step_id, _ in host.started] == ["after"]


def test_a_run_goes_without_the_collector() -> None:
    async def fails() -> None:
        raise ValueError

    async def workflow() -> Any:
        async with asyncio.timeout(50):
            await asyncio.gather(step("a", value()), step("b", value()))
        try:  # not pytest.raises, which makes a cycle of its own
            await asyncio.create_task(fails())
        except ValueError:
            pass
        background = asyncio.create_task(asyncio.sleep(10))
        try:
            await step("c", lambda: 1 / 0)
        except ZeroDivisionError:
            pass
        await asyncio.sleep(1)
        return background.done()

    gc.collect()
    gc.disable()
    try:
        for crash_after in [None, *range(6)]:
            host = Host(workflow, crash_after=crash_after)
            try:
                host.live()
            except Crashed:
                pass
            assert host.execution is not None
            alive, loop = weakref.ref(host.execution), weakref.ref(host.execution.loop)
            host.bodies.clear()
            host.cancelled.clear()
            host.execution = None
            assert alive() is None, crash_after
            assert loop() is None, crash_after
    finally:
        gc.enable()


def test_durable_calls_after_the_end_raise() -> None:
    host, execution = parked(lambda: asyncio.sleep(1000))
    with pytest.raises(Evicted):
        call_step(execution, name="late", fn=value(), codec=None, policy=None, timeout=None, args=(), kwargs={})
    execution.tick()
    execution.durable(1)
    assert not host.pending

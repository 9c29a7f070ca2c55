"""Calls that block in workflow code: noticed with file and line, and nowhere else."""

from __future__ import annotations

import asyncio
import builtins
import io
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from kagzi import Kagzi, WorkflowFailed
from kagzi.errors import NonDeterminismError
from kagzi.sdk.replay import blocking_calls
from kagzi.testing import Environment, run_virtually

HERE = Path(__file__)


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process in which nothing was told yet."""
    monkeypatch.setattr(blocking_calls, "_told", set())


def read() -> None:
    with open(HERE) as file:
        file.readline()


def read_by_path() -> None:
    HERE.read_text()


def connect() -> None:
    with socket.socket() as plug, suppress(OSError):
        plug.connect(("127.0.0.1", 1))


def look_up() -> None:
    socket.getaddrinfo("127.0.0.1", 80)


def run_process() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def run_shell() -> None:
    os.system("true")


def sleep() -> None:
    time.sleep(0.001)


def start_thread() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def use_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()


BLOCKING: list[tuple[Callable[[], None], str]] = [
    (read, "open("),
    (read_by_path, "open("),
    (connect, "a connection of its own"),
    (look_up, "a connection of its own"),
    (run_process, "a process of its own"),
    (run_shell, "a process of its own"),
    (sleep, "time.sleep()"),
    (start_thread, "a thread of its own"),
    (use_pool, "a thread of its own"),
]
CASES = pytest.mark.parametrize(("call", "what"), BLOCKING, ids=lambda value: getattr(value, "__name__", ""))


def app_that(call: Callable[[], None], *, threaded: bool = False) -> tuple[Kagzi, Any]:
    app = Kagzi("memory://")

    def blocks(times: int = 1) -> str:
        for _ in range(times):
            call()
        return "done"

    if threaded:
        return app, app.workflow(blocks)

    @app.workflow(name="blocks")
    async def awaiting(times: int = 1) -> str:
        return blocks(times)

    return app, awaiting


@CASES
def test_a_workflow_that_blocks_is_warned_of_once_for_each_place(
    call: Callable[[], None], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, workflow = app_that(call)
    assert run_virtually(app, lambda: workflow.run(3)) == "done"
    told = [record.getMessage() for record in caplog.records if record.name == "kagzi.workflow"]
    assert len(told) == 1
    assert what in told[0]
    assert f"{HERE}:" in told[0]
    assert f"in {call.__name__}" in told[0]
    assert caplog.records[0].__dict__["workflow"] == "blocks"


@CASES
def test_it_is_an_error_in_the_test_kit(call: Callable[[], None], what: str) -> None:
    app, workflow = app_that(call)
    with Environment() as env:
        env.use(app)
        with pytest.raises(WorkflowFailed) as raised:
            env.start(workflow).result()
    assert raised.value.failure is not None
    assert raised.value.failure.is_a(NonDeterminismError)
    assert f"in {call.__name__}" in raised.value.failure.message


def test_a_workflow_that_catches_the_error_has_failed_all_the_same() -> None:
    def try_to_read() -> None:
        try:
            read()
        except Exception:
            pass

    app, workflow = app_that(try_to_read)
    with Environment() as env:
        env.use(app)
        with pytest.raises(WorkflowFailed, match=r"has open\("):
            env.start(workflow).result()


async def test_a_def_workflow_is_seen_in_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    app, workflow = app_that(sleep, threaded=True)
    async with app, app.worker():
        assert await workflow.run() == "done"
    assert "has time.sleep() at" in caplog.text
    async with app, app.worker(strict=True):
        with pytest.raises(WorkflowFailed, match=r"time.sleep\(\)"):
            await workflow.run()


@pytest.mark.parametrize("setting", ["off", "error"])
def test_the_setting_decides(setting: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("KAGZI_WORKER_BLOCKING_CALLS", setting)
    app, workflow = app_that(read)
    if setting == "off":
        assert run_virtually(app, lambda: workflow.run()) == "done"
        with Environment() as env:
            env.use(app)
            assert env.start(workflow).result() == "done"
        assert not caplog.records
    else:
        with pytest.raises(WorkflowFailed, match=r"has open\("):
            run_virtually(app, lambda: workflow.run())


def test_bodies_of_steps_may_block() -> None:
    """Also on virtual time, where a `def` body runs without a thread."""
    app = Kagzi("memory://")

    @app.step
    def plain() -> None:
        for call, _ in BLOCKING:
            call()

    @app.step
    async def awaited() -> None:
        for call, _ in BLOCKING:
            call()

    @app.workflow
    async def work() -> str:
        await asyncio.gather(plain(), awaited())
        return "done"

    with Environment() as env:
        assert env.start(work).result() == "done"


async def test_bodies_in_threads_and_code_beside_workflows_may_block(caplog: pytest.LogCaptureFixture) -> None:
    app = Kagzi("memory://")

    @app.step
    def plain() -> None:
        for call, _ in BLOCKING:
            call()

    @app.workflow
    def work() -> str:
        plain.call()
        return "done"

    async with app, app.worker(strict=True):
        run = await work.start()
        read()
        sleep()
        assert await run.result(timeout=60) == "done"
    assert not [record for record in caplog.records if record.name == "kagzi.workflow"]


def test_outside_of_workflow_code_open_is_the_one_that_everybody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Kagzi("memory://")
    plain, seen = builtins.open, []

    @app.step
    async def look() -> None:
        seen.append((builtins.open, io.open))

    @app.workflow
    async def work() -> str:
        seen.append((builtins.open, io.open))
        await look()
        return "done"

    assert run_virtually(app, lambda: work.run()) == "done"
    in_workflow, in_step = seen
    assert in_workflow == (blocking_calls.watched_open,) * 2
    assert in_step == (builtins.open, io.open) == (plain, plain)
    pretended = lambda *_: None  # noqa: E731  # as a test's own does
    monkeypatch.setattr(builtins, "open", pretended)
    assert run_virtually(app, lambda: work.run()) == "done"
    assert seen[2] == seen[3] == (pretended, plain)
    assert builtins.open is pretended


@pytest.mark.parametrize("strict", [True, False])
def test_imports_logs_tracebacks_and_time_zones_are_let_pass(
    strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = Kagzi("memory://")
    sys.modules.pop("imported_in_a_workflow", None)
    (tmp_path / "imported_in_a_workflow.py").write_text(f"text = open({str(HERE)!r}).close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    log = logging.getLogger("tests.blocking")
    log.addHandler(logging.FileHandler(tmp_path / "late.log", delay=True))

    @app.workflow
    async def work() -> str:
        import imported_in_a_workflow  # type: ignore[import-not-found]  # noqa: F401

        ZoneInfo.no_cache("Europe/Berlin")
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("told")
        return "done"

    if strict:
        with Environment() as env:
            assert env.start(work).result() == "done"
    else:
        assert run_virtually(app, lambda: work.run()) == "done"
        assert not [record for record in caplog.records if record.name == "kagzi.workflow"]
    assert "ValueError: no" in (tmp_path / "late.log").read_text()
    for handler in log.handlers[:]:
        handler.close()
        log.removeHandler(handler)


def test_the_process_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[object] = []
    blocking_calls.watch_blocking_calls(all_of_them=True)
    sleeping = time.sleep
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    blocking_calls.watch_blocking_calls(all_of_them=True)
    assert time.sleep is sleeping
    assert not hooks


def test_a_worker_that_only_warns_has_no_audit_hook() -> None:
    """It would be called for each event of the process, some of them in every step."""
    code = """
import asyncio, sys
from kagzi import Kagzi
hooks = []
sys.addaudithook = hooks.append
app = Kagzi("memory://")

@app.workflow
async def work() -> str:
    open(sys.executable).close()
    return "done"

async def main():
    async with app, app.worker():
        print(await work.run(), len(hooks))
    async with app, app.worker(strict=True):
        print(len(hooks))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["done", "0", "1"]

"""Steps in processes: called by name, ended for real, replaced when they die."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kagzi import InvalidRequest, Kagzi, RunStatus, WorkflowFailed
from kagzi.testing import run_virtually
from tests.scenarios import process_shop as shop
from tests.scenarios.conftest import until


@pytest.fixture
def app() -> Kagzi:
    shop.app.url = "memory://"
    return shop.app


async def test_bodies_run_elsewhere_and_otherwise_like_others(
    home: str, app: Kagzi, caplog: pytest.LogCaptureFixture
) -> None:
    app.url = home
    async with app, app.worker(step_processes=2):
        run = await shop.book.start()
        with caplog.at_level(logging.INFO):
            found = await run.result(timeout=120)
        steps = await run.steps()
    assert {key: found[key] for key in ("page", "numbers", "async", "died")} == {
        "page": [2, ["a", "a"]],
        "numbers": [1, 2, 3, 4],
        "async": 2,
        "died": 3,
    }
    assert found["refused"] == ["Unprintable", 7, "page 7 cannot be printed"]
    assert found["name"] == "book/render/1"
    pids = found["pids"]
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert "rendering render#5" in caplog.messages  # in the worker's log
    deaths = [step.error.message for step in steps if step.name == "die" and step.error is not None]
    assert [words.partition("; ")[0] for words in deaths] == [
        "the process of step die was killed by SIGKILL before it returned",
        "the process of step die ended with exit code 3 before the step returned",
    ]
    await until(lambda: not any(_lives(pid) for pid in pids))  # they end with their worker


async def test_a_run_that_a_body_starts_names_its_step(home: str, app: Kagzi, tmp_path: Path) -> None:
    app.url = home
    async with app, app.worker(step_processes=1):
        run = await shop.starter.start(home)
        started = await app.handle(await run.result(timeout=120)).get()
        assert (started.parent_run_id, started.parent_step_id) == (run.id, "start_another")
        assert (started.parent_attempt, started.on_parent_end) == (1, "none")
        # Where the run does not live nobody knows of it.
        elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
        run = await shop.starter.start(elsewhere)
        other = await run.result(timeout=120)
    app.url = elsewhere
    async with app:
        assert (await app.handle(other).get()).parent_run_id is None


async def test_bodies_are_ended(app: Kagzi, tmp_path: Path) -> None:
    async with app, app.worker(step_processes=3):
        late = await shop.one.start("compute", str(tmp_path / "late"))
        polite = await shop.one.start("hold", str(tmp_path / "polite"))
        deaf = await shop.one.start("deaf", str(tmp_path / "deaf"))
        with pytest.raises(WorkflowFailed, match="longer than its timeout of 3 s"):
            await late.result(timeout=60)
        await until(lambda: not _lives(_pid(tmp_path / "late")))
        await until(lambda: _pid(tmp_path / "polite") and _pid(tmp_path / "deaf"))
        for run in (polite, deaf):
            await run.cancel()
        await until((tmp_path / "polite-told").exists)
        await until(lambda: not _lives(_pid(tmp_path / "deaf")))
        for run in (polite, deaf):
            async with asyncio.timeout(60):
                while (await run.get()).status is not RunStatus.CANCELLED:
                    await asyncio.sleep(0.02)
        with pytest.raises(WorkflowFailed, match="these have no JSON form"):
            await (await shop.bad_argument.start()).result(timeout=60)


async def test_what_a_body_does_beside_returning_is_nobody_elses(app: Kagzi, caplog: pytest.LogCaptureFixture) -> None:
    """A line that cannot be logged, and copies of the process: their answers would be those of the next calls."""
    async with app, app.worker(step_processes=1):
        assert await (await shop.odd_bodies.start()).result(timeout=120) == [0, 1, 3, 3, 5]
    assert "half a pair: \\udcff" in caplog.messages
    assert "in a copy" not in caplog.messages


async def test_what_a_body_has_started_ends_with_it(app: Kagzi, tmp_path: Path) -> None:
    async with app, app.worker(step_processes=2):
        late = await shop.one.start("wait_for_child", str(tmp_path / "late"))
        dead = await shop.one.start("die_beside_a_copy", str(tmp_path / "dead"))
        with pytest.raises(WorkflowFailed, match="longer than its timeout of 2 s"):
            await late.result(timeout=60)
        with pytest.raises(WorkflowFailed, match="was killed by SIGKILL"):
            await dead.result(timeout=60)
        for name in ("late", "dead"):
            await until(lambda name=name: not any(_lives(pid) for pid in _pids(tmp_path / name)))


async def test_bodies_end_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, sys\nfrom tests.scenarios import process_shop as shop\n"
        "async def main():\n"
        "    async with shop.app, shop.app.worker(step_processes=2):\n"
        "        run = await shop.one.start('hold_all_threads_up', sys.argv[1])\n"
        "        await shop.one.start('deaf', sys.argv[2])\n"
        "        await run.result()\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, str(program), str(tmp_path / "c"), str(tmp_path / "deaf")]
    worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        await until(lambda: _pids(tmp_path / "c") and _pids(tmp_path / "deaf"))
    finally:
        worker.kill()
        worker.wait()
    pids = _pids(tmp_path / "c") + _pids(tmp_path / "deaf")
    assert len(pids) == 3
    await until(lambda: not any(_lives(pid) for pid in pids))


def test_on_virtual_time_bodies_run_in_place() -> None:
    app = shop.app

    async def main() -> Any:
        return await shop.render_async.start(1)

    async def result() -> Any:
        return await (await main()).result()

    assert run_virtually(app, result) == 2


def test_what_a_process_cannot_import_is_refused(tmp_path: Path) -> None:
    app = Kagzi("memory://")
    step = app.step(executor="process")

    class Shop:
        def pack(self) -> None: ...

    def inner() -> None: ...

    with pytest.raises(InvalidRequest, match=r"defined inside of test_what_a_process_cannot_import_is_refused\(\)"):
        step(inner)
    with pytest.raises(InvalidRequest, match="is a method"):
        step(Shop().pack)
    with pytest.raises(InvalidRequest, match="is a lambda"):
        app.step(executor="process", name="nameless")(lambda: None)
    with pytest.raises(InvalidRequest, match='executor must be "process"'):
        app.step(executor="thread")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="do not go together"):
        app.step(executor="process", transaction=True)
    program = tmp_path / "program.py"
    program.write_text(
        "from kagzi import Kagzi\napp = Kagzi('memory://')\n@app.step(executor='process')\ndef pack() -> None: ...\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert "put it into a module" in done.stderr


def _pids(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def _pid(file: Path) -> int:
    return sum(_pids(file))


def _lives(pid: int) -> bool:
    if not pid:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(shown) and not shown.startswith("Z")  # an orphan waits for whoever adopts it

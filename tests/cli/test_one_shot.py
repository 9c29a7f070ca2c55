"""kagzi run, init, check and completion."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import Shell, served

APP = """
import asyncio, datetime as dt, random, time, kagzi
from uuid import uuid4
from pathlib import Path
from kagzi import Kagzi

app = Kagzi()

@app.step
async def double(x: int) -> int:
    if x < 0:
        raise ValueError("too little")
    time.sleep(0)
    return 2 * x

@app.workflow(retry=None)
async def sum_up(name: str, numbers: list[int]) -> dict[str, int]:
    return {name: sum(await asyncio.gather(*(double.options(retry=None)(x) for x in numbers)))}

@app.workflow(name="bad")
async def wrong() -> None:
    print(dt.datetime.now(), time.time(), random.random(), uuid4())
    double(1)
    Path("x").read_text()
    with open("y"):
        pass
    asyncio.gather(double(1), double(2))
    both = asyncio.create_task(double(1))
    asyncio.create_task(asyncio.sleep(1))
    kagzi.map(double, [1, 2])
    asyncio.sleep(1)
    double.spawn(1)
    task = asyncio.create_task(double(2))
    async with asyncio.TaskGroup() as group:
        group.create_task(double(2))
    await task
    await double(2)
"""


@pytest.fixture(params=["sqlite", "grpc"])
def home(request: pytest.FixtureRequest, shell: Shell) -> Shell:
    (shell.directory / "sums.py").write_text(APP)
    if request.param == "grpc":
        shell.environ["KAGZI_URL"] = served(shell)
    return shell


def test_a_workflow_is_run_to_its_end(home: Shell) -> None:
    done = home("run", "sums.py:sum_up", "7", "[1, 2]")
    assert (done.code, json.loads(done.out)) == (0, {"7": 6}), done
    assert "double: COMPLETED" in done.err
    again = [home("run", "sums.py:sum_up", "--input", '["a", [3]]', "--id", "one") for _ in range(2)]
    assert [json.loads(each.out) for each in again] == [{"a": 6}] * 2
    assert "begun before" in again[1].err
    failed = home("run", "sums:sum_up", "a", "[-1]")
    assert (failed.code, failed.out) == (1, ""), failed
    assert "too little" in failed.err
    assert [run["status"] for run in home("runs", "list", "--json").json["runs"]] == [
        "FAILED",
        "COMPLETED",
        "COMPLETED",
    ]


def test_what_cannot_be_run(shell: Shell) -> None:
    (shell.directory / "sums.py").write_text(APP)
    for arguments, told in (
        (("sums.py",), "APP:WORKFLOW"),
        (("sums.py:nothing",), "workflows in it: bad, sum_up"),
        (("sums.py:sum_up", "x", "--input", "[]"), "not both"),
        (("sums.py:sum_up", "x"), "numbers"),
        (("sums.py:sum_up", "x", "text"), "numbers"),
    ):
        done = shell("run", *arguments)
        assert (done.code, done.out) == (2, ""), done
        assert told in done.err
        assert "Traceback" not in done.err


def test_what_does_not_belong_into_a_workflow_is_found_with_its_line(shell: Shell) -> None:
    (shell.directory / "sums.py").write_text(APP)
    done = shell("check", "sums.py")
    assert done.code == 1, done
    lines = done.out.splitlines()
    assert [line.partition(": in bad: ")[2].partition("(")[0] for line in lines] == [
        "datetime.datetime.now",
        "random.random",
        "time.time",
        "uuid.uuid4",
        "double",
        "….read_text",
        "open",
        "asyncio.gather",
        "asyncio.create_task",
        "asyncio.create_task",
        "kagzi.map",
        "asyncio.sleep",
        "double",
    ]
    at = APP.splitlines().index("    double(1)") + 1
    assert f"sums.py:{at}: in bad: double(...) is not awaited" in done.out
    assert "sum_up" not in done.out
    assert [each["line"] for each in shell("check", "sums.py", "--json").json["findings"]].count(at - 1) == 4
    (shell.directory / "good.py").write_text(APP.partition('@app.workflow(name="bad")')[0])
    assert shell("check", "good.py").code == 0


def test_a_new_project_runs_and_its_tests_pass(shell: Shell) -> None:
    made = shell("init", "shop")
    assert made.code == 0, made
    again = shell("init", "shop")
    assert (again.code, again.out) == (5, ""), again
    shell.directory /= "shop"
    done = shell("run", "shop.py:checkout", "42", "999", '["book"]')
    assert (done.code, json.loads(done.out)) == (0, "payment-42"), done
    assert shell("check").code == 0
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=shell.directory,
        env={name: value for name, value in shell.environ.items() if name != "PYTHONWARNINGS"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: Shell, name: str) -> None:
    script = shell("completion", name)
    assert script.code == 0, script
    assert "_KAGZI_COMPLETE" in script.out
    assert shell("completion", "cmd").code == 2
    asked = {
        "COMP_WORDS": "kagzi sched",
        "COMP_CWORD": "sched" if name == "fish" else "1",
        "_KAGZI_COMPLETE": f"{name}_complete",
    }
    assert "schedules" in shell.afresh(**asked).out

"""Child processes of step bodies do no harm to their worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kagzi.clock import SystemClock
from kagzi.ids import RandomIds

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, concurrent.futures, multiprocessing, os, signal, subprocess, sys, threading, time
from typing import Any

if sys.argv[1] == "asyncio":
    sys.modules["uvloop"] = None  # as if it were not installed
from kagzi import Kagzi, Retry

app = Kagzi("sqlite:///forks.db")
fork = multiprocessing.get_context("fork")


hurried = False  # the next child gets a SIGINT before it has left the call of fork()
os.register_at_fork(after_in_child=lambda: hurried and os.kill(os.getpid(), signal.SIGINT))


def square(number):
    return number * number


def a_process_is_terminated():
    process = fork.Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join(60)
    return -process.exitcode


def a_process_is_interrupted():
    process = fork.Process(target=time.sleep, args=(600,))
    process.start()
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    return process.exitcode


def a_process_is_interrupted_as_it_begins():
    global hurried
    process = fork.Process(target=time.sleep, args=(600,))
    hurried = True
    process.start()
    hurried = False
    process.join(10)
    return process.exitcode


def a_pool_is_left():
    with fork.Pool(2) as pool:
        return pool.map(square, range(3))


def an_executor_is_used():
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as executor:
        return list(executor.map(square, range(3)))


def a_program_is_terminated():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process.terminate()
    return -process.wait(60)


def a_child_leaves():
    if (child := os.fork()) == 0:
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def a_child_returns():
    if (child := os.fork()) == 0:
        return "as a second worker"
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def a_child_fails():
    if (child := os.fork()) == 0:
        raise ValueError("in the child")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


BODIES = [
    a_process_is_terminated, a_process_is_interrupted, a_process_is_interrupted_as_it_begins, a_pool_is_left,
    an_executor_is_used, a_program_is_terminated, a_child_leaves, a_child_returns, a_child_fails,
]


@app.step(retry=Retry.none)
def in_a_thread(number: int) -> Any:
    return BODIES[number]()


@app.step(retry=Retry.none)
async def on_the_loop(number: int) -> Any:
    return BODIES[number]()


@app.workflow(retry=Retry.none)
async def everything() -> list[Any]:
    return [await step(number) for step in (in_a_thread, on_the_loop) for number in range(len(BODIES))]


async def order():
    async with app:
        return (await everything.start()).id


async def wait(run_id):
    async with Kagzi("sqlite:///forks.db") as client:
        try:
            print(await client.handle(run_id).result(), flush=True)
        except Exception as error:
            print(error, flush=True)


if __name__ == "__main__":
    run_id = asyncio.run(order())
    threading.Thread(target=lambda: asyncio.run(wait(run_id)), daemon=True).start()
    app.run_worker()
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_bodies_fork_leaves_the_worker_alone(loop: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "program.py", loop],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    results = [15, 1, 1, [0, 1, 4], [0, 1, 4], 15, 7, 0, 1]
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # children that were left behind, too
    out, err = process.communicate()
    assert said.strip() == str(results * 2), err
    assert (process.returncode, out.splitlines()) == (0, ["stopped"]), err
    assert err.count("ValueError: in the child") == 2


def in_a_child(make: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, make().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of os.fork beside threads
@pytest.mark.parametrize("what", ["run_id", "token", "jitter"])
def test_parent_and_children_draw_different_ids(what: str) -> None:
    ids = RandomIds(SystemClock().now)

    def draw() -> str:
        return str([getattr(ids, what)() for _ in range(3)])

    draw()  # there is something to inherit
    drawn = [in_a_child(draw), in_a_child(draw), draw()]
    numbers = {each for said in drawn for each in said.strip("[]").split(", ")}
    assert len(numbers) == 9

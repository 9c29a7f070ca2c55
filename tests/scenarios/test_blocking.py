"""Programs that cannot await: the blocking client, in all homes, from many threads, and in forked processes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kagzi
from kagzi import (
    Handle,
    InvalidRequest,
    Kagzi,
    NotFound,
    Retry,
    Workflow,
    WorkflowCancelled,
    WorkflowFailed,
)
from kagzi.sdk.schedules import ScheduleHandle, Schedules

ROOT = Path(__file__).resolve().parents[2]
FOR_EVER = 60  # seconds, after which something counts as waiting for ever


def shop(url: str = "memory://") -> tuple[Kagzi, Workflow[[int, int], int], Workflow[[], str]]:
    app = Kagzi(url)

    @app.step
    def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def total(a: int, b: int) -> int:
        return await add(a, b)

    @app.workflow
    async def asks() -> str:
        kagzi.set_value("stage", "asking")
        return await kagzi.wait_signal("answer", str)

    return app, total, asks


def in_thread(body: Callable[..., None]) -> Callable[..., Awaitable[None]]:
    """A test in a thread without an event loop, since the home may be a server in the loop of the test."""

    @functools.wraps(body)
    async def test(**given: Any) -> None:
        async with asyncio.timeout(FOR_EVER):
            await asyncio.to_thread(body, **given)

    return test


@in_thread
def test_a_program_without_await(home: str) -> None:
    app, total, asks = shop(home)
    with app, app.worker_sync():
        run = total.options(id="order-1").start_sync(1, 2)
        assert run.result_sync(timeout=FOR_EVER) == 3
        assert total.run_sync(3, b=4) == 7
        assert [step.name for step in run.steps_sync()] == ["add"]
        assert app.find_sync("order-1", total).id == run.id
        assert app.handle(run.id).get_sync().status == "COMPLETED"

        asked = asks.options(id="asked").start_sync()
        asked.signal_sync("answer", "yes")
        assert asked.result_sync(timeout=FOR_EVER) == "yes"
        assert asked.value_sync("stage", str) == "asking"
        assert asked.value_sync("other", str, default=None) is None
        assert [signal.name for signal in asked.signals_sync()] == ["answer"]
        with pytest.raises(NotFound):
            app.signal_sync("nobody", "answer", "no")

        cancelled = asks.start_sync()
        assert cancelled.cancel_sync()
        with pytest.raises(WorkflowCancelled):
            cancelled.result_sync(timeout=FOR_EVER)
        assert {each.run_id for each in app.runs_sync(workflow="asks").items} == {asked.id, cancelled.id}

        nightly = app.schedules.create_sync("nightly", total, 1, 2, cron="0 2 * * *")
        assert nightly.trigger_sync().result_sync(timeout=FOR_EVER) == 3
        assert nightly.pause_sync("holidays").pause_reason == "holidays"
        assert [each.name for each in app.schedules.list_sync().items] == ["nightly"]
        nightly.delete_sync()

        with pytest.raises(TimeoutError, match="it goes on"):
            asks.start_sync().result_sync(timeout=0.01)
        found = app.search_sync(workflow="total")
        assert run.id in {each.run_id for each in found}
    assert app.opening is None


@in_thread
def test_many_threads_share_one_loop(home: str) -> None:
    app, total, _ = shop(home)
    results: list[int] = []
    loops = set()

    def shopper(number: int) -> None:
        with app:
            results.append(total.run_sync(number, 1))
            assert app.opening is not None
            loops.add(app.opening.loop)

    with app.worker_sync():  # opens the app
        threads = [threading.Thread(target=shopper, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == list(range(1, 17))
    assert len(loops) == 1


@in_thread
def test_a_def_step_starts_runs_on_the_loop_of_its_worker() -> None:
    app, total, _ = shop()

    @app.step
    def starts() -> int:
        return total.run_sync(1, 2)

    @app.workflow
    async def parent() -> int:
        return await starts()

    @app.workflow(retry=Retry.none)
    def careless() -> int:
        return total.run_sync(1, 2)

    async def main() -> None:
        async with app, app.worker():
            assert await parent.run() == 3
            with pytest.raises(WorkflowFailed, match=r"Workflow\.run_sync\(\) belongs in a step") as caught:
                await careless.run()
            assert "test_blocking.py" in str(caught.value)

    asyncio.run(main())


def test_in_an_event_loop_it_says_what_to_write() -> None:
    app, total, _ = shop()

    async def blocks() -> None:
        for use, instead in (
            (lambda: total.start_sync(1, 2), r"await ….start\(...\)"),
            (lambda: app.runs_sync(), r"await ….runs\(...\)"),
            (app.__enter__, "async with app:"),
            (app.worker_sync().__enter__, r"async with app.worker\(\):"),
            (app.run_worker, r"async with app.worker\(\):"),
        ):
            with pytest.raises(InvalidRequest, match=rf"would block the event loop.*{instead}.*test_blocking.py:\d+"):
                use()

    asyncio.run(blocks())
    assert app.opening is None


def test_an_app_of_blocking_code_is_not_for_other_event_loops() -> None:
    app, total, _ = shop()
    with app:
        for use in (lambda: total.start(1, 2), app.open):
            with pytest.raises(InvalidRequest, match=r"opened by blocking code at .*test_blocking.py:\d+"):
                asyncio.run(use())
    asyncio.run(app.open())


def test_an_app_whose_loop_stands_still_says_so() -> None:
    app, total, _ = shop()
    with asyncio.Runner() as runner:
        runner.run(app.open())
        with pytest.raises(InvalidRequest, match="event loop that does not run now"):
            total.start_sync(1, 2)
        runner.run(app.close())


def test_a_call_that_waits_while_the_app_is_closed_says_so() -> None:
    app, total, _ = shop()
    failures: list[BaseException] = []

    def waits() -> None:
        try:
            total.run_sync(1, 2)  # nobody executes it
        except BaseException as error:
            failures.append(error)

    with app:
        thread = threading.Thread(target=waits)
        thread.start()
        while not app.runs_sync().items:
            pass
    thread.join(FOR_EVER)
    assert [str(each).partition(" (")[0] for each in failures] == ["the app was closed while this call waited for it"]


def test_what_cannot_be_opened_can_be_tried_again(tmp_path: Path) -> None:
    app, total, _ = shop(f"sqlite:///{tmp_path}/place/kagzi.db")
    (tmp_path / "place").touch()
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(kagzi.KagziError):
            total.start_sync(1, 2)
        with pytest.raises(kagzi.KagziError):
            app.__enter__()
    while threading.active_count() > before:
        pass  # the threads of the loops end
    (tmp_path / "place").unlink()
    with app:
        assert total.start_sync(1, 2).status_sync() == "PENDING"
    assert app.opening is None


@pytest.mark.parametrize("when", ["at the beginning", "at the end"])
def test_a_worker_of_a_block_that_fails_tells_the_block(when: str) -> None:
    app, total, _ = shop()

    @app.resource
    def desk() -> Iterator[str]:
        if when == "at the beginning":
            raise OSError("no desk")
        yield "a desk"
        raise OSError("no desk")

    done = []
    with app:
        with pytest.raises(OSError, match="no desk"), app.worker_sync():
            done.append(total.run_sync(1, 2))
        assert total.start_sync(1, 2).status_sync() == "PENDING", "the app is open all the same"
    assert done == ([] if when == "at the beginning" else [3])


@pytest.mark.parametrize("end", ["of the block", "of the app", "of the app, and of the block later"])
def test_the_end_waits_for_what_the_worker_has_begun(end: str, tmp_path: Path) -> None:
    app = Kagzi(f"sqlite:///{tmp_path}/kagzi.db")
    begun, finish, left = threading.Event(), threading.Event(), threading.Event()

    @app.step
    def slow() -> str:
        begun.set()
        threading.Timer(0.3, finish.set).start()  # when the end has begun
        finish.wait(FOR_EVER)
        return "done"

    @app.workflow
    async def waits() -> str:
        return await slow()

    def serve() -> None:
        with app.worker_sync():
            begun.wait(FOR_EVER)
            if end == "of the app, and of the block later":
                left.wait(FOR_EVER)

    with app:
        run = waits.start_sync()
        if end == "of the block":
            serve()
            assert run.status_sync() == "COMPLETED"
            assert not app.portal._blocks
        else:
            thread = threading.Thread(target=serve if "block" in end else app.run_worker, daemon=True)
            thread.start()
            begun.wait(FOR_EVER)
    if end != "of the block":
        left.set()
        thread.join(FOR_EVER)
        assert not thread.is_alive()
    assert app.handle(run.id).status_sync() == "COMPLETED"
    app.portal.end()


def test_a_call_whose_loop_stands_still_in_the_middle_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kagzi.sdk.blocking, "_LOOK_SECONDS", 0.01)
    app, _, asks = shop()
    failures: list[BaseException] = []

    def waits(id: str) -> None:
        try:
            app.handle(id).result_sync()
        except BaseException as error:
            failures.append(error)

    with asyncio.Runner() as runner:

        async def begin() -> threading.Thread:
            await app.open()
            run = await asks.start()
            others = len(asyncio.all_tasks())
            thread = threading.Thread(target=waits, args=[run.id])
            thread.start()
            while len(asyncio.all_tasks()) == others:
                await asyncio.sleep(0)
            return thread

        runner.run(begin()).join(FOR_EVER)
        assert [str(each).partition(" (")[0] for each in failures] == [
            "the app was closed while this call waited for it"
        ]
        runner.run(app.close())


def test_what_is_begun_for_a_call_that_is_interrupted_is_not_wanted_any_more() -> None:
    app, _, asks = shop()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with app:
        run = asks.start_sync()
        assert app.opening is not None
        loop = app.opening.loop
        before = len(asyncio.all_tasks(loop))
        old = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                run.result_sync()
        finally:
            signal.signal(signal.SIGALRM, old)
        while len(asyncio.all_tasks(loop)) > before:
            pass


@in_thread
def test_a_worker_in_a_thread(home: str) -> None:
    app, total, _ = shop(home)
    thread = threading.Thread(target=app.run_worker, daemon=True)
    thread.start()
    with app:
        assert total.run_sync(1, 2) == 3
        app.stop_workers()
        thread.join(FOR_EVER)
        assert not thread.is_alive()
        thread = threading.Thread(target=app.run_worker, daemon=True)
        thread.start()
        assert total.run_sync(3, 4) == 7
    thread.join(FOR_EVER)  # closing the app has ended it
    assert not thread.is_alive()


PROGRAM = """
import multiprocessing, os, signal, sys, threading, time
from kagzi import InvalidRequest, Kagzi

app = Kagzi(sys.argv[1])

@app.workflow
async def total(a: int, b: int) -> int:
    return a + b

def in_child(body):
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        sys.exit(0)  # through all that Python does at the end of a process, as gunicorn's workers do
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"

def first_use():
    # Threads of one process, which all come first.
    threads = [threading.Thread(target=lambda: total.start_sync(1, 2)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

def used_before():
    try:
        with app:
            assert total.start_sync(1, 2).status_sync() == "PENDING"
        assert app.opening is None, "the blocks of the process before it do not count"
    except InvalidRequest as error:
        assert sys.argv[1].startswith("grpc") and "which gRPC does not survive" in str(error), error
        print("refused", flush=True)

in_child(first_use)
in_child(first_use)
with app:
    assert len(app.runs_sync().items) == 8
    for _ in range(2):
        with app.portal._guard:  # as another thread may in the moment of a fork
            in_child(used_before)
        total.start_sync(3, 4)  # what the child has closed is not closed here
    if not sys.argv[1].startswith("grpc"):
        worker = multiprocessing.get_context("fork").Process(target=app.run_worker)
        worker.start()
        assert total.start_sync(5, 6).result_sync(timeout=60) == 11
        os.kill(worker.pid, signal.SIGTERM)
        worker.join()
        assert worker.exitcode == 0
print(len(app.runs_sync().items), flush=True)

begun = threading.Event()

@app.step
def slow() -> None:
    begun.set()
    time.sleep(0.3)
    print("drained", flush=True)

slow.start_sync()
threading.Thread(target=app.run_worker, daemon=True).start()
begun.wait()  # and the end of the program waits for the rest
"""


async def test_forked_processes_open_the_app_for_themselves(home: str) -> None:
    environment = os.environ | {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # that there are threads while it forks
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, home, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(FOR_EVER):
        output, _ = await program.communicate()
    expected = ["refused", "refused", "10", "drained"] if home.startswith("grpc") else ["13", "drained"]
    assert output.decode().split() == expected
    assert program.returncode == 0


NOT_FOR_BLOCKING_CODE = {"open", "close", "start_run", "cancel_child", "signal_child"}  # of the engine room


@pytest.mark.parametrize("kind", [Kagzi, Handle, Workflow, Schedules, ScheduleHandle])
def test_everything_that_is_awaited_has_a_blocking_form(kind: type) -> None:
    awaited = {
        name
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_") and inspect.iscoroutinefunction(inspect.unwrap(value))
    }
    missing = {name for name in awaited - NOT_FOR_BLOCKING_CODE if not hasattr(kind, f"{name}_sync")}
    assert not missing


def test_help_tells_of_both_forms() -> None:
    app, total, _ = shop()
    assert total.start_sync.__name__ == "start_sync"
    assert "for code that cannot await" in (total.start_sync.__doc__ or "")
    assert "Start a run" in (total.start_sync.__doc__ or "")
    assert app.opening is None

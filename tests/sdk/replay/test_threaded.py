"""`def` workflows: the same history as the same program written with `async def`, whatever happens to it."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kagzi.core.instant import SECOND
from kagzi.core.retry import Retry
from kagzi.sdk.replay.threaded import Suspended, Threads, current_bridge, in_turn, run_in_thread
from kagzi.sdk.replay.unwinding import Evicted
from tests.sdk.replay import checks
from tests.sdk.replay.host import Crashed, Host, current, describe, step
from tests.sdk.replay.programs import Node, Returns, make_sequence, random_sequence
from tests.sdk.replay.programs import run as run_async

Note = Callable[..., None]


@pytest.fixture
def threads() -> Iterator[Threads]:
    pool = Threads()
    yield pool
    pool.close()


# The interpreter of `programs`, for what a sequential program can do, without a single `await`.


def run_plain(program: Node) -> str:
    execution = current()
    trace = execution.trace
    loop: Any = asyncio.get_running_loop()

    def note(*what: Any) -> None:
        if not loop.evicting:
            trace.append((*what, loop.time()))
            execution.set_value("noted", b"%d" % len(trace))

    note("begin")
    result = Plain(note).run(program)
    note("end", result)
    return repr(result)


class Plain:
    def __init__(self, note: Note) -> None:
        self.note = note

    def run(self, node: Node) -> Any:
        return getattr(self, "do_" + node[0])(*node[1:])

    def do_step(self, name: str, body: Returns, retry: Retry | None) -> Any:
        self.note("call", name)
        try:
            value = in_turn(step(name, body, retry=retry))
        except BaseException as error:
            self.note("raised", name, repr(error), hasattr(error, "extra"))
            raise
        self.note("returned", name, repr(value))
        return value

    def do_sleep(self, delay: float, _named: bool) -> None:
        in_turn(asyncio.sleep(delay))
        self.note("slept", delay)

    def do_observe(self) -> float:
        loop: Any = asyncio.get_running_loop()
        self.note("observed", loop.now)
        return float(loop.time() - loop.now / SECOND)

    def do_seq(self, nodes: tuple[Node, ...]) -> Any:
        return [self.run(node) for node in nodes]

    def do_try(self, node: Node, handler: Node, final: Node | None) -> Any:
        try:
            return self.run(node)
        except Exception as error:
            self.note("caught", repr(error))
            return self.run(handler)
        except asyncio.CancelledError:
            self.note("cancelled")
            raise
        finally:
            if final is not None:
                self.note("finally")
                self.run(final)

    def do_branch(self, condition: Node, then: Node, otherwise: Node) -> Any:
        value = self.run(condition)
        number = sum(map(ord, repr(value)))
        return self.run(then if number % 2 else otherwise)


def same(program: Node, seed: int, threads: Threads) -> None:
    async_host = Host(lambda: run_async(program), seed=seed)
    plain_host = Host(lambda: run_in_thread(run_plain, (program,), {}, threads), seed=seed)
    assert describe(plain_host.live()) == describe(async_host.live())
    assert plain_host.rows == async_host.rows
    assert plain_host.started == async_host.started
    assert plain_host.execution is not None
    assert async_host.execution is not None
    assert plain_host.execution.trace == async_host.execution.trace


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 1 << 16))
def test_same_history_as_async_def(data: st.DataObject, seed: int) -> None:
    program = make_sequence(lambda count: data.draw(st.integers(0, count - 1)), 3)
    pool = Threads()
    try:
        same(program, seed, pool)
    finally:
        pool.close()


def test_every_rule_holds(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "run", lambda program: run_in_thread(run_plain, (program,), {}, threads))
    for seed in range(40):
        program = random_sequence(seed)
        checks.check_program(program, seed)
        same(program, seed, threads)


def plain(fn: Callable[..., Any], threads: Threads, *args: Any) -> Callable[[], Coroutine[Any, Any, Any]]:
    return lambda: run_in_thread(fn, args, {}, threads)


def test_threads_are_used_again(threads: Threads) -> None:
    def workflow() -> Any:
        first = in_turn(step("a", lambda: 1))
        in_turn(asyncio.sleep(5))
        return first

    before = set(threading.enumerate())
    for seed in range(300):
        host = Host(plain(workflow, threads), seed=seed, crash_after=seed % 7 or None)
        try:
            host.live()
        except Crashed:
            pass
    assert len(set(threading.enumerate()) - before) == 1


def test_threads_end_when_the_pool_is_closed() -> None:
    def workflow() -> Any:
        return in_turn(step("a", lambda: 1))

    pool = Threads(idle=2)
    before = set(threading.enumerate())
    hosts = [Host(plain(workflow, pool)) for _ in range(5)]
    executions = [host.begin() for host in hosts]
    mine = set(threading.enumerate()) - before
    assert len(mine) == 5
    for host, execution in zip(hosts, executions, strict=True):
        host.evict(execution)
    pool.close()
    for thread in mine:
        thread.join(10)
        assert not thread.is_alive()


def test_letting_go_unwinds_the_function(threads: Threads) -> None:
    seen: list[Any] = []

    def workflow() -> None:
        try:
            in_turn(asyncio.sleep(1000))
        except Exception:
            seen.append("an error, and it is none")
        except BaseException as error:
            seen.append(type(error))
            raise
        finally:
            for _ in range(3):
                try:
                    in_turn(step("refund", lambda: 1))
                except Evicted:
                    seen.append("refused")

    host = Host(plain(workflow, threads))
    execution = host.begin()
    host.evict(execution)
    assert seen == [Suspended, "refused", "refused", "refused"]
    assert not host.pending
    assert not host.started


def test_a_function_that_does_not_want_to_go(threads: Threads, caplog: pytest.LogCaptureFixture) -> None:
    def workflow() -> None:
        while True:
            try:
                in_turn(step("a", lambda: 1))
            except BaseException:
                pass

    host = Host(plain(workflow, threads))
    host.evict(host.begin())
    assert "given up" in caplog.text
    # The pool goes on without that thread.
    assert describe(Host(plain(lambda: 1, threads)).live()) == ("completed", b"1")


def test_cancellation_reaches_the_function(threads: Threads) -> None:
    def workflow() -> Any:
        try:
            in_turn(asyncio.sleep(1000))
        except asyncio.CancelledError:
            return in_turn(step("compensate", lambda: "undone"))

    async def outer() -> Any:
        task = asyncio.create_task(run_in_thread(workflow, (), {}, threads))
        await asyncio.sleep(1)
        task.cancel()
        return await task

    assert describe(Host(outer).live()) == ("completed", b'"undone"')


def test_what_a_function_raises(threads: Threads) -> None:
    def workflow(error: BaseException) -> None:
        raise error

    for error, expected in [
        (ValueError("x"), "builtins.ValueError"),
        (SystemExit(3), "builtins.SystemExit"),
        (StopIteration(), "builtins.RuntimeError"),
    ]:
        assert describe(Host(plain(workflow, threads, error)).live())[:2] == ("failed", expected)


def test_context_is_that_of_the_caller(threads: Threads) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)

    def workflow() -> Any:
        before = variable.get()
        variable.set(5)
        in_turn(asyncio.sleep(1))
        return [before, variable.get(), current_bridge() is not None]

    variable.set(3)
    assert describe(Host(plain(workflow, threads)).live()) == ("completed", b"[3, 5, true]")
    assert variable.get() == 3
    assert current_bridge() is None


def test_outside_of_a_plain_workflow_there_is_something_to_await() -> None:
    coroutine = asyncio.sleep(1)
    assert in_turn(coroutine) is coroutine
    coroutine.close()


def test_a_run_goes_without_the_collector(threads: Threads) -> None:
    def workflow() -> Any:
        try:
            in_turn(step("a", lambda: 1 / 0))
        except ZeroDivisionError:
            pass
        in_turn(asyncio.sleep(5))

    gc.collect()
    gc.disable()
    try:
        for crash_after in (None, 0, 1, 2, 3):
            host = Host(plain(workflow, threads), crash_after=crash_after)
            try:
                host.live()
            except Crashed:
                pass
            assert host.execution is not None
            alive = weakref.ref(host.execution)
            host.bodies.clear()
            host.execution = None
            assert alive() is None, crash_after
    finally:
        gc.enable()

"""The workflow loop and its host's side, one behaviour at a time."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.retry import Retry
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.errors import StepTimeout
from kagzi.sdk.replay.loop import Evicted
from tests.sdk.replay.host import START, Crashed, Host, Rows, current, describe, step

Workflow = Callable[[], Coroutine[Any, Any, Any]]


def finish(workflow: Workflow, seed: int = 0, **options: Any) -> tuple[Any, Host]:
    host = Host(workflow, seed=seed, **options)
    return describe(host.live()), host


def result(workflow: Workflow, seed: int = 0) -> Any:
    outcome, _ = finish(workflow, seed)
    assert outcome[0] == "completed", outcome
    return outcome[1].decode()


def failure(workflow: Workflow) -> Failure:
    outcome = Host(workflow).live()
    assert outcome.failure is not None
    return outcome.failure


def value(number: Any = 1) -> Callable[[], Any]:
    return lambda: number


# What belongs in a step.


async def opens_a_connection() -> None:
    await asyncio.open_connection("example.org", 80)


async def uses_a_thread() -> None:
    await asyncio.to_thread(print)


async def uses_an_executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, print)


async def starts_a_process() -> None:
    await asyncio.create_subprocess_exec("true")


async def starts_a_shell() -> None:
    await asyncio.create_subprocess_shell("true")


async def resolves_a_name() -> None:
    await asyncio.get_running_loop().getaddrinfo("example.org", 80)


async def connects_a_socket() -> None:
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", 9))


async def starts_a_server() -> None:
    await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)


async def listens_to_signals() -> None:
    asyncio.get_running_loop().add_signal_handler(2, print)


async def is_called_from_a_thread() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(print)


@pytest.mark.parametrize(
    "workflow",
    [
        opens_a_connection,
        uses_a_thread,
        uses_an_executor,
        starts_a_process,
        starts_a_shell,
        resolves_a_name,
        connects_a_socket,
        starts_a_server,
        listens_to_signals,
        is_called_from_a_thread,
    ],
)
def test_what_touches_the_world_belongs_in_a_step(workflow: Workflow) -> None:
    found = failure(workflow)
    assert found.type == "kagzi.errors.NonDeterminismError"
    assert "belongs in a step" in found.message
    assert f"{__file__}:" in found.message
    assert f"in {workflow.__name__}" in found.message  # type: ignore[attr-defined]


def test_the_place_is_that_of_the_user_and_not_of_a_library() -> None:
    import contextlib

    async def workflow() -> None:
        @contextlib.asynccontextmanager
        async def connection() -> AsyncGenerator[None, None]:
            await asyncio.open_connection("example.org", 80)
            yield

        async with connection():
            pass

    message = failure(workflow).message
    assert f"{__file__}:" in message
    assert "contextlib" not in message


def test_as_completed_over_coroutines_starts_them_in_their_order() -> None:
    async def workflow() -> Any:
        async def charge(number: int) -> Any:
            return await step("charge", value(number))

        return [await one for one in asyncio.as_completed([charge(number) for number in range(20)])]

    _, host = finish(workflow)
    numbers = {row.step_id: row.output for row in host.rows.values()}
    assert numbers["charge/charge"] == b"0"
    assert all(numbers[f"charge#{number + 1}/charge"] == str(number).encode() for number in range(1, 20))


def test_as_completed_over_a_set_of_coroutines_is_refused() -> None:
    async def workflow() -> None:
        for one in asyncio.as_completed({asyncio.sleep(1), asyncio.sleep(2)}):
            await one

    found = failure(workflow)
    assert found.type == "kagzi.errors.NonDeterminismError"
    assert "pass it a list" in found.message
    assert f"{__file__}:" in found.message


# asyncio on this loop.


def test_gather_keeps_its_order() -> None:
    async def workflow() -> Any:
        return await asyncio.gather(*[step("s", value(number)) for number in range(5)])

    for seed in range(5):
        assert result(workflow, seed) == "[0, 1, 2, 3, 4]"


def test_task_group_collects_errors_and_cancels() -> None:
    async def workflow() -> Any:
        seen = []

        async def waits() -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def fails() -> None:
            await step("boom", lambda: 1 / 0)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(waits())
                group.create_task(fails())
        except* ZeroDivisionError as errors:
            seen.append(str(errors.exceptions[0]))
        return seen

    assert result(workflow) == '["cancelled", "division by zero"]'


def test_a_failed_group_inside_a_timeout_does_not_look_like_a_cancellation() -> None:
    """TaskGroup of 3.11 and 3.12 leaves cancelling() at 1 here, and the timeout then raises CancelledError."""

    async def workflow() -> Any:
        async def fails() -> None:
            await step("boom", lambda: 1 / 0)

        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(10):
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(fails())
                except* ZeroDivisionError:
                    pass
                counted = task.cancelling()
                await asyncio.sleep(100)
        except TimeoutError:
            return ["timed out", counted, task.cancelling()]

    assert result(workflow) == '["timed out", 0, 0]'


def test_a_group_cancelled_from_outside_still_is() -> None:
    async def workflow() -> Any:
        async def group() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(100))
                group.create_task(asyncio.sleep(200))

        task = asyncio.create_task(group())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return [task.cancelled(), task.cancelling()]

    assert result(workflow) == "[true, 1]"


def test_timeout_and_wait_for() -> None:
    async def workflow() -> Any:
        begin = asyncio.get_running_loop().time()
        seen = []
        for wait in (0, 2, 3):
            try:
                async with asyncio.timeout(wait):
                    await asyncio.sleep(1000)
            except TimeoutError:
                seen.append(round(asyncio.get_running_loop().time() - begin))
        try:
            await asyncio.wait_for(asyncio.sleep(1000), 4)
        except TimeoutError:
            seen.append(round(asyncio.get_running_loop().time() - begin))
        return [*seen, await asyncio.wait_for(step("s", value(7)), None)]

    assert result(workflow) == "[0, 2, 5, 9, 7]"


def test_wait_as_completed_queue_event_semaphore_barrier() -> None:
    async def workflow() -> Any:
        seen: list[Any] = []

        async def sleeps(seconds: int) -> int:
            await asyncio.sleep(seconds)
            return seconds

        tasks = [asyncio.create_task(sleeps(seconds)) for seconds in (30, 10, 20)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seen.append([[task.result() for task in done], len(pending)])
        seen.append([await one for one in asyncio.as_completed(tasks)])
        queue: asyncio.Queue[int] = asyncio.Queue(1)

        async def produce() -> None:
            for number in range(3):
                await queue.put(number)

        producer = asyncio.create_task(produce())
        seen.append([await queue.get() for _ in range(3)])
        await producer
        event, semaphore, barrier = asyncio.Event(), asyncio.Semaphore(1), asyncio.Barrier(2)

        async def waits(number: int) -> None:
            await event.wait()
            async with semaphore:
                await asyncio.sleep(1)
                seen.append(number)
            await barrier.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(waits(1))
            group.create_task(waits(2))
            event.set()
        return seen

    assert result(workflow) == "[[[10], 2], [10, 20, 30], [0, 1, 2], 1, 2]"


def test_endless_sleeps_and_impossible_ones() -> None:
    async def workflow() -> Any:
        task = asyncio.create_task(asyncio.sleep(math.inf))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(ValueError, match=r"(?i)nan"):
            await asyncio.sleep(math.nan)
        return task.cancelling()

    assert result(workflow) == "1"


def test_cancelled_timers_do_not_pile_up() -> None:
    async def workflow() -> Any:
        loop: Any = asyncio.get_running_loop()
        for _ in range(5_000):
            async with asyncio.timeout(1000):
                await asyncio.sleep(0)
        return len(loop._timers)

    assert int(result(workflow)) < 2_000


def test_finished_tasks_and_generators_do_not_pile_up() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        yield 1

    async def workflow() -> Any:
        loop: Any = asyncio.get_running_loop()
        for _ in range(5_000):
            await asyncio.create_task(asyncio.sleep(0))
            async for _ in numbers():
                pass
        return [len(loop._tasks), len(loop._generators)]

    tasks, generators = eval(result(workflow))
    assert tasks < 2_000
    assert generators < 2_000


def test_sys_exit_fails_the_run_and_not_the_worker() -> None:
    async def workflow() -> None:
        raise SystemExit(3)

    assert failure(workflow).type == "builtins.SystemExit"


def test_errors_nobody_saw_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("unseen")

    async def workflow() -> None:
        task = asyncio.create_task(fails())
        await asyncio.wait([task])
        await step("s", value())

    for seed in range(3):
        caplog.clear()
        finish(workflow, seed)
        gc.collect()
        assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("unseen",)]  # type: ignore[union-attr]


# Letting go.


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
            alive = weakref.ref(host.execution)
            host.bodies.clear()
            host.cancelled.clear()
            host.execution = None
            assert alive() is None, crash_after
    finally:
        gc.enable()


def test_durable_calls_after_the_end_raise() -> None:
    host, execution = parked(lambda: asyncio.sleep(1000))
    with pytest.raises(Evicted):
        execution.call_step(name="late", fn=value(), codec=None, policy=None, timeout=None, args=(), kwargs={})
    execution.tick()
    execution.durable(1)
    assert not host.pending


# Scopes.


def identities(workflow: Workflow) -> list[str]:
    _, host = finish(workflow)
    return sorted(step_id for step_id, _ in host.rows)


async def charge() -> None:
    await step("charge", value())


async def twice() -> None:
    await charge()
    await charge()


async def named_by_coroutine() -> None:
    await asyncio.gather(charge(), charge(), twice())


async def named_by_task() -> None:
    await asyncio.gather(
        asyncio.create_task(charge(), name="first"),
        asyncio.create_task(charge(), name="second"),
        asyncio.create_task(charge(), name="second"),
        asyncio.create_task(charge()),
    )


async def named_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(charge(), name="a/b#1")
        group.create_task(charge())


async def nested() -> None:
    async def outer() -> None:
        await asyncio.gather(charge(), charge())

    await asyncio.gather(outer(), charge())


async def slept() -> None:
    await asyncio.sleep(1)
    await asyncio.gather(asyncio.sleep(2), charge())
    await asyncio.sleep(3)


async def renamed() -> None:
    tasks = [asyncio.create_task(charge()) for _ in range(3)]
    tasks[1].set_name("middle")
    tasks[2].set_name("last")
    await asyncio.wait([*tasks, asyncio.create_task(charge())])


async def made_here_and_awaited_there() -> None:
    """A step's identity is fixed where it is called, not where it is awaited."""
    call = step("charge", value())
    await asyncio.gather(asyncio.create_task(_await(call), name="there"), step("charge", value()))


async def _await(call: Coroutine[Any, Any, Any]) -> Any:
    return await call


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        (charge, ["charge"]),
        (twice, ["charge", "charge#2"]),
        (named_by_coroutine, ["charge#2/charge", "charge/charge", "twice/charge", "twice/charge#2"]),
        (named_by_task, ["charge/charge", "first/charge", "second#2/charge", "second/charge"]),
        (named_in_a_group, ["a%2Fb%231/charge", "charge/charge"]),
        (nested, ["charge/charge", "outer/charge#2/charge", "outer/charge/charge"]),
        (slept, ["@sleep", "@sleep#2", "charge/charge", "sleep/@sleep"]),
        (renamed, ["charge#3/charge", "charge/charge", "last/charge", "middle/charge"]),
        (made_here_and_awaited_there, ["charge", "charge#2"]),
    ],
)
def test_identities(workflow: Workflow, expected: list[str]) -> None:
    assert identities(workflow) == expected


# Code that changes under a live run.


def crash(workflow: Workflow, events: int) -> Rows:
    """The rows of a run that was let go of when so many of its events were recorded."""
    host = Host(workflow, seed=1)
    execution = host.begin()
    while sum(row.completed_seq is not None for row in host.rows.values()) < events:
        host.step(execution)
        if execution.outcome is not None:
            host.commit_all()
    if execution.outcome is None:
        host.evict(execution)
    return host.rows


def test_changed_code_added_step() -> None:
    async def old() -> Any:
        return [await step("a", value(1)), await step("c", value(3))]

    async def new() -> Any:
        return [await step("a", value(10)), await step("b", value(20)), await step("c", value(30))]

    rows = crash(old, 2)
    outcome, host = finish(new, rows=rows)
    assert outcome == ("completed", b"[1, 20, 3]")
    assert host.started == [("b", 1)]
    assert finish(new, rows=rows)[1].started == []


def test_changed_code_removed_step() -> None:
    async def old() -> Any:
        return [await step("a", value(1)), await step("b", value(2)), await step("c", value(3))]

    async def new() -> Any:
        return [await step("a", value(10)), await step("c", value(30)), await step("d", value(40))]

    outcome, host = finish(new, rows=crash(old, 3))
    assert outcome == ("completed", b"[1, 3, 40]")
    assert host.started == [("d", 1)]


def test_changed_code_reordered_steps() -> None:
    async def old() -> Any:
        return [await step("a", value(1)), await step("b", value(2))]

    async def new() -> Any:
        return [await step("b", value(20)), await step("a", value(10)), await asyncio.sleep(5)]

    rows = crash(old, 2)
    outcome, host = finish(new, rows=rows)
    assert outcome == ("completed", b"[2, 1, null]")
    assert host.started == []
    assert finish(new, rows=rows)[0] == outcome


def test_changed_code_may_come_to_the_name_of_an_old_tick() -> None:
    """The store never writes over a recorded event, so the new tick needs a row of its own."""

    async def old() -> None:
        await asyncio.sleep(1)
        await asyncio.sleep(1000)

    async def new() -> Any:
        await step("new", value())
        await asyncio.sleep(50)
        return "ended"

    host = Host(old)
    execution = host.begin()
    host.clock += SECOND
    execution.tick()
    host.commit_all()
    host.evict(execution)
    rows = host.rows
    assert list(rows) == [("@sleep", 1)]
    outcome, _ = finish(new, rows=rows)
    assert outcome == ("completed", b'"ended"')
    assert set(rows) == {("@sleep", 1), ("@sleep", 2), ("new", 1)}
    again, host = finish(new, rows=rows)
    assert again == outcome
    assert host.started == []


def called_with(number: int) -> Workflow:
    async def workflow() -> Any:
        return await step("a", lambda x: x, number)

    return workflow


def test_other_arguments_warn(caplog: pytest.LogCaptureFixture) -> None:
    rows = crash(called_with(1), 1)
    with caplog.at_level(logging.WARNING):
        outcome, _ = finish(called_with(2), rows=rows)
    assert outcome == ("completed", b"1")
    assert "other arguments" in caplog.text


def test_other_arguments_fail_in_strict_mode() -> None:
    rows = crash(called_with(1), 1)
    outcome, _ = finish(called_with(2), rows=rows, strict=True)
    assert outcome[:2] == ("failed", "kagzi.errors.NonDeterminismError")


def test_arguments_recorded_by_their_repr_are_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    class ReprCodec:
        def settle_input(self, args: Any, kwargs: Any) -> tuple[bytes, int, Any, Any]:
            return repr(args).encode(), 0, args, kwargs

        def decode_input(self, data: bytes) -> Any:
            raise AssertionError

        def settle_result(self, value: Any) -> tuple[bytes, Any]:
            return b"1", 1

        def decode_result(self, data: bytes) -> Any:
            return 1

    def workflow() -> Coroutine[Any, Any, Any]:
        async def run() -> Any:
            return await current().call_step(
                name="a", fn=lambda _: 1, codec=ReprCodec(), policy=None, timeout=None, args=(object(),), kwargs={}
            )

        return run()

    keep = object()
    rows = crash(workflow, 1)
    assert finish(workflow, rows=rows)[0] == ("completed", b"1")
    assert "other arguments" not in caplog.text
    del keep


# Attempts.


def failed_attempt(step_id: str, attempt: int, *, retry_at: int | None, error: BaseException) -> Step:
    return Step(
        step_id=step_id,
        attempt=attempt,
        kind=StepKind.FUNCTION,
        status=StepStatus.FAILED,
        completed_seq=None,
        started_at=START,
        finished_at=START + SECOND,
        retry_at=retry_at,
        input_hash=0,
        output=None,
        error=Failure.from_exception(error).encode(),
    )


async def two_failing() -> Any:
    async def call(name: str) -> str:
        loop: Any = asyncio.get_running_loop()
        try:
            return str(await step(name, value("ran")))
        except Exception as error:
            current().trace.append((name, loop.now))
            return type(error).__name__

    return await asyncio.gather(asyncio.create_task(call("a"), name="one"), asyncio.create_task(call("b"), name="two"))


@pytest.mark.parametrize("retry_at", [None, START + 60 * SECOND])
def test_no_attempt_left_ends_the_step_one_event_at_a_time(retry_at: int | None) -> None:
    """The coordinator ended the attempt, or the policy was made stricter since."""
    rows: Rows = {
        (step_id, 2): failed_attempt(step_id, 2, retry_at=retry_at, error=StepTimeout("slow"))
        for step_id in ("one/a", "two/b")
    }
    for attempts in (1, 2):
        outcome, host = finish(two_failing, rows=dict(rows), retry=Retry.fixed("1s", attempts=attempts), now=START + 5)
        assert outcome == ("completed", b'["StepTimeout", "StepTimeout"]')
        assert host.started == []
        assert {key: row.completed_seq for key, row in host.rows.items()} == {("one/a", 2): 1, ("two/b", 2): 2}
        assert finish(two_failing, rows=host.rows)[0] == outcome


def test_attempts_left_go_on_where_they_were() -> None:
    rows: Rows = {
        ("one/a", 1): failed_attempt("one/a", 1, retry_at=START + 60 * SECOND, error=ValueError("x")),
        ("one/a", 2): failed_attempt("one/a", 2, retry_at=START + 90 * SECOND, error=ValueError("x")),
        ("two/b", 1): failed_attempt("two/b", 1, retry_at=None, error=StepTimeout("slow")),
    }
    host = Host(two_failing, rows=rows, retry=Retry.fixed("2s", attempts=3), now=START + 2 * SECOND)
    execution = host.begin()
    assert execution.idle
    assert execution.next_due() == START + 3 * SECOND
    host.clock = START + 3 * SECOND
    execution.tick()
    assert host.started == [("two/b", 2)]
    host.clock = START + 90 * SECOND
    execution.tick()
    assert host.started == [("two/b", 2), ("one/a", 3)]
    host.evict(execution)


def test_each_attempt_gets_its_own_copy_of_the_arguments() -> None:
    seen = []

    def body(items: list[int]) -> int:
        seen.append(list(items))
        items.append(9)
        if len(seen) < 3:
            raise ValueError
        return len(items)

    async def workflow() -> Any:
        items = [1]
        return [await step("a", body, items, retry=Retry.fixed("1s", attempts=3)), items]

    assert result(workflow) == "[2, [1]]"
    assert seen == [[1], [1], [1]]


def test_a_cancelled_step_is_not_tried_again() -> None:
    async def workflow() -> Any:
        try:
            async with asyncio.timeout(5):
                await step("a", lambda: 1 / 0, retry=Retry.fixed("60s", attempts=9))
        except TimeoutError:
            return await step("b", value(2))

    outcome, host = finish(workflow)
    assert outcome == ("completed", b"2")
    assert host.started == [("a", 1), ("b", 1)]


def test_show_after_the_end_says_nothing() -> None:
    async def workflow() -> None:
        background = asyncio.create_task(charge())
        await asyncio.sleep(1)
        del background

    host = Host(workflow)
    execution = host.begin()
    (call,) = list(host.bodies)
    execution.show(call)
    execution.show(call)
    host.clock += 2 * SECOND
    execution.tick()
    assert execution.outcome is not None
    assert not execution.busy
    before = list(host.pending)
    execution.show(call)
    execution.body_ended(call)
    execution.step_returned(call, 1)
    assert host.pending == before


def test_a_result_that_is_too_large_fails_the_step_for_good() -> None:
    async def workflow() -> Any:
        try:
            await step("big", lambda: "x" * (1 << 21), retry=Retry.fixed("1s", attempts=5))
        except Exception as error:
            return type(error).__name__

    assert result(workflow) == '"PayloadTooLarge"'

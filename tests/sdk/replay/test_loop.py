"""The workflow loop: what it refuses, and asyncio on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import math
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from kagzi import NonDeterminismError
from kagzi.core.instant import SECOND
from tests.sdk.replay.host import START, Host, step
from tests.sdk.replay.workflows import Workflow, failure, finish, result, value

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


async def waits_for_a_thread() -> None:
    await asyncio.wrap_future(concurrent.futures.Future[None]())


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
        waits_for_a_thread,
    ],
)
def test_what_touches_the_world_belongs_in_a_step(workflow: Workflow) -> None:
    found = failure(workflow)
    assert found.type == "kagzi.errors.NonDeterminismError"
    assert "belongs in a step" in found.message
    assert f"{__file__}:" in found.message
    assert f"in {workflow.__name__}" in found.message  # type: ignore[attr-defined]


def test_a_library_may_prefer_the_thread_safe_call_and_a_thread_may_not() -> None:
    called: list[str] = []
    refused: list[str] = []

    def thread(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(called.append, "from elsewhere")
        except NonDeterminismError as error:
            refused.append(str(error))

    async def workflow() -> list[str]:
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(called.append, "from here")
        await asyncio.sleep(0)
        other = threading.Thread(target=thread, args=[loop])
        other.start()
        other.join()
        return called

    assert result(workflow) == '["from here"]'
    assert "return it from the step" in refused[0]


def test_a_mistake_in_a_task_group_is_that_mistake_unless_there_are_others() -> None:
    async def fails() -> None:
        raise ValueError("another matter")

    def grouped(*functions: Callable[[], Coroutine[Any, Any, None]]) -> Workflow:
        async def workflow() -> None:
            async with asyncio.TaskGroup() as outer:
                async with asyncio.TaskGroup():
                    for function in functions:
                        outer.create_task(function())

        return workflow

    found = failure(grouped(resolves_a_name, resolves_a_name))
    assert found.type == "kagzi.errors.NonDeterminismError"
    assert "in resolves_a_name" in found.message
    assert "async with asyncio.TaskGroup() as outer" in found.traceback
    assert failure(grouped(resolves_a_name, fails)).type == "builtins.ExceptionGroup"


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
        return len(loop.timers)

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


@pytest.mark.parametrize("cancelled", range(5))
def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set_live_and_replayed(cancelled: int) -> None:
    async def naps() -> list[int]:
        woke: list[int] = []

        async def nap(number: int) -> None:
            await asyncio.sleep(5)
            woke.append(number)

        tasks = [asyncio.create_task(nap(number)) for number in range(5)]
        await asyncio.sleep(1)
        tasks[cancelled].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return woke

    in_order = ("completed", str([number for number in range(5) if number != cancelled]).encode())
    live, host = finish(naps)
    assert live == in_order
    replayed, again = finish(naps, rows=dict(host.rows))
    assert replayed == in_order
    assert again.events == 0


async def spins() -> None:
    while True:
        await asyncio.sleep(0)


async def spins_beside_a_step() -> None:
    await asyncio.gather(step("charge", value()), spins())


async def spins_until_a_step_has_ended() -> None:
    charging = asyncio.ensure_future(step("charge", value()))
    while not charging.done():
        await asyncio.sleep(0)


async def spins_after_a_step() -> None:
    await step("charge", value())
    await spins()


async def spins_whatever_is_raised() -> None:
    while True:
        try:
            await asyncio.sleep(0)
        except BaseException:
            pass


async def hands_callbacks_around() -> None:
    loop = asyncio.get_running_loop()

    def again() -> None:
        loop.call_soon(again)

    again()
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("workflow", "place"),
    [
        (spins, "in spins"),
        (spins_beside_a_step, "in spins"),
        (spins_until_a_step_has_ended, "in spins_until_a_step_has_ended"),
        (spins_after_a_step, "in spins"),
        (spins_whatever_is_raised, "in spins_whatever_is_raised"),
        (hands_callbacks_around, "an unknown place"),
    ],
)
def test_a_workflow_that_spins_fails_and_says_where(
    workflow: Workflow, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kagzi.sdk.replay.loop._MOST_LOOKS", 5)

    found = failure(workflow)

    assert found.type == "kagzi.errors.NonDeterminismError"
    assert "workflow program (0190-run) spins at " in found.message
    assert place in found.message
    assert "in spins" not in place or f"{__file__}:" in found.message


def test_a_workflow_that_spins_slowly_fails_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(spins)
    times = iter(range(START, START + 10**9, SECOND))
    monkeypatch.setattr(host, "now", lambda: next(times))

    outcome = host.live()

    assert outcome.failure is not None
    assert "spins at " in outcome.failure.message
    assert next(times) < START + 60 * SECOND


def test_a_turn_may_be_long() -> None:
    async def busy() -> int:
        async def nothing() -> int:
            await asyncio.sleep(0)
            return 1

        return sum(await asyncio.gather(*(nothing() for _ in range(3_000))))

    assert result(busy) == "3000"

"""What authors get wrong inside workflows and steps: the run fails with an error that says where and what to do."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import httpx
import pytest

import kagzi
from kagzi import Failure, Kagzi, Retry, RunStatus, StepStatus, WorkflowFailed

NAN = float("nan")


async def failure_of(url: str, workflow: Callable[[], Any]) -> tuple[str, str, list[StepStatus]]:
    """How a run of this function ends: the class of the error, its message, the steps it left."""
    app = Kagzi(url)
    definition = app.workflow(name="mistaken", retry=Retry.none)(workflow)
    async with app, app.worker():
        run = await definition.start()
        with pytest.raises(WorkflowFailed) as caught:
            await run.result(timeout=30)
        found = await run.get()
        assert found.status is RunStatus.FAILED
        failure = caught.value.failure
        assert isinstance(failure, Failure)
        return failure.type.rpartition(".")[2], failure.message, [step.status for step in await run.steps()]


@pytest.mark.parametrize("value", [object(), NAN, "\ud800", {1, object()}])
async def test_a_step_result_that_json_cannot_hold(value: object) -> None:
    calls = []

    def make() -> object:
        calls.append(1)
        return value

    async def workflow() -> None:
        await kagzi.run_step("label", make)

    kind, message, steps = await failure_of("memory://", workflow)
    assert kind == "NotSerializable"
    assert "label" in message
    assert steps == [StepStatus.FAILED]
    assert calls == [1]  # trying again would not help


async def test_an_oversize_step_result(home: str) -> None:
    async def workflow() -> None:
        await kagzi.run_step("download", lambda: "x" * (3 << 20))

    kind, message, steps = await failure_of(home, workflow)
    assert kind == "PayloadTooLarge"
    assert "step download returned 3,145,730 bytes; at most 2,097,152" in message
    assert "reference" in message
    assert steps == [StepStatus.FAILED]


async def test_a_run_result_that_cannot_be_stored(home: str) -> None:
    async def large() -> str:
        return "x" * (3 << 20)

    kind, message, _ = await failure_of(home, large)
    assert kind == "PayloadTooLarge"
    assert "the result of mistaken is 3,145,730 bytes" in message

    async def unknown() -> object:
        return object()

    kind, message, _ = await failure_of(home, unknown)
    assert kind == "NotSerializable"
    assert "the result of mistaken" in message


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


async def connects() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def starts_thread() -> None:
    await asyncio.to_thread(print)


async def starts_process() -> None:
    await asyncio.create_subprocess_exec("true")


async def resolves() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def asks_a_server() -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get("http://127.0.0.1:9/")  # which connects in a task of its own


async def connects_in_a_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.connect_tcp, "localhost", 9)


async def waits_for_a_thread_of_anyio() -> None:
    await anyio.to_thread.run_sync(print)


async def reads_a_file() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(anyio.Path(__file__).read_text())


async def reads_socket() -> None:
    with socket.socket() as open_socket:
        open_socket.setblocking(False)
        await asyncio.get_running_loop().sock_recv(open_socket, 1)


@pytest.mark.parametrize(
    ("workflow", "text"),
    [
        (connects, "open_connection"),
        (starts_thread, "to_thread"),
        (starts_process, "create_subprocess_exec"),
        (resolves, "getaddrinfo"),
        (asks_a_server, "client.get"),
        (connects_in_a_group, "create_task_group"),
        (waits_for_a_thread_of_anyio, "run_sync"),
        (reads_a_file, "TaskGroup"),
        (reads_socket, "sock_recv"),
    ],
)
async def test_io_in_workflow_code_names_file_and_line(workflow: Callable[[], Any], text: str) -> None:
    kind, message, _ = await failure_of("memory://", workflow)
    assert kind == "NonDeterminismError"
    assert "belongs in a step" in message
    assert f"test_workflow_mistakes.py:{line_of(workflow, text)}" in message


async def test_starting_a_run_in_workflow_code(home: str) -> None:
    app = Kagzi(home)

    @app.workflow
    async def other() -> None: ...

    @app.workflow(retry=Retry.none)
    async def starter() -> None:
        await other.start()

    async with app, app.worker():
        with pytest.raises(WorkflowFailed, match=r"other\.start\(\) was called in a workflow.*await other\.spawn"):
            await starter.run()
        assert [run.workflow for run in (await app.runs()).items] == ["starter"]


BAD_CALLS: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: kagzi.run_step("a\0b", print), "InvalidRequest", "NUL"),
    (lambda: kagzi.run_step("\ud800", print), "InvalidRequest", "surrogate"),
    (lambda: kagzi.run_step("", print), "InvalidRequest", "empty"),
    (lambda: kagzi.run_step("s" * 256, print), "InvalidRequest", "255"),
    (lambda: kagzi.run_step("x", 5), "InvalidRequest", "needs a function"),  # type: ignore[call-overload]
    (lambda: kagzi.sleep("-1s"), "InvalidRequest", "negative"),
    (lambda: kagzi.sleep(NAN), "InvalidRequest", "nan"),
    (lambda: kagzi.sleep("a while"), "InvalidRequest", "accepted"),
    (lambda: kagzi.sleep_until(datetime(2030, 1, 1)), "InvalidRequest", "time zone"),
    (lambda: kagzi.sleep_until("tomorrow"), "InvalidRequest", "datetime"),  # type: ignore[call-overload]
    (lambda: asyncio.sleep(NAN), "ValueError", "NaN"),
]


@pytest.mark.parametrize(("call", "kind", "word"), BAD_CALLS)
async def test_calls_in_workflow_code_that_cannot_be(call: Callable[[], Any], kind: str, word: str) -> None:
    async def workflow() -> None:
        await call()

    found, message, steps = await failure_of("memory://", workflow)
    assert (found, steps) == (kind, [])
    assert word in message


async def test_mistakes_are_told_alike_at_every_home(home: str) -> None:
    app = Kagzi(home)

    async def mistaken(number: int) -> None:
        await BAD_CALLS[number][0]()

    workflow = app.workflow(retry=Retry.none)(mistaken)
    async with app, app.worker():
        runs = [await workflow.start(number) for number in range(len(BAD_CALLS))]
        for run, (_, kind, word) in zip(runs, BAD_CALLS, strict=True):
            with pytest.raises(WorkflowFailed) as caught:
                await run.result(timeout=30)
            failure = caught.value.failure
            assert failure is not None
            assert failure.type.rpartition(".")[2] == kind
            assert word in failure.message
            assert await run.steps() == ()


async def test_a_step_called_wrongly(home: str) -> None:
    app = Kagzi(home)

    @app.step
    async def charge(cents: int) -> int:
        return cents

    @app.workflow(retry=Retry.none)
    async def pay(how: str) -> None:
        await {"type": lambda: charge("much"), "count": lambda: charge(1, 2)}[how]()  # type: ignore[arg-type, call-arg]

    async with app, app.worker():
        with pytest.raises(WorkflowFailed, match="argument 'cents' of charge"):
            await pay.run("type")
        with pytest.raises(WorkflowFailed, match=r"charge\(\) too many positional arguments"):
            await pay.run("count")


FORGOTTEN: dict[str, str] = {
    "step": "add was called",
    "truth": "add was called",
    "key": r"add\[a\] was called",
    "run_step": "label was called",
    "context": "label was called",
    "sleep": r"kagzi\.sleep was called",
    "sleep_until": r"kagzi\.sleep_until was called",
    "workflow": "inner was called",
    "returned": "add was called",
    "parallel": "was called",
    "map": r"kagzi\.map was called",
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_a_call_without_await_fails_the_run(home: str) -> None:
    app = Kagzi(home)

    @app.step
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def inner() -> int:
        return await add(1, 2)

    @app.workflow(retry=Retry(attempts=3))
    async def forgetful(ctx: kagzi.Context, what: str) -> Any:
        x: Any = None
        match what:
            case "step":
                x = add(1, 2)  # step
            case "truth":
                if add(1, 2):  # truth
                    return 6
            case "key":
                add.options(key="a")(1, 2)  # type: ignore[unused-coroutine]  # key
            case "run_step":
                x = kagzi.run_step("label", lambda: 1)  # run_step
            case "context":
                x = ctx.step("label", lambda: 1)  # context
            case "sleep":
                x = kagzi.sleep("1 day")  # sleep
            case "sleep_until":
                x = kagzi.sleep_until(datetime(2099, 1, 1, tzinfo=UTC))  # sleep_until
            case "workflow":
                x = inner()  # workflow
            case "parallel":
                x = kagzi.parallel(add(1, 2))  # parallel
            case "map":
                x = kagzi.map(add, [1])  # map
            case "returned":
                return add(1, 2)  # returned
        return bool(x)

    async with app, app.worker():
        runs = {what: await forgetful.start(what) for what in FORGOTTEN}
        for what, run in runs.items():
            with pytest.raises(WorkflowFailed) as caught:
                await run.result(timeout=30)
            failure = caught.value.failure
            assert failure is not None
            assert failure.type == "kagzi.errors.NotAwaited", what
            line = line_of(forgetful.fn, f"# {what}\n")
            line = line_of(forgetful.fn, f"# {what}\n")
            place = rf"test_workflow_mistakes\.py:{line} in forgetful"
            assert re.search(rf"{FORGOTTEN[what]} at .*{place} and never awaited", failure.message), failure.message
            assert await run.steps() == ()
            assert (await run.get()).attempts <= 1, "trying again would not help"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_what_a_child_is_told_without_await_is_named_with_its_line() -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def child() -> None: ...

    @app.workflow
    async def forgetful(what: str) -> None:
        spawned = await child.spawn()
        match what:
            case "signal":
                spawned.signal("go")  # type: ignore[unused-coroutine]  # signal
            case "cancel":
                spawned.cancel()  # type: ignore[unused-coroutine]  # cancel
            case _:
                spawned.result()  # type: ignore[unused-coroutine]  # result

    async with app, app.worker():
        for what in ("signal", "cancel", "result"):
            line = line_of(forgetful.fn, f"# {what}\n")
            place = rf"test_workflow_mistakes\.py:{line} in forgetful"
            with pytest.raises(WorkflowFailed, match=f"was called at .*{place} and never awaited"):
                await forgetful.run(what)


@pytest.mark.parametrize(
    "options",
    [
        {"on_failure": "notify"},
        {"concurrency": kagzi.Limit(5)},
        {"rate": kagzi.Rate(5, "1s")},
        {"debounce": kagzi.Debounce("1s")},
        {"retry": Retry(attempts=3)},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_what_only_a_run_of_its_own_can_have_is_refused_within_another(options: dict[str, Any]) -> None:
    app = Kagzi("memory://")

    @app.workflow(**options)
    async def inner() -> None: ...

    @app.workflow
    async def outer() -> None:
        await inner()

    async with app, app.worker():
        ((name, value),) = options.items()
        with pytest.raises(WorkflowFailed, match=re.escape(f"inner has {name}={value!r}, which a call inside another")):
            await outer.run()


async def test_run_options_of_a_workflow_within_a_workflow(home: str) -> None:
    app = Kagzi(home)

    @app.workflow(queue="shop", timeout="500ms")
    async def hurried() -> None: ...

    @app.workflow(queue="shop")
    async def inner() -> str:
        return "inside"

    @app.workflow(queue="shop", retry=Retry.none)
    async def outer(how: str) -> str:
        if how == "timeout":
            await hurried()
        return await (inner.options(id="mine") if how == "id" else inner)()

    async with app, app.worker(queues=["default", "shop"]):
        assert await outer.run("plain") == "inside"
        with pytest.raises(WorkflowFailed, match=r"hurried has timeout='500ms'.*asyncio\.timeout"):
            await outer.run("timeout")
        with pytest.raises(WorkflowFailed, match=r"inner has id='mine'.*await inner\.run\(\.\.\.\)` or `\.spawn"):
            await outer.run("id")
        with pytest.raises(WorkflowFailed, match=r"inner has queue='shop'"):
            await outer.options(queue="default").run("plain")


async def test_a_workflow_that_spins_fails_and_the_others_go_on(
    home: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kagzi.sdk.replay.loop._MOST_LOOKS", 20)
    app = Kagzi(home)

    @app.step
    async def charge() -> str:
        await asyncio.sleep(0.05)
        return "paid"

    @app.workflow
    async def spinning() -> None:
        charging = asyncio.create_task(charge())
        while not charging.done():
            await asyncio.sleep(0)

    @app.workflow
    async def order() -> str:
        return await charge()

    async with app, app.worker():
        spins, others = await spinning.start(), [await order.start() for _ in range(3)]
        with pytest.raises(
            WorkflowFailed, match=r"NonDeterminismError: .* spins at .*test_workflow_mistakes.py:\d+ in"
        ):
            await spins.result(timeout=30)
        assert [await run.result(timeout=30) for run in others] == ["paid"] * 3
    assert f"workflow spinning ({spins.id}) spins at {__file__}:" in caplog.text

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest

import kagzi
from kagzi.core.lineage import Lineage
from kagzi.core.retry import Retry
from kagzi.errors import InvalidRequest, NonDeterminismError
from kagzi.sdk.ambient import current
from kagzi.sdk.definitions import STEP_TIMEOUT, Registrar, Step, Workflow, WorkflowOptions, run_step
from tests.sdk.values import CONTEXT


class App(Registrar):
    """An app that notes what it was asked to start."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.started: list[tuple[str, WorkflowOptions, bytes]] = []

    async def start_run(
        self, workflow: Workflow[Any, Any], options: WorkflowOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.started.append((workflow.name, options, workflow.signature.encode_arguments(args, kwargs)))


class Execution:
    """Notes the calls of steps and runs them at once."""

    app = None
    run_id = "r1"
    workflow = "test"
    queue = "shop"
    lineage = Lineage("default", "r1")

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def call_step(self, **call: Any) -> Coroutine[Any, Any, Any]:
        self.calls.append(call)
        json = call["codec"].encode_input(call["args"], call["kwargs"])[0]
        seal = call["codec"].seal
        call["input"] = json if seal is None else seal(json, CONTEXT)

        async def run() -> Any:
            result = call["fn"](*call["args"], **call["kwargs"])
            return await result if asyncio.iscoroutine(result) else result

        return run()

    def call_inline(self, name: str, begin: Callable[..., Any], *args: Any) -> Any:
        return begin(*args)


def inside(execution: Execution, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run `main` as if its loop were a workflow's."""

    class Loop(asyncio.SelectorEventLoop):
        pass

    Loop.execution = execution  # type: ignore[attr-defined]
    with (
        mock.patch("kagzi.sdk.definitions.step.call_step", Execution.call_step),
        mock.patch("kagzi.sdk.definitions.workflow.call_inline", Execution.call_inline),
        asyncio.Runner(loop_factory=Loop) as runner,
    ):
        return runner.run(main())


app = App()


@app.step
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@app.step(name="half", retry=Retry(attempts=2), timeout="5s")
async def halve(n: int, *, by: int = 2) -> int:
    return n // by


@app.workflow(version="2", queue="shop")
async def flow(n: int) -> int:
    return await double(n)


@app.workflow
async def explicit(ctx: kagzi.Context, n: int) -> str:
    return f"{ctx.run_id} {n}"


async def test_outside_a_workflow_a_step_is_its_function() -> None:
    assert current() is None
    assert double(4) == 8  # type: ignore[comparison-overlap]
    assert await halve(4) == 2
    assert await run_step("x", double.fn, 4) == 8
    assert await run_step("x", halve.fn, 4, by=4) == 1
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice as much."


def test_inside_a_workflow_a_step_asks_the_execution() -> None:
    execution = Execution()

    async def main() -> Any:
        return [
            await double(1),
            await halve(9, by=3),
            await double.options(key="a/b", timeout="1s", retry=Retry.none)(2),
            await double.options(name="other")(3),
            await run_step("inline/x", lambda n: n + 1, 5),
            await run_step("as-step", halve, 8),
        ]

    assert inside(execution, main) == [2, 3, 4, 6, 6, 4]
    seen = [(call["name"], call["input"], call["timeout"], call["policy"]) for call in execution.calls]
    assert seen == [
        ("double", b"[1]", STEP_TIMEOUT, None),
        ("half", b'{"n":9,"by":3}', 5_000_000, Retry(attempts=2)),
        ("double[a%2Fb]", b"[2]", 1_000_000, Retry.none),
        ("other", b"[3]", STEP_TIMEOUT, None),
        ("inline%2Fx", b"[5]", STEP_TIMEOUT, None),
        ("as-step", b"[8]", 5_000_000, Retry(attempts=2)),
    ]


def test_workflows_compose_inside_and_explain_themselves_outside() -> None:
    execution = Execution()

    async def main() -> Any:
        with pytest.raises(NonDeterminismError, match=r"write `await flow\.spawn\(\.\.\.\)` for a child run"):
            await flow.start(1)
        return await flow(3), await explicit(4)

    assert inside(execution, main) == (6, "r1 4")
    with pytest.raises(InvalidRequest, match=r"flow\.start"):
        flow(3)


MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"timeout": "500ms"}, "asyncio.timeout"),
        ({"deadline": MOMENT}, "asyncio.timeout"),
        ({"delay": "1m"}, "kagzi.sleep"),
        ({"start_at": MOMENT}, "kagzi.sleep_until"),
        ({"retry": Retry(attempts=3)}, "retry="),
        ({"queue": "other"}, "make it a run of its own, with `await inner.run(...)` or `.spawn(...)`"),
        ({"id": "a"}, "make it a run of its own, with `await inner.run(...)` or `.spawn(...)`"),
        ({"version": "9"}, "make it a run of its own, with `await inner.run(...)` or `.spawn(...)`"),
        ({"priority": 5}, "make it a run of its own, with `await inner.run(...)` or `.spawn(...)`"),
        ({"namespace": "other"}, "make it a run of its own, with `await inner.run(...)` or `.spawn(...)`"),
        ({"key": "a"}, "make it a run of its own, with `await inner.run(...)` or `.spawn(...)`"),
        ({"on_parent_end": "abandon"}, "make it a run of its own, with `await inner.run(...)` or `.spawn(...)`"),
        ({"on_conflict": "fail"}, "make it a run of its own, with `await inner.run(...)` or `.spawn(...)`"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_only_a_run_can_have_is_refused_inside_another(options: dict[str, Any], instead: str) -> None:
    app = App()

    @app.workflow
    async def inner(n: int) -> int:
        return n

    async def main() -> None:
        with pytest.raises(InvalidRequest) as caught:
            await inner.options(**options)(1)
        message = str(caught.value).casefold()
        assert f"inner has {next(iter(options))}=" in message
        assert instead.casefold() in message
        assert "test_definitions.py:" in message
        assert await inner(1) == 1

    inside(Execution(), main)
    plain = app.workflow(name="plain")(main)
    asyncio.run(plain.fn())


def test_what_the_decorator_says_of_runs_is_refused_inside_another_too() -> None:
    app = App()

    def define(name: str, **settings: Any) -> Workflow[[int], int]:
        async def inner(n: int) -> int:
            return n

        return app.workflow(name=name, **settings)(inner)

    async def main() -> list[int]:
        for workflow, word in [
            (define("hurried", timeout="1s"), "timeout='1s'"),
            (define("stubborn", retry=Retry(attempts=3)), "retry="),
            (define("elsewhere", queue="other"), "queue='other'"),
        ]:
            with pytest.raises(InvalidRequest, match=f"{workflow.name} has {word}"):
                await workflow(1)
        same_queue = define("same", queue="shop")
        return [await same_queue(1), await define("free", timeout="1s").fn(2)]

    assert inside(Execution(), main) == [1, 2]


def test_the_worker_begins_with_decoded_input() -> None:
    execution = Execution()

    async def main() -> Any:
        return await explicit.begin(b"[7]", execution)

    assert inside(execution, main) == "r1 7"
    with pytest.raises(TypeError):
        explicit.begin(b"[]", execution)
    assert flow.encode_result(3) == b"3"


async def test_options_reach_the_start() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    app.started.clear()
    await flow.options(id="a", queue="q", priority=3).options(delay="5s", deadline=moment).start(5)
    await flow.start(n=6)
    (_, first, one), (_, second, two) = app.started
    assert first == WorkflowOptions(id="a", queue="q", priority=3, delay="5s", deadline=moment)
    assert second == WorkflowOptions()
    assert (one, two) == (b"[5]", b"[6]")


async def test_wrong_arguments_fail_before_the_start() -> None:
    app.started.clear()
    with pytest.raises(TypeError, match=r"flow\(\) missing"):
        await flow.start()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        await flow.start(1, 2)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="'n' of flow"):
        await flow.start(object())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="'n' of flow cannot be read as int: Expected `int`, got `str`"):
        await flow.start("1")  # type: ignore[arg-type]
    assert app.started == []


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"id": "a\0b"},
        {"id": "x" * 256},
        {"id": 3},
        {"queue": ""},
        {"version": 2},
        {"priority": 10_000},
        {"priority": -1},
        {"priority": 1.5},
        {"delay": "soon"},
        {"delay": -1},
        {"timeout": "x"},
        {"start_at": datetime(2030, 1, 1)},
        {"deadline": "tomorrow"},
        {"retry": 3},
        {"on_conflict": "explode"},
    ],
    ids=str,
)
def test_bad_options_of_a_workflow(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        flow.options(**options)


@pytest.mark.parametrize("options", [{"key": ""}, {"key": 3}, {"name": "a\0"}, {"retry": 3}, {"timeout": "x"}], ids=str)
def test_bad_options_of_a_step(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        double.options(**options)


def test_bad_definitions() -> None:
    app = App()

    def plain(n: int) -> int:
        return n

    async def generator() -> Any:
        yield 1

    app.step(plain)
    for define, why in [
        (lambda: app.step(plain), "already"),
        (lambda: app.step(double), "decorated already"),
        (lambda: app.step("name"), "name="),
        (lambda: app.step(lambda: 1), "lambda"),
        (lambda: app.step(int), "function"),
        (lambda: app.step(generator), "generator"),
        (lambda: app.step(name="a\0")(plain), "NUL"),
        (lambda: app.step(name="x", timeout="soon")(plain), "timeout"),
        (lambda: app.step(name="x", retry=3)(plain), "retry"),
        (lambda: app.workflow(version="")(halve.fn), "version"),
    ]:
        with pytest.raises(InvalidRequest, match=why):
            define()  # type: ignore[no-untyped-call]
    app.workflow(flow.fn)
    with pytest.raises(InvalidRequest, match="already"):
        app.workflow(flow.fn)
    app.workflow(version="2")(flow.fn)


def test_types_of_the_decorating_function_are_known() -> None:
    app = App()

    @dataclass
    class Local:
        n: int

    @app.step
    def bare(value: Local) -> Local:
        return value

    @app.step(name="other")
    def called(value: Local) -> Local:
        return value

    for step in (bare, called):
        assert isinstance(step, Step)
        assert step.signature.decode_result(b'{"n":1}') == Local(1)


class Reverse:
    def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return data[::-1]

    decode = encode


@pytest.mark.parametrize("codec", [5, "zlib", object()])
def test_a_codec_that_is_none_is_refused_at_once(codec: Any) -> None:
    with pytest.raises(InvalidRequest, match="codec must be a codec, an object with encode and decode"):
        App(codec=codec)


def test_inline_steps_use_the_codec_of_the_app_that_runs_the_workflow() -> None:
    app = App(codec=Reverse())
    execution = Execution()

    @app.workflow
    async def secret(text: str) -> str:
        return await run_step("inline", lambda t: t + "!", text)

    async def main() -> Any:
        return await secret.begin(b']"cba"[', execution)

    assert inside(execution, main) == "abc!"
    assert execution.calls[0]["input"] == b']"cba"['


async def test_a_workflow_function_awaits_plain_steps_outside_of_kagzi() -> None:
    app = App()

    @app.step
    def pack(sku: str) -> str:
        return f"box with {sku}"

    @app.step
    async def ship(sku: str) -> str:
        return f"shipped {pack(sku)}"  # in a body a step is a function

    @app.workflow
    async def one(sku: str) -> str:
        return await pack(sku)

    @app.workflow
    async def both(sku: str) -> list[str]:
        return await asyncio.gather(pack(sku), ship(sku), one(sku), asyncio.create_task(one(sku)))

    assert pack("pen") == "box with pen"
    assert await both.fn("pen") == ["box with pen", "shipped box with pen", "box with pen", "box with pen"]
    assert pack("pen") == "box with pen", "and afterwards it is a function again"
    with pytest.raises(InvalidRequest, match="is a workflow"):
        await one("pen")


class Client:
    """No JSON says what it is."""


class Name(str):
    __slots__ = ()


@dataclass
class Connected:
    client: Client
    more: list[Connected]


NEVER_REBUILT: list[tuple[Any, str]] = [
    (Client, "Client"),
    (list[Client], "Client"),
    (dict[str, Client | None], "Client"),
    (deque[Client], "Client"),
    (int | Client | Connected, "Client"),
    (Connected, "Client"),
    (Iterable[int], "Iterable"),
    (complex, "complex"),
    (Name, "Name"),
    (type[int], "type"),
]


@pytest.mark.parametrize(("annotation", "culprit"), NEVER_REBUILT, ids=lambda x: str(x)[:40])
def test_what_cannot_be_rebuilt_is_refused_when_it_is_decorated(annotation: Any, culprit: str) -> None:
    def gives():  # type: ignore[no-untyped-def]
        raise AssertionError("no work is done for a result that could not be kept")

    def takes(given):  # type: ignore[no-untyped-def]
        raise AssertionError(f"not with {given}")

    gives.__annotations__ = {"return": annotation}
    takes.__annotations__ = {"given": annotation}
    app = App()
    for decorate, fn, what in (
        (app.step, gives, "gives: its result is annotated "),
        (app.workflow, gives, "gives: its result is annotated "),
        (app.workflow, takes, "takes: argument 'given' is annotated "),
    ):
        with pytest.raises(InvalidRequest, match=f"^{what}.*{culprit}.* can be made of the JSON that is stored"):
            decorate(fn)
    assert not app._steps
    assert not app._workflows


def test_a_step_takes_objects_as_they_are_but_not_those_that_are_written() -> None:
    app = App()

    @app.step
    def fetch(client: Client, others: dict[str, Client], rows: Iterable[int]) -> object: ...

    with pytest.raises(InvalidRequest, match=r"greet: argument 'name' is annotated .*Name"):

        @app.step
        def greet(name: Name) -> None: ...


def test_a_class_that_comes_to_be_later_is_looked_at_before_the_work_is_done() -> None:
    app = App()

    @app.step
    def fetch() -> Late: ...

    class Late:
        pass

    fetch.signature._localns = {"Late": Late}
    with pytest.raises(InvalidRequest, match=r"fetch: its result is annotated .*Late"):
        fetch.signature.settle_input((), {})

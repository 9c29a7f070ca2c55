"""Starts by name, at every door: the run is the one that a start in Python makes."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec
import pytest

import kagzi
from kagzi import Debounce, InvalidRequest, Kagzi, Limit, Rate
from kagzi._proto.v1 import common_pb2, workflow_schedule_pb2, workflow_schedule_pb2_grpc
from kagzi.api.operations import StartRun
from kagzi.clock import SystemClock
from kagzi.codecs import Encrypt
from kagzi.core.run import Run
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.server.server import RpcServer
from tests.dashboard.support import Browser, dashboard
from tests.http.support import Client as HttpClient
from tests.http.support import engine_on
from tests.rpc.support import Client as FieldClient

IDS = RandomIds(SystemClock().now)
# Takes a workflow, its input, and what else the start says; returns the id of the run, or raises InvalidRequest.
Door = Callable[..., Awaitable[str]]


@dataclass
class Customer:
    tenant: str


class Order(msgspec.Struct, rename="camel"):
    placed_by: Customer
    cents: int = 1


def make_app(url: str, codec: Encrypt | None = None) -> Kagzi:
    app = Kagzi(url, codec=codec)

    @app.workflow
    async def plain(order: Order) -> None: ...

    @app.workflow
    async def mourn(failed: kagzi.FailedRun) -> None: ...

    @app.workflow(
        queue="slow",
        version="7",
        timeout="1h",
        on_failure=mourn,
        concurrency=[Limit(5, name="press"), Limit(2, key="order.placed_by.tenant", name="press")],
        rate=Rate(100, "1s", key="order.placed_by.tenant"),
    )
    async def whole(order: Order) -> None: ...

    @app.workflow(concurrency=Limit(2, key="tenant"))
    async def shared(cents: int, tenant: str = "nobody") -> None: ...

    @app.workflow(debounce=Debounce("1h", most="2h", key="order.placed_by.tenant"))
    async def hushed(order: Order) -> None: ...

    @app.workflow(concurrency=Limit(2, key=lambda order: order.placed_by.tenant.upper()))
    async def coded(order: Order) -> None: ...

    return app


def the_order(tenant: str = "acme") -> dict[str, Any]:
    return {"order": {"placedBy": {"tenant": tenant}}}


@asynccontextmanager
async def doors(engine: LocalEngine, **options: Any) -> AsyncIterator[dict[str, Door]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(RpcServer(engine))
        remote = RemoteEngine(server.target)
        await remote.open()
        stack.push_async_callback(remote.close)
        field = FieldClient(server.target)
        stack.push_async_callback(field.channel.close)
        port = await stack.enter_async_context(dashboard(engine, **options))
        http = await stack.enter_async_context(HttpClient(port.url))
        browser = await stack.enter_async_context(Browser(port.url))

        async def by_record(engine: LocalEngine | RemoteEngine, workflow: str, input: object, **said: Any) -> str:
            queue = said.pop("queue", None)
            start = StartRun(
                namespace="default",
                run_id=IDS.run_id(),
                workflow_type=workflow,
                task_queue=queue or "default",
                by_name=True,
                other_queue=queue is None,
                input=msgspec.json.encode(input),
                **said,
            )
            return (await engine.workflows.start(start)).run_id

        async def by_field(workflow: str, input: object, *, queue: str = "", **said: Any) -> str:
            try:
                return await field.start(workflow, msgspec.json.encode(input), task_queue=queue, **said)
            except grpc.aio.AioRpcError as error:
                raise InvalidRequest(error.details() or "") from None

        async def by_http(workflow: str, input: object, **said: Any) -> str:
            body = {"workflow": workflow, "input": input, **said}
            response = await http.send("POST", "/api/v1/runs", json=body)
            if response.status_code >= 400:
                raise InvalidRequest(response.text)
            return str(response.json()["run_id"])

        async def by_form(workflow: str, input: object, **said: Any) -> str:
            asked = await browser.open("/start", workflow=workflow, raw="true")
            form = asked.form("/start")
            fields = {"input": msgspec.json.encode(input).decode(), **said}
            answer = await browser.http.post(
                form.action, data=form.fields | fields, headers={"origin": str(browser.http.base_url).rstrip("/")}
            )
            if answer.status_code >= 400:
                raise InvalidRequest(answer.text)
            return str(answer.url).partition("/runs/")[2].partition("?")[0]

        yield {
            "engine": functools.partial(by_record, engine),
            "client": functools.partial(by_record, remote),
            "field": by_field,
            "http": by_http,
            "form": by_form,
        }


def seen(run: Run) -> Mapping[str, Any]:
    """What of a run follows from its start."""
    return {
        "queue": run.task_queue,
        "version": run.version,
        "span": None if run.deadline_at is None else run.deadline_at - run.created_at,
        "on_failure": run.on_failure,
        "limit_key": run.limit_key,
        "debounced": run.debounce_key,
    }


async def test_a_run_is_the_same_whoever_starts_it(url: str) -> None:
    app = make_app(url)
    async with app, app.worker(), engine_on(url) as engine, doors(engine) as ways:
        tenant = Customer("acme")
        cases: list[tuple[str, Any, dict[str, Any]]] = [
            ("plain", (Order(tenant),), the_order()),
            ("whole", (Order(tenant),), the_order()),
            ("hushed", (Order(tenant),), the_order()),
            ("shared", (1,), {"cents": 1}),
            ("shared", (1, "acme"), {"cents": 1, "tenant": "acme"}),
        ]
        for name, args, input in cases:
            workflow = app.find_workflow(name, "7" if name == "whole" else "1")
            assert workflow is not None
            handle = await workflow.start(*args)
            first = seen(await engine.workflows.get("default", handle.id))
            for door, start in ways.items():
                run = await engine.workflows.get("default", await start(name, input))
                assert seen(run) == first, (name, door)
        for door, start in ways.items():
            run = await engine.workflows.get("default", await start("whole", the_order(), version="7"))
            assert (run.task_queue, run.limit_key) == ("slow", "acme"), f"{door}: also of one that names its version"
        whole = seen(await engine.workflows.get("default", await ways["field"]("whole", the_order())))
        assert whole == {
            "queue": "slow",
            "version": "7",
            "span": 3_600_000_000,
            "on_failure": "mourn",
            "limit_key": "acme",
            "debounced": None,
        }
        by_position = await engine.workflows.get("default", await ways["http"]("shared", [1, "b"]))
        assert by_position.limit_key == "b"


async def test_what_a_start_says_itself_comes_first() -> None:
    app = make_app("memory://")
    async with app, app.worker(), doors(app.engine) as ways:  # type: ignore[arg-type]
        get = functools.partial(app.engine.workflows.get, "default")
        for door in ("engine", "client", "http", "form"):
            run = await get(await ways[door]("whole", the_order(), queue="quick", limit_key="other"))
            assert (run.task_queue, run.limit_key, run.on_failure) == ("quick", "other", "mourn"), door
        coded = await get(await ways["form"]("coded", the_order(), limit_key="ACME"))
        assert coded.limit_key == "ACME"
        for said in ({"id": "of-its-own"}, {"delay": "1h"}):
            assert (await get(await ways["http"]("hushed", the_order(), **said))).debounce_key is None, (
                "a run of its own"
            )
        own = await get(await ways["http"]("hushed", the_order(), debounce={"wait": "1m", "key": "k"}))
        assert own.debounce_key == "k"


async def test_what_does_not_fit_is_refused_before_there_is_a_run() -> None:
    app = make_app("memory://")
    async with app, app.worker(), doors(app.engine) as ways:  # type: ignore[arg-type]
        wrong: list[tuple[str, object, str]] = [
            ("shared", {"cents": "many"}, "argument 'cents' must be an integer, not"),
            ("shared", {"cent": 1}, "it has no argument 'cent'; the workflow takes cents, tenant"),
            ("whole", {"order": {"placedBy": {"tenant": "x" * 5000}, "cents": "1"}}, "'cents' of argument 'order'"),
            ("coded", the_order(), "the key of the limits of coded is made by a function in the code of the worker"),
        ]
        for name, input, why in wrong:
            for door, start in ways.items():
                with pytest.raises(InvalidRequest) as caught:
                    await start(name, input)
                told = str(caught.value).replace("&#39;", "'").replace("&#34;", '"')
                assert why in told, (name, door, told)
        assert (await app.runs()).items == ()


async def test_a_name_that_no_worker_has_offered_is_doubted() -> None:
    app = make_app("memory://")
    async with app, app.worker(), AsyncExitStack() as stack:
        ways = await stack.enter_async_context(doors(app.engine))  # type: ignore[arg-type]
        port = await stack.enter_async_context(dashboard(app.engine))  # type: ignore[arg-type]
        http = await stack.enter_async_context(HttpClient(port.url))
        browser = await stack.enter_async_context(Browser(port.url))
        answer = await http.post("/api/v1/runs", {"workflow": "hole", "input": []}, status=201)
        assert answer["note"].endswith("the run waits until one does; did you mean whole?")
        assert (await http.post("/api/v1/runs", {"workflow": "shared", "input": [1]}, status=201))["note"] == ""
        unlike = await http.post("/api/v1/runs", {"workflow": "zzzzzz", "input": []}, status=201)
        assert unlike["note"].endswith("the run waits until one does")
        other = await http.post("/api/v1/runs", {"workflow": "shared", "version": "8", "input": [1]}, status=201)
        assert other["note"] == "no worker has offered version 8 of workflow shared; known are 1"
        shown = await browser.open(f"/runs/{answer['run_id']}")
        assert "has workflow hole (did you mean whole?)" in shown.text
        bare = await app.engine.workflows.get("default", await ways["field"]("hole", []))
        assert bare.task_queue == "hole", "as clients in the field expect it of a workflow that tells no queue"


async def test_an_encoded_input_needs_its_key_beside_it() -> None:
    codec = Encrypt({"1": bytes(32)}, current="1")
    app = make_app("memory://", codec)
    async with app, app.worker(), doors(app.engine, codec=codec) as ways:  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="a codec of the workers may have encoded"):
            await ways["form"]("whole", the_order())
        run = await app.engine.workflows.get("default", await ways["form"]("whole", the_order(), limit_key="acme"))
        assert (run.limit_key, run.task_queue, b"acme" in run.input) == ("acme", "slow", False)
        run = await app.engine.workflows.get("default", await ways["http"]("whole", the_order()))
        assert run.limit_key == "acme", "plain input can be read"


async def test_schedules_by_name_fire_such_runs() -> None:
    app = make_app("memory://")
    async with app, app.worker(), AsyncExitStack() as stack:
        engine: LocalEngine = app.engine  # type: ignore[assignment]
        server = await stack.enter_async_context(RpcServer(engine))
        field = FieldClient(server.target)
        stack.push_async_callback(field.channel.close)
        port = await stack.enter_async_context(dashboard(engine))
        http = await stack.enter_async_context(HttpClient(port.url))
        browser = await stack.enter_async_context(Browser(port.url))
        schedules = workflow_schedule_pb2_grpc.WorkflowScheduleServiceStub(field.channel)

        async def by_field(input: object, name: str) -> str:
            data = common_pb2.Payload(data=msgspec.json.encode(input))
            request = workflow_schedule_pb2.CreateWorkflowScheduleRequest(
                workflow_type="whole", cron_expr="@yearly", input=data, name=name
            )
            try:
                return (await schedules.CreateWorkflowSchedule(request, timeout=10)).schedule.schedule_id
            except grpc.aio.AioRpcError as error:
                raise InvalidRequest(error.details() or "") from None

        async def by_http(input: object, name: str) -> str:
            body = {"workflow": "whole", "cron": "@yearly", "input": input, "name": name}
            response = await http.send("POST", "/api/v1/schedules", json=body)
            if response.status_code >= 400:
                raise InvalidRequest(response.text)
            return str(response.json()["schedule_id"])

        async def by_form(input: object, name: str) -> str:
            form = (await browser.open("/new-schedule")).form("/new-schedule")
            said = {"workflow": "whole", "cron": "@yearly", "input": msgspec.json.encode(input).decode(), "name": name}
            answer = await browser.http.post(
                form.action, data=form.fields | said, headers={"origin": str(browser.http.base_url).rstrip("/")}
            )
            if answer.status_code >= 400:
                raise InvalidRequest(answer.text)
            return (await engine.schedules.get("default", name)).schedule_id

        for name, make in (("field", by_field), ("http", by_http), ("form", by_form)):
            with pytest.raises(InvalidRequest, match="has no argument"):
                await make({"ordre": 1}, name)
            schedule_id = await make(the_order(), name)
            run = await (await app.schedules.get(name)).trigger()
            assert seen(await engine.workflows.get("default", run.id)) == {
                "queue": "slow",
                "version": "7",
                "span": 3_600_000_000,
                "on_failure": "mourn",
                "limit_key": "acme",
                "debounced": None,
            }, (name, schedule_id)

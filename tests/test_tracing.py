"""One trace from the start of a run to the bodies of its steps, wherever they are."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import kagzi
from kagzi import Debounce, Kagzi, Retry, WorkflowFailed, tracing
from kagzi._proto.v1 import workflow_pb2
from kagzi.api.operations import StartRun
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.rpc.server.server import RpcServer
from kagzi.testing import run_virtually
from tests.rpc.support import Client, payload

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """What was traced, in the order in which it ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __iter__(self) -> Iterator[ReadableSpan]:
        return iter(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def traces(self) -> set[int]:
        return {span.context.trace_id for span in self if span.context is not None}

    def statuses(self, name: str) -> list[object]:
        return [span.attributes["kagzi.status"] for span in self.named(name) if span.attributes is not None]


@pytest.fixture
def spans() -> Iterator[Spans]:
    collected = Spans()
    tracing.use(collected.provider)
    yield collected
    tracing.use(None)


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def shop(url: str) -> Kagzi:
    app = Kagzi(url)

    @app.step
    async def charge(amount: int) -> int:
        return amount

    @app.step
    def print_label() -> str:
        with trace.get_tracer("shop", tracer_provider=tracing._provider).start_as_current_span("printer"):
            return "label"

    @app.step(retry=Retry(attempts=3, first="1ms", cap="1ms"))
    async def flaky() -> int:
        if kagzi.attempt() < 3:
            raise ConnectionError("down")
        return 1

    @app.workflow
    async def checkout(amount: int) -> str:
        await charge(amount)
        return await print_label()

    @app.workflow
    async def unlucky() -> int:
        return await flaky()

    @app.workflow
    async def sleepy() -> None:
        await charge(1)
        await kagzi.sleep("1 day")
        await charge(2)

    @app.workflow
    async def doomed() -> None:
        raise ValueError("no such item")

    return app


@asynccontextmanager
async def home(kind: str, tmp_path: Path) -> AsyncIterator[tuple[Kagzi, Kagzi]]:
    """A client and a worker's app: one app, or two that meet in a server."""
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    if kind == "embedded":
        app = shop(url)
        async with app, app.worker():
            yield app, app
        return
    engine = connect(url)
    await engine.open()
    try:
        async with RpcServer(engine) as server:  # type: ignore[arg-type]
            client, worker = shop(f"grpc://{server.target}"), shop(f"grpc://{server.target}")
            async with client, worker, worker.worker():
                yield client, worker
    finally:
        await engine.close()


async def start(app: Kagzi, name: str, *args: Any) -> Any:
    workflow = app.find_workflow(name, "1")
    assert workflow is not None
    return await workflow.start(*args)


@pytest.mark.parametrize("kind", ["embedded", "grpc"])
async def test_one_trace_from_client_to_step(spans: Spans, kind: str, tmp_path: Path) -> None:
    async with home(kind, tmp_path) as (client, _):
        with spans.provider.get_tracer("shop").start_as_current_span("request"):
            run = await start(client, "checkout", 42)
        assert await run.result(timeout=20) == "label"
    request, started, ran = spans.one("request"), spans.one("start checkout"), spans.one("run checkout")
    charge, label, printer = spans.one("step charge"), spans.one("step print_label"), spans.one("printer")

    assert spans.traces() == {request.context.trace_id}  # type: ignore[union-attr]
    assert parent_of(started) == id_of(request)
    above = started
    if kind == "grpc":
        above = spans.one("kagzi.v1.WorkflowService/StartWorkflow")
        assert (above.kind, parent_of(above)) == (SpanKind.SERVER, id_of(started))
    assert parent_of(ran) == id_of(above)
    assert parent_of(charge) == parent_of(label) == id_of(ran)
    assert parent_of(printer) == id_of(label)
    assert (started.kind, ran.kind, charge.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.INTERNAL)
    assert started.attributes == {
        "kagzi.workflow": "checkout",
        "kagzi.run_id": run.id,
        "kagzi.namespace": "default",
        "kagzi.queue": "default",
    }
    assert ran.attributes is not None
    assert (ran.attributes["kagzi.run_id"], ran.attributes["kagzi.execution"]) == (run.id, 1)
    assert ran.attributes["kagzi.status"] == "completed"
    assert charge.attributes == {
        "kagzi.workflow": "checkout",
        "kagzi.run_id": run.id,
        "kagzi.step_id": "charge",
        "kagzi.attempt": 1,
        "kagzi.status": "completed",
    }


@pytest.mark.parametrize("kind", ["embedded", "grpc"])
async def test_every_attempt_has_a_span_and_failures_say_why(spans: Spans, kind: str, tmp_path: Path) -> None:
    async with home(kind, tmp_path) as (client, _):
        assert await (await start(client, "unlucky")).result(timeout=20) == 1
        with pytest.raises(WorkflowFailed):
            await (await start(client, "doomed")).result(timeout=20)
    first, second, third = spans.named("step flaky")
    assert spans.statuses("step flaky") == ["failed", "failed", "completed"]
    assert [span.attributes["kagzi.attempt"] for span in (first, second, third)] == [1, 2, 3]  # type: ignore[index]
    assert first.status.status_code is StatusCode.ERROR
    assert [event.name for event in first.events] == ["exception"]
    assert third.status.status_code is StatusCode.UNSET
    doomed = spans.one("run doomed")
    assert spans.statuses("run doomed") == ["failed"]
    assert doomed.status.description is not None
    assert doomed.status.description.endswith("ValueError: no such item")


def test_the_trace_goes_on_after_a_sleep_and_replay_says_nothing_twice(spans: Spans) -> None:
    app = shop("memory://")

    async def scenario() -> None:
        await (await start(app, "sleepy")).result()

    run_virtually(app, scenario)
    assert spans.statuses("run sleepy") == ["parked", "completed"]
    assert len(spans.named("step charge")) == 2
    assert len(spans.traces()) == 1
    assert {parent_of(span) for span in spans.named("run sleepy")} == {id_of(spans.one("start sleepy"))}


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def test_the_trace_goes_on_after_a_crash(
    spans: Spans, database: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    if database == "postgres":
        url = request.getfixturevalue("postgres_database")
    engine = connect(url, lease=3 * SECOND, tick=SECOND // 10)
    await engine.open()
    reached, release = asyncio.Event(), asyncio.Event()

    def program(address: str) -> Kagzi:
        app = Kagzi(address)

        @app.step
        async def quick() -> int:
            return 1

        @app.step
        async def slow() -> int:
            reached.set()
            await release.wait()
            return 2

        @app.workflow
        async def crashing() -> int:
            return await quick() + await slow()

        return app

    async with RpcServer(engine) as server:  # type: ignore[arg-type]
        client, first, second = (program(f"grpc://{server.target}") for _ in range(3))
        async with client:
            run = await start(client, "crashing")
            await first.open()
            hosted = first.worker()
            worker = await hosted.__aenter__()
            await reached.wait()
            # It neither reports nor renews anything from now on, as if it had been killed.
            await worker._heart.stop()  # type: ignore[union-attr]
            worker._commit = lambda _: asyncio.get_running_loop().create_future()  # type: ignore[assignment]
            worker._polling.cancel()  # type: ignore[union-attr]
            reached.clear()
            async with second, second.worker():
                await reached.wait()
                while worker._held:  # until it notices that its lease has ended
                    await asyncio.sleep(0.01)
                release.set()
                assert await run.result(timeout=20) == 3
            await hosted.__aexit__(None, None, None)
            await first.close()
    await engine.close()
    assert len(spans.traces()) == 1
    # What the first worker says of the run at last is part of the trace as well.
    (said,) = [record for record in caplog.records if "is let go of: its lease ended" in record.getMessage()]
    about = vars(said)
    assert (about["namespace"], about["run_id"], about["workflow"]) == ("default", run.id, "crashing")
    assert {int(about["trace_id"], 16)} == spans.traces()
    assert spans.statuses("run crashing") == ["let go of", "completed"]
    # The body of the recorded step ran once, that of the other one once for each worker.
    assert len(spans.named("step quick")) == 1
    assert spans.named("run crashing")[-1].attributes["kagzi.execution"] == 2  # type: ignore[index]


async def test_clients_in_the_field_say_their_trace_in_metadata(spans: Spans, tmp_path: Path) -> None:
    await in_metadata(tmp_path)
    served, ran = spans.one("kagzi.v1.WorkflowService/StartWorkflow"), spans.one("run checkout")
    assert spans.traces() == {int(PARENT.split("-")[1], 16)}
    assert parent_of(served) == int(PARENT.split("-")[2], 16)
    assert parent_of(ran) == id_of(served)


async def test_a_server_that_does_not_trace_hands_the_context_on(tmp_path: Path) -> None:
    assert tracing.tracer() is None
    assert await in_metadata(tmp_path) == f"{PARENT} vendor=1"


async def in_metadata(tmp_path: Path) -> str | None:
    """What a run has been given that a client started with a traceparent of its own."""
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    engine = connect(url)
    await engine.open()
    async with RpcServer(engine) as server, Client(server.target) as client:  # type: ignore[arg-type]
        request = workflow_pb2.StartWorkflowRequest(
            workflow_type="checkout", task_queue="default", input=payload(b"[42]")
        )
        metadata = (("traceparent", PARENT), ("tracestate", "vendor=1"))
        started = await client.workflows.StartWorkflow(request, metadata=metadata, timeout=10)
        app = shop(f"grpc://{server.target}")
        seen: list[str | None] = []
        async with app, app.worker() as worker:
            hold = worker._hold

            def watching(claim: Any, *rest: Any) -> Any:
                seen.append(claim.trace_context)
                return hold(claim, *rest)

            worker._hold = watching  # type: ignore[method-assign]
            await app.handle(started.run_id).result(timeout=20)
    await engine.close()
    return seen[0] if seen else None


async def test_a_run_that_is_repeated_stays_in_its_trace(spans: Spans, tmp_path: Path) -> None:
    async with home("embedded", tmp_path) as (app, _):
        run = await start(app, "doomed")
        with pytest.raises(WorkflowFailed):
            await run.result(timeout=20)
        again = await run.retry()
        with pytest.raises(WorkflowFailed):
            await again.result(timeout=20)
    assert len(spans.named("run doomed")) == 2
    assert len(spans.traces()) == 1


async def test_starts_that_become_one_run_name_it_and_it_goes_on_in_the_trace_of_the_last(
    spans: Spans, tmp_path: Path
) -> None:
    async with home("embedded", tmp_path) as (client, _):
        checkout = client.find_workflow("checkout", "1")
        assert checkout is not None
        runs = [await checkout.options(debounce=Debounce("300ms", key="a")).start(amount) for amount in (1, 2)]
        assert await runs[1].result(timeout=20) == "label"
    first, last = spans.named("start checkout")
    assert spans.one("run checkout").context.trace_id == last.context.trace_id  # type: ignore[union-attr]
    joined = [dict(span.attributes or {}).get("kagzi.joined_run_id") for span in (first, last)]
    assert joined == [None, runs[0].id]


async def test_a_run_without_a_trace_begins_one_of_its_own(spans: Spans, tmp_path: Path) -> None:
    """And is no part of the span that its worker happened to be made in."""
    app = shop(f"sqlite:///{tmp_path / 'kagzi.db'}")
    with spans.provider.get_tracer("main").start_as_current_span("main") as main:
        async with app, app.worker(adopt=False):
            run = StartRun(
                namespace="default", run_id=app._ids.run_id(), workflow_type="doomed", task_queue="default", input=b"[]"
            )
            await app.engine.workflows.start(run)
            with pytest.raises(WorkflowFailed):
                await app.handle(run.run_id).result(timeout=20)
    ran = spans.one("run doomed")
    assert ran.parent is None
    assert ran.context is not None
    assert ran.context.trace_id != main.get_span_context().trace_id


async def test_a_cancelled_step_ends_its_span(spans: Spans) -> None:
    app = Kagzi("memory://")
    begun = asyncio.Event()

    @app.step
    async def endless() -> None:
        begun.set()
        await asyncio.sleep(3600)

    @app.workflow
    async def waiting() -> None:
        await endless()

    async with app, app.worker():
        run = await waiting.start()
        await begun.wait()
        await run.cancel()
        with pytest.raises(kagzi.WorkflowCancelled):
            await run.result(timeout=20)
    assert spans.statuses("step endless") == ["cancelled"]
    assert spans.statuses("run waiting") == ["cancelled"]


def test_a_step_that_does_not_end_loses_its_span_when_its_run_is_let_go_of(spans: Spans) -> None:
    tracer = tracing.tracer()
    assert tracer is not None
    run = tracing.RunSpan(tracer, "order", None, {})
    run.begin_step("s1", "deaf", {}, copy_context())
    run.end("lost")
    assert spans.statuses("step deaf") == ["abandoned"]
    assert spans.statuses("run order") == ["lost"]
    run.end_step("s1", "completed")
    assert spans.statuses("step deaf") == ["abandoned"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (PARENT, PARENT),
        (f"{PARENT} a=1,b=2", f"{PARENT} a=1,b=2"),
        (f"{PARENT} a=\n", PARENT),
        (f"{PARENT} {'a' * 513}", PARENT),
        (PARENT.upper(), None),
        (PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), None),
        (PARENT.replace("b7ad6b7169203331", "0" * 16), None),
        ("ff" + PARENT[2:], None),
        ("01" + PARENT[2:] + "-later", "01" + PARENT[2:] + "-later"),
        ("nonsense", None),
        ("", None),
        (None, None),
        (PARENT + "x" * 100_000, None),
        (PARENT + "-" + "x" * 100_000, None),
    ],
)
def test_what_comes_from_outside_is_checked(text: str | None, kept: str | None) -> None:
    assert tracing.well_formed(text) == kept


def test_headers() -> None:
    assert tracing.from_headers({"traceparent": PARENT, "tracestate": "a=1"}) == f"{PARENT} a=1"
    assert tracing.from_headers((("other", b"\0"), ("traceparent", PARENT))) == PARENT
    assert tracing.from_headers((("tracestate", "a=1"),)) is None
    assert tracing.from_headers(None) is None


def test_nothing_of_opentelemetry_is_loaded_by_kagzi() -> None:
    program = """
import asyncio, sys
from kagzi import Kagzi
app = Kagzi("memory://")
@app.step
async def one() -> int: return 1
@app.workflow
async def flow() -> int: return await one()
async def main() -> None:
    async with app, app.worker(): assert await flow.run() == 1
asyncio.run(main())
print([name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

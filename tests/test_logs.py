"""What commands write to standard error."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider

import kagzi
from kagzi import Kagzi, logs, tracing
from kagzi._proto.v1 import workflow_pb2
from kagzi.connect import connect
from kagzi.engine.local import LocalEngine
from kagzi.errors import Unavailable
from kagzi.rpc.server.server import RpcServer
from kagzi.testing import run_virtually
from tests.core.test_printable import HOSTILE
from tests.rpc.support import Client, detail_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("asyncio", "grpc", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_json_off_a_terminal() -> None:
    out = io.StringIO()
    logs.configure("auto", "info", out)
    logging.getLogger("kagzi.worker").info("run %s is here", "r1", extra={"run_id": "r1", "attempt": 2})
    logging.getLogger("kagzi.worker").debug("not this")
    try:
        raise ValueError("b\ud800d")
    except ValueError:
        logging.getLogger("shop").exception("it\nfailed")
    first, second = map(json.loads, out.getvalue().splitlines())
    at = first.pop("at")
    assert at.endswith("Z")
    assert len(at) == len("2026-11-15T22:28:33.123Z")
    message = "run r1 is here"
    assert first == {"level": "info", "logger": "kagzi.worker", "message": message, "run_id": "r1", "attempt": 2}
    assert (second["level"], second["message"]) == ("error", "it\nfailed")
    assert second["error"]["type"] == "ValueError"
    assert second["error"]["message"] == "b\\ud800d"
    assert "Traceback" in second["error"]["stack"]


def test_pretty_on_a_terminal_without_colour_where_none_is_wanted() -> None:
    out = Terminal()
    logs.configure("auto", "debug", out, {"NO_COLOR": "1"})
    logging.getLogger("kagzi.engine").warning("slow \x1b[2Jdown", extra={"run_id": "r1"})
    line = out.getvalue()
    assert line.endswith(" warning kagzi.engine: slow \\x1b[2Jdown run_id=r1\n")
    coloured = Terminal()
    logs.configure("auto", "debug", coloured, {})
    logging.getLogger("kagzi.engine").warning("slow")
    assert "\x1b[33m" in coloured.getvalue()


@pytest.mark.parametrize("format", ["pretty", "json"])
def test_nothing_that_was_logged_acts_on_a_terminal(format: Literal["pretty", "json"]) -> None:
    out = Terminal()
    logs.configure(format, "info", out, {"NO_COLOR": "1"})
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger(HOSTILE).exception("failed: %s", HOSTILE, extra={"workflow": f"w {HOSTILE}"})
    shown = out.getvalue()
    assert all(line.isprintable() for line in shown.split("\n"))
    if format == "json":
        line = json.loads(shown)
        assert (line["message"], line["workflow"]) == (f"failed: {HOSTILE}", f"w {HOSTILE}")
        assert line["error"]["message"] == HOSTILE
    else:
        assert shown.count("\\x1b[2J") >= 4


@pytest.mark.parametrize(
    ("environ", "terminal", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"CLICOLOR": "0"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_who_wants_colour(environ: dict[str, str], terminal: bool, wanted: bool) -> None:
    assert logs.wants_colour(Terminal() if terminal else io.StringIO(), environ) is wanted


def test_what_steps_and_workflows_log_says_which_run_it_was() -> None:
    app = Kagzi()

    @app.step
    async def charge() -> int:
        logging.getLogger("shop").info("charging")
        return 1

    @app.workflow
    async def checkout() -> int:
        logging.getLogger("shop").info("beginning")
        return await charge()

    out = io.StringIO()
    logs.configure("json", "info", out)

    async def main() -> str:
        run = await checkout.start()
        await run.result()
        return run.id

    run_id = run_virtually(app, main)
    lines = {line["message"]: line for line in map(json.loads, out.getvalue().splitlines())}
    assert lines["charging"]["run_id"] == lines["beginning"]["run_id"] == run_id
    assert (lines["charging"]["workflow"], lines["charging"]["step_id"]) == ("checkout", "charge")
    assert lines["charging"]["attempt"] == 1
    assert "step_id" not in lines["beginning"]


def lines_of(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture
def traced() -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    tracing.use(provider)
    yield provider
    tracing.use(None)


async def test_lines_say_namespace_and_trace(traced: TracerProvider) -> None:
    app = Kagzi("memory://", namespace="shop")

    @app.step
    def charge() -> int:
        logging.getLogger("shop").info("charging")
        return 1

    @app.workflow
    async def checkout() -> int:
        kagzi.logger.info("beginning")
        return await charge()

    out = io.StringIO()
    logs.configure("json", "info", out)
    with traced.get_tracer("web").start_as_current_span("request") as span:
        logging.getLogger("web").info("asked")
        async with app, app.worker():
            run = await checkout.start()
            await run.result(timeout=20)
    asked, beginning, charging = (
        next(line for line in lines_of(out) if line["message"] == message)
        for message in ("asked", "beginning", "charging")
    )
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert asked["trace_id"] == beginning["trace_id"] == charging["trace_id"] == trace_id
    assert len({asked["span_id"], beginning["span_id"], charging["span_id"]}) == 3
    assert "run_id" not in asked
    about = {"namespace": "shop", "run_id": run.id, "workflow": "checkout"}
    assert about.items() <= beginning.items()
    assert (about | {"step_id": "charge", "attempt": 1}).items() <= charging.items()


async def test_a_failed_call_is_found_by_the_id_its_caller_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    logs.configure("json", "debug", out)
    engine = connect("memory://")
    assert isinstance(engine, LocalEngine)
    async with engine, RpcServer(engine) as server, Client(server.target) as client:
        unknown = workflow_pb2.GetWorkflowRequest(run_id="0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44")

        async def failed(**metadata: str) -> tuple[str, dict[str, object]]:
            """The id the caller was told, and the line that has it."""
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.workflows.GetWorkflow(unknown, metadata=tuple(metadata.items()), timeout=10)
            told = detail_of(caught.value).metadata["request_id"]
            (line,) = [line for line in lines_of(out) if line.get("request_id") == told]
            return told, line

        told, line = await failed()
        assert (line["level"], line["logger"]) == ("debug", "kagzi.rpc")
        assert str(line["message"]).startswith("GetWorkflow failed: NOT_FOUND: there is no run")
        again, _ = await failed()
        assert again != told
        assert (await failed(**{"x-request-id": "order-42"}))[0] == "order-42"
        hostile, _ = await failed(**{"x-request-id": "a b"})
        assert hostile != "a b"

        async def away(*_: object) -> None:
            raise Unavailable("connection to 10.0.0.1 lost")

        monkeypatch.setattr(engine.store.runs, "get", away)
        assert (await failed())[1]["level"] == "warning"

        async def bug(*_: object) -> None:
            logging.getLogger("deep.inside").info("about to fail")
            raise RuntimeError("a bug")

        monkeypatch.setattr(engine.store.runs, "get", bug)
        _, line = await failed()
        assert line["level"] == "error"
        assert "a bug" in str(line["error"])


def test_a_format_may_name_what_only_runs_have() -> None:
    app, stream = Kagzi("memory://"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(logs.Correlated())
    handler.setFormatter(logging.Formatter("%(workflow)s %(step_id)s %(trace_id)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]

    @app.workflow
    async def speak() -> None:
        logging.getLogger("shop").warning("inside")

    async def scenario() -> None:
        logging.getLogger("shop").warning("outside")
        await speak.run()

    run_virtually(app, scenario)
    assert stream.getvalue().splitlines() == ["- - - outside", "speak - - inside"]
    handler.setFormatter(logs.JsonFormatter())
    logging.getLogger("shop").warning("again")
    assert '"run_id"' not in stream.getvalue().splitlines()[-1]

"""What commands write to standard error."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from kagzi import Kagzi, logs
from kagzi.testing import run_virtually


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

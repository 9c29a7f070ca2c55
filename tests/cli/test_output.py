"""What commands print of what others wrote."""

from __future__ import annotations

import io
import json
import sys

import pytest

import kagzi
from kagzi import Kagzi
from kagzi.cli import output
from kagzi.connect import connect
from kagzi.core.page import Page
from tests.cli.conftest import Shell
from tests.core.test_printable import HOSTILE
from tests.engine.support import new_start


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def harmless(text: str) -> bool:
    return all(line.replace("\t", "").isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_notes_and_documents_obey_nobody(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    output.table(("name", "value"), [(HOSTILE, HOSTILE)])
    output.text(HOSTILE)
    output.note(HOSTILE)
    output.listing("runs", Page((), None, None), [], ("run",), [], place=HOSTILE, json=False)
    assert harmless(out.getvalue() + err.getvalue())
    assert "\\x1b[2J" in out.getvalue()
    assert "\\u202e" in err.getvalue()


@pytest.mark.parametrize("write", [output.document, output.line])
def test_json_documents_escape_what_terminals_obey_and_mean_the_same(
    write: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(write)
    write({"error": HOSTILE})
    shown = capsys.readouterr().out
    assert harmless(shown)
    assert json.loads(shown) == {"error": HOSTILE}


async def test_a_run_that_somebody_named_to_do_harm_is_shown_as_it_is_written(shell: Shell) -> None:
    async with connect(f"sqlite:///{shell.directory}/orders.db") as engine:  # type: ignore[attr-defined]
        start = new_start(engine, workflow_type=HOSTILE, external_id=HOSTILE, input=json.dumps([HOSTILE]).encode())
        run_id = (await engine.workflows.start(start)).run_id
    url = f"--url=sqlite:///{shell.directory}/orders.db"
    for command in (("runs", "list"), ("runs", "list", "--json"), ("runs", "show", run_id, "--json")):
        shown = shell(*command, url)
        assert shown.code == 0, shown
        assert harmless(shown.out + shown.err), shown
        if "--json" in command:
            found = shown.json["runs"][0] if "list" in command else shown.json
            assert (found["workflow"], found["id"]) == (HOSTILE, HOSTILE)
    refused = shell("runs", "show", HOSTILE + "x", url)
    assert refused.code == 3, refused
    assert harmless(refused.err), refused


async def test_a_run_that_says_how_far_it_is_is_shown_with_a_bar(shell: Shell) -> None:
    url = f"sqlite:///{shell.directory}/orders.db"
    app = Kagzi(url)

    @app.workflow
    async def report() -> str:
        kagzi.set_value("stage", HOSTILE)
        kagzi.progress(0.45, "loading " + HOSTILE)
        return "done"

    async with app, app.worker():
        run = await report.start()
        await run.result(timeout=60)
    shown = shell("runs", "show", run.id, "--url", url)
    assert shown.code == 0, shown
    assert harmless(shown.out)
    assert "progress\t█████████░░░░░░░░░░░ 45 % loading" in shown.out
    assert "\nstage\t" in shown.out
    document = shell("runs", "show", run.id, "--json", "--url", url).json
    assert document["values"] == {"stage": HOSTILE}
    assert (document["progress"]["fraction"], document["progress"]["message"]) == (0.45, "loading " + HOSTILE)


@pytest.mark.parametrize(
    ("fraction", "bar"),
    [(0.0, "░" * 20 + " 0 %"), (0.999, "█" * 19 + "░ 99 % nearly"), (1.0, "█" * 20 + " 100 %")],
)
def test_a_bar_is_full_when_all_is_done(fraction: float, bar: str) -> None:
    assert output.bar(fraction, "nearly" if 0 < fraction < 1 else "") == bar


def test_numbers_of_any_length_are_shown() -> None:
    digits = "9" * 10_000  # more than Python reads
    assert output.payload(f"[{digits},{10**100}]".encode()) == [digits, 10**100]

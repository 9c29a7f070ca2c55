"""What commands print of what others wrote."""

from __future__ import annotations

import io
import json
import sys

import pytest

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

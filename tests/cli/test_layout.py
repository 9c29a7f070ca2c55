"""How tables fit into terminals."""

from __future__ import annotations

import io
import sys

import pytest

from kagzi.cli import layout, output
from kagzi.cli.layout import Id
from kagzi.core.instant import SECOND
from kagzi.errors import InvalidRequest

HEADINGS = ("run", "id", "workflow", "queue", "status", "process", "created")
TIMED = ("01a1ed04-0fa2-76a3-8731-5cd0998fba52", "01a1ed04-0fa2-76f1-8731-5cd0998fba52")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int, **options: tuple[str, ...]) -> list[str]:
    rows = [
        (Id(run), name, "checkout", "default", "COMPLETED", "-", "14s ago")
        for run, name in zip(TIMED, ("order-42", "a-much-longer-id-that-somebody-chose"), strict=True)
    ]
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "40")  # without it a dumb terminal is taken to have 80 columns
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    output.table(HEADINGS, rows, **options)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_everything_is_shown_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, 140)
    assert lines[0].split() == list(HEADINGS)
    assert lines[1].split() == ["01a1ed04-0fa2-76a", "order-42", "checkout", "default", "COMPLETED", "-", "14s", "ago"]
    assert "a-much-longer-id-that-somebody-chose" in lines[2]


@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_terminal_has_whole_words_a_line_a_run(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, columns, spare=("queue", "workflow"))
    assert len(lines) == 3
    assert all(len(line) <= columns for line in lines)
    assert "process" not in lines[0].split()
    assert ("workflow" in lines[0].split()) is (columns == 80)
    for line, run in zip(lines[1:], ("01a1ed04-0fa2-76a", "01a1ed04-0fa2-76f"), strict=True):
        assert line.split()[0] == run
        assert "COMPLETED" in line.split()
    assert "…" in lines[2]  # the long id, and nothing else
    assert lines[2].count("…") == 1


def test_a_long_name_leaves_room_for_the_sentence_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "40")  # without it a dumb terminal is taken to have 80 columns
    output.table(
        ("queue", "state"), [("a-name-" + "x" * 60, "open"), ("images", "paused: the resizer moves to others")]
    )
    lines = out.getvalue().splitlines()
    assert lines[1].split()[0].endswith("…")
    assert "paused: the resizer moves to" in lines[2]


def test_prose_wraps_between_words_where_people_look(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "no schedules in namespace default; kagzi schedules create nightly WORKFLOW makes one"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "40")  # without it a dumb terminal is taken to have 80 columns
    for stream, lines in ((Terminal(), 2), (io.StringIO(), 1)):
        monkeypatch.setattr(sys, "stderr", stream)
        output.note(said)
        assert len(stream.getvalue().splitlines()) == lines
        assert stream.getvalue().split() == said.split()


def test_sentences_wrap_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "the oldest due run has been waiting for five minutes: is there a worker for its queue and workflow?"
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "40")  # without it a dumb terminal is taken to have 80 columns
    monkeypatch.setenv("TERM", "dumb")
    output.table(("part", ""), [("workers", sentence)])
    words = out.getvalue().split()
    assert words == ["part", "workers", *sentence.split()]


def test_programs_get_every_cell_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "40")  # without it a dumb terminal is taken to have 80 columns
    output.table(("run", "id"), [(Id(TIMED[0]), "x" * 90)], spare=("id",))
    assert capsys.readouterr().out == f"{TIMED[0]}\t{'x' * 90}\n"


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (TIMED[:1], ["01a1ed04-0fa2"]),
        (TIMED, ["01a1ed04-0fa2-76a", "01a1ed04-0fa2-76f"]),
        (("d2e22783-1758-4b47-87a3-66cac32eb376",), ["d2e22783"]),
        (("same", "same"), ["same", "same"]),
    ],
)
def test_ids_are_as_short_as_they_can_be_told_apart(ids: tuple[str, ...], shown: list[str]) -> None:
    assert layout.shortened([Id(each) for each in ids]) == shown


def test_the_beginning_of_an_id_names_the_one_that_begins_so() -> None:
    assert layout.found_by("01A1ED04-0fa2-76a", TIMED, "runs") == TIMED[0]
    assert layout.found_by("nothing", TIMED, "runs") is None
    with pytest.raises(InvalidRequest, match=r"several runs begin with 01a1.*say more of it"):
        layout.found_by("01a1", TIMED, "runs")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "now"), (-9, "9s ago"), (-3599, "59m ago"), (7200, "in 2h"), (-1_036_800, "12d ago")]
)
def test_lists_say_how_long_ago(seconds: int, words: str) -> None:
    assert output.relative(1_000_000_000 * SECOND + seconds * SECOND, 1_000_000_000 * SECOND) == words

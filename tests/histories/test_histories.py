"""What earlier versions have recorded comes out the same: replay is kept compatible from here on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, RunStatus
from kagzi.testing import Differs, replay
from tests.histories.make import RECORDED, ROOT, record
from tests.histories.program import STORIES, app

FILES = sorted(RECORDED.rglob("*.json"))
PLAIN = RECORDED / "0.1.0" / "plain.json"


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_recorded_history_comes_out_the_same(file: Path) -> None:
    assert replay(file, app).events > 0


def test_tracebacks_name_files_of_the_repository() -> None:
    """And not the folder in which they were recorded: here, and beside programs of other libraries."""
    files = sorted((ROOT / "tests").rglob("recorded/**/*.json"))
    assert len(files) > len(FILES)
    assert [file.name for file in files if b'File \\\\\\"/' in file.read_bytes()] == []


def test_every_story_was_recorded_and_still_can_be() -> None:
    assert {file.stem for file in FILES} == STORIES.keys()
    today = record()
    for history in today.values():
        replay(history, app)
        replay(history.to_json(), app)
    assert replay(today["cancelled"], app).status is RunStatus.CANCELLED


def changed(what: str) -> Kagzi:
    """The workflow `plain` with a change."""
    other = Kagzi("memory://")

    @other.step
    async def charge(cents: int) -> str:
        raise AssertionError(f"no body starts, and not with {cents}")

    @other.step
    def ship(item: str, number: int) -> list[Any]:
        raise AssertionError(f"no body starts, and not with {item} and {number}")

    @other.workflow(version="2" if what == "version" else "1")
    def plain(cents: int) -> str:
        if what == "new step":
            ship.call("gift", 1)
        payment = charge.call(cents + (what == "argument"))
        if what == "ends":
            raise ValueError("no more")
        if what != "no sleep":
            kagzi.sleep("2 days" if what == "longer" else "1 day")
        ship.call("mail", 1)
        return payment + ("!" if what == "result" else "")

    return other


@pytest.mark.parametrize(
    ("what", "recorded", "present", "has_place"),
    [
        ("new step", "step charge COMPLETED", "waits for step ship", True),
        ("argument", "step charge COMPLETED", "step charge with other arguments", True),
        ("no sleep", "sleep or timeout sleep was over", "waits for step ship", True),
        ("longer", "sleep or timeout sleep was over", "a sleep or a timeout that is not over", False),
        ("ends", "sleep or timeout sleep was over", "has raised builtins.ValueError: no more", False),
        ("result", 'returned "paid 13"', 'returns "paid 13!"', False),
    ],
)
def test_the_first_difference_is_named(what: str, recorded: str, present: str, has_place: bool) -> None:
    with pytest.raises(Differs) as raised:
        replay(PLAIN, changed(what))
    found = raised.value.difference
    assert recorded in found.recorded
    assert present in found.present
    assert (found.place is not None and "test_histories.py:" in found.place) is has_place
    assert present in str(raised.value)
    replay(PLAIN, changed("nothing"))


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is of plain 1; its versions there are 2"):
        replay(PLAIN, changed("version"))
    with pytest.raises(InvalidRequest, match="has no workflow of that name"):
        replay(PLAIN, Kagzi("memory://"))
    for text, message in (
        ("{}", "no history of a run"),
        ("{", "no history of a run"),
        (PLAIN.read_text().replace('"kagzi_history": 1', '"kagzi_history": 2'), "format 2"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            replay(text, app)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        replay(tmp_path / "none.json", app)
    with pytest.raises(InvalidRequest, match="not int"):
        replay(3, app)  # type: ignore[arg-type]

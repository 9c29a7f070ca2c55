"""What earlier versions have recorded comes out the same: replay is kept compatible from here on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, RunStatus
from kagzi.sdk.histories import export_history
from kagzi.testing import Differs, replay, run_virtually
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


SHOP = """
import asyncio, dataclasses, kagzi
app = kagzi.Kagzi("memory://")

@dataclasses.dataclass
class Parcel:
    number: int

@app.step
async def charge(cents: int) -> int:
    return cents

@app.step
async def pay(cents: int) -> int:
    return cents

@app.step
async def ship(cents: int) -> str:
    return f"shipped {cents}"

@app.step
async def tell_warehouse(cents: int) -> None: ...

@app.step
async def weigh(cents: int) -> int:
    return 7

@app.step
async def pack(cents: int) -> Parcel:
    return Parcel(1)

@app.workflow
async def audit(cents: int) -> int:
    return cents

@app.workflow
async def checkout(cents: int) -> str:
    CODE
"""


def shop(code: str) -> Kagzi:
    scope: dict[str, Any] = {}
    exec(compile(SHOP.replace("    CODE", code), "shop.py", "exec"), scope)
    app: Kagzi = scope["app"]
    return app


def recorded_shop(*, ended: bool) -> bytes:
    app = shop(f"    {TWO}")
    checkout = app.find_workflow("checkout", "1")
    assert checkout is not None

    async def main() -> bytes:
        run = await checkout.start(5)
        if ended:
            await run.result()
        else:
            await asyncio.sleep(3600)  # it sleeps
        return (await export_history(app.engine, await app.engine.workflows.get("default", run.id))).to_json()

    return run_virtually(app, main)


@pytest.fixture(scope="module")
def both() -> dict[bool, bytes]:
    return {ended: recorded_shop(ended=ended) for ended in (False, True)}


SLEEP = 'await kagzi.sleep("1 day")'
TWO = f"paid = await charge(cents); {SLEEP}; return await ship(paid)"


@pytest.mark.parametrize("ended", [False, True], ids=["parked", "ended"])
@pytest.mark.parametrize(
    ("code", "new", "gone"),
    [
        (TWO, (), ()),
        (f"await tell_warehouse(1); {TWO}", ("tell_warehouse",), ()),
        (f"paid = await charge(cents); await tell_warehouse(paid); {SLEEP}; return await ship(paid)", ..., ()),
        (f"heavy = await weigh(cents); {TWO}", ("weigh",), ()),
        (f"box = await pack(cents); {TWO}", ("pack",), ()),
        (f"await audit.run(cents); {TWO}", ("audit",), ()),
        (f"await audit.spawn(cents); {TWO}", ("audit",), ()),
        (f"{SLEEP}; return await ship(cents)", (), ("charge",)),
    ],
    ids=["same", "before", "behind", "with a result", "with a class", "child", "spawned", "gone"],
)
def test_what_is_new_or_gone_does_no_harm_and_is_told(
    both: dict[bool, bytes], ended: bool, code: str, new: Any, gone: Any
) -> None:
    history = both[ended]
    app = shop(f"    {code}")
    found = replay(history, app)
    if new is ...:  # of a run that sleeps nobody knows yet whether what comes behind is new
        new = ("tell_warehouse",) if ended else ()
    assert (found.new, found.gone) == (new, gone)
    if found.new or found.gone:
        with pytest.raises(Differs, match="event"):
            replay(history, app, strict=True)


@pytest.mark.parametrize("ended", [False, True], ids=["parked", "ended"])
@pytest.mark.parametrize(
    ("code", "present"),
    [
        (f"paid = await pay(cents); {SLEEP}; return await ship(paid)", r"would run again: charge \(new: pay\)"),
        (f"paid = await weigh(cents); {SLEEP}; return await ship(paid)", r"would run again: charge \(new: weigh\)"),
        (f"await tell_warehouse(1); await charge(6); {SLEEP}; return await ship(6)", "step charge with other arg"),
        ("await tell_warehouse(1); raise ValueError('no')", "has raised builtins.ValueError: no"),
    ],
    ids=["renamed", "exchanged", "arguments", "raises"],
)
def test_what_would_be_done_again_differs(both: dict[bool, bytes], ended: bool, code: str, present: str) -> None:
    with pytest.raises(Differs, match=present):
        replay(both[ended], shop(f"    {code}"))

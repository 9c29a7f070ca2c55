"""Prints data on standard output, everything else on standard error; tables only where somebody looks."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec

from kagzi.cli import layout
from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND, Instant, to_datetime
from kagzi.core.laid_out import whole
from kagzi.core.page import Page
from kagzi.core.printable import printable, printable_json
from kagzi.core.run import Run
from kagzi.core.run_value import OURS, RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.logs import wants_colour
from kagzi.ports.documents import common, runs

_BAR: Final = 20  # characters of a bar
_COLOURS = {
    "COMPLETED": "green",
    "FAILED": "red",
    "TIMED_OUT": "red",
    "CANCELLED": "yellow",
    "RUNNING": "cyan",
    "SLEEPING": "blue",
    "healthy": "green",
    "degraded": "yellow",
    "unhealthy": "red",
}


def document(value: object) -> None:
    """Prints one JSON document."""
    click.echo(printable_json(whole(msgspec.json.encode(value).decode())))


def line(value: object) -> None:
    """Prints one JSON document in a line of its own."""
    click.echo(printable_json(msgspec.json.encode(value).decode()))


def note(text: str) -> None:
    """Prints progress, for people."""
    prose(text, err=True)


def prose(text: str, *, err: bool = False) -> None:
    """Prints a sentence or a few, broken between words: a terminal would break them in mid-word."""
    text = clean(text)
    stream = sys.stderr if err else sys.stdout
    click.echo(layout.wrapped(text, shutil.get_terminal_size().columns) if stream.isatty() else text, err=err)


def text(lines: str) -> None:
    """Prints several lines that belong together, below a table."""
    click.echo()
    for each in lines.splitlines():
        click.echo(clean(each))


def for_people() -> bool:
    """Returns whether somebody looks at the output, and not a program."""
    return sys.stdout.isatty()


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Prints a table on a terminal; elsewhere a line a row with tabs between, for other programs. A narrow terminal
    does without the `spare` columns."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(clean(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=not wants_colour(sys.stdout), highlight=False)
    columns = [[clean(cell) for cell in layout.shortened(column)] for column in zip(*rows, strict=True)]
    if not columns:
        return
    shown = layout.kept(headings, columns, console.width, spare)
    headings, columns = [headings[n] for n in shown], [columns[n] for n in shown]
    widths = layout.widths(headings, columns, console.width)
    drawn = Table(box=None, pad_edge=False, padding=(0, layout.GAP, 0, 0), header_style="dim")
    drawn.show_header = any(headings)
    for heading, width in zip(headings, widths, strict=True):
        drawn.add_column(layout.cut(heading, width), width=width)
    for row in zip(*columns, strict=True):
        cells = zip(row, widths, strict=True)
        drawn.add_row(*(Text(layout.cut(cell, width), _COLOURS.get(cell, "")) for cell, width in cells))
    console.print(drawn)


def runs_table(heading: str, runs: Sequence[Run]) -> None:
    """Prints runs in short; `heading` says what they are here."""
    rows = [
        (layout.Id(run.run_id), run.external_id or "-", run.workflow_type, run.status.value, when(run.created_at))
        for run in runs
    ]
    table((heading, "id", "workflow", "status", "created"), rows)


def listing(
    name: str,
    page: Page[Any],
    documents: Sequence[object],
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    place: str,
    json: bool,
    jsonl: bool = False,
    spare: Sequence[str] = (),
    hint: str = "",
    chosen: bool = False,
    **more: object,
) -> None:
    """Prints one page of a listing, and where the next one begins. Who sees nothing is told where, because it may be
    the wrong place, and by the `hint` how the first comes to be; where some were `chosen`, that none of those is there.
    `more` is for the JSON document alone."""
    if json:
        document({name: documents, "next": page.next} | more)
    elif jsonl:
        for each in documents:
            line(each)
    else:
        table(headings, rows, spare=spare)
        if not rows:
            none(f"such {name}" if chosen else name, place, "" if chosen else hint)
        if page.next is not None:
            note(f"there are more: --page {page.next}")


def none(name: str, place: str, hint: str) -> None:
    """Says that there is nothing to show, and what to type for there to be something."""
    note(f"no {name} in {place}{'; ' if hint else ''}{hint}")


def clean(text: str) -> str:
    """Returns text for a cell or a line of its own."""
    return printable(text).replace("\n", " ").replace("\t", " ")


def when(instant: Instant) -> str:
    """Returns how long ago, or how soon, where people look; else the exact instant."""
    if sys.stdout.isatty():
        return relative(instant, SystemClock().now())
    return moment(instant) or "-"


moment = common.moment


def date_and_time(instant: Instant) -> str:
    """Returns date and time in the zone of the terminal where people look, else in UTC."""
    if sys.stdout.isatty():
        return to_datetime(instant).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return moment(instant) or "-"


def relative(instant: Instant, now: Instant) -> str:
    """`9s ago`, `in 3h`, `12d ago`: one unit is enough in a list."""
    seconds = abs(now - instant) // SECOND
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if seconds >= length:
            return f"{seconds // length}{unit} ago" if instant <= now else f"in {seconds // length}{unit}"
    return "now"


def bar(fraction: float, message: str) -> str:
    """Draws how far something is, as people see it at a glance."""
    full = int(fraction * _BAR)
    return f"{'█' * full}{'░' * (_BAR - full)} {int(fraction * 100)} %{' ' if message else ''}{message}"


def payload(data: bytes | None) -> object:
    return _read(bytes(common.payload(data)))


def run_summary(run: Run) -> dict[str, object]:
    return plain(runs.run_summary(run))


def run_details(
    run: Run,
    steps: Sequence[Step],
    signals: Sequence[Signal],
    why: str | None = None,
    values: Sequence[RunValue] = (),
    children: Sequence[Run] = (),
    handlers: Sequence[Run] = (),
) -> dict[str, object]:
    progress = runs.progress_document(values)
    return plain(runs.run_document(run, why, handlers)) | {
        "steps": [step_details(step) for step in steps],
        "signals": [plain(runs.signal_document(signal)) for signal in signals],
        "values": {each.name: payload(each.value) for each in values if not each.name.startswith(OURS)},
        "progress": None if progress is None else plain(progress),
        "children": [run_summary(child) for child in children],
    }


def step_details(step: Step) -> dict[str, object]:
    return plain(runs.step_document(step))


def plain(document: msgspec.Struct) -> dict[str, object]:
    found: dict[str, object] = _read(msgspec.json.encode(document))
    return found


def _read(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.ValidationError:  # a number that is out of range, which is no reason to show nothing
        return json.loads(data, parse_int=_number)


def _number(digits: str) -> int | str:
    """Returns the number, or its digits where Python does not read or write so many."""
    most = sys.get_int_max_str_digits()
    return digits if 0 < most < len(digits) else int(digits)

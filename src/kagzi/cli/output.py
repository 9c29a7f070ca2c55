"""Data on standard output, everything else on standard error. Tables only where somebody looks."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Sequence

import click
import msgspec

from kagzi.core.failure import Failure
from kagzi.core.instant import Instant, to_datetime
from kagzi.core.run import Run
from kagzi.core.step import Step
from kagzi.logs import wants_colour

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
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
    """One JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def line(value: object) -> None:
    """One JSON document in a line of its own."""
    click.echo(msgspec.json.encode(value).decode())


def note(text: str) -> None:
    """Progress, for people."""
    click.echo(clean(text), err=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere a line a row with tabs between, for other programs."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(clean(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, show_header=any(headings), header_style="dim")
    for number, heading in enumerate(headings):
        # The first column is what people copy.
        drawn.add_column(heading, overflow="fold", no_wrap=number == 0)
    for row in rows:
        drawn.add_row(*(Text(clean(cell), style=_COLOURS.get(cell, "")) for cell in row))
    Console(no_color=not wants_colour(sys.stdout), highlight=False).print(drawn)


def clean(text: str) -> str:
    """What others wrote must not move the cursor or repaint the screen."""
    return _CONTROL.sub(lambda found: " " if found[0] in "\n\t" else repr(found[0])[1:-1], text)


def moment(instant: Instant | None) -> str | None:
    return None if instant is None else to_datetime(instant).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def when(instant: Instant) -> str:
    """For people where people look, else exact."""
    if sys.stdout.isatty():
        return to_datetime(instant).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return moment(instant) or "-"


def payload(data: bytes | None) -> object:
    """JSON as it is; what a codec has made of it, as base64."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {"base64": base64.b64encode(data).decode()}


def failure(data: bytes | None) -> object:
    if not data:
        return None
    found = Failure.decode(data)
    return {"type": found.type, "message": found.message, "kind": found.kind.value, "traceback": found.traceback}


def run_summary(run: Run) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "id": run.external_id,
        "namespace": run.namespace,
        "workflow": run.workflow_type,
        "version": run.version,
        "queue": run.task_queue,
        "status": run.status.value,
        "priority": run.priority,
        "attempts": run.attempts,
        "executions": run.executions,
        "crashes": run.crashes,
        "created_at": moment(run.created_at),
        "available_at": moment(run.available_at),
        "started_at": moment(run.started_at),
        "finished_at": moment(run.finished_at),
        "deadline_at": moment(run.deadline_at),
        "worker_id": run.worker_id,
    }


def run_details(run: Run, steps: Sequence[Step]) -> dict[str, object]:
    return run_summary(run) | {
        "input": payload(run.input),
        "output": payload(run.output),
        "error": failure(run.error),
        "steps": [step_details(step) for step in steps],
    }


def step_details(step: Step) -> dict[str, object]:
    return {
        "step_id": step.step_id,
        "name": step.name,
        "kind": step.kind.value,
        "attempt": step.attempt,
        "status": step.status.value,
        "started_at": moment(step.started_at),
        "finished_at": moment(step.finished_at),
        "retry_at": moment(step.retry_at),
        "input": payload(step.input),
        "output": payload(step.output),
        "error": failure(step.error),
    }

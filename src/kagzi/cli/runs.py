"""kagzi runs list | show | watch; `endings.py`, `signals.py` and `replay.py` have the rest"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import click
import msgspec

from kagzi.api.explanation import explain
from kagzi.api.handling import failure_handlers
from kagzi.api.workflows import RunFilter
from kagzi.cli import output
from kagzi.cli.decoding import codec_of, decoded_run, decoded_signal, decoded_step, decoded_value
from kagzi.cli.endings import cancel, delete, fork, move, rerun, retry, terminate, wake
from kagzi.cli.filters import Filters, filters
from kagzi.cli.follow import find_run, finish, note_if_nobody_comes, wait_for
from kagzi.cli.known import known_runs
from kagzi.cli.layout import Id
from kagzi.cli.nesting import nested
from kagzi.cli.options import as_json, engine_of, length, pages, place_of, quiet_home, run, where
from kagzi.cli.replay import export
from kagzi.cli.signals import signal
from kagzi.clock import SystemClock
from kagzi.core.duration import format_span
from kagzi.core.failure import Failure
from kagzi.core.instant import Span
from kagzi.core.lineage import lineage_of
from kagzi.core.page import Page
from kagzi.core.report import places, report
from kagzi.core.run import Run
from kagzi.core.run_value import OURS, RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.core.tags import tag_text
from kagzi.ports.documents.runs import progress_document
from kagzi.sdk.payload import Codec
from kagzi.settings import Loaded

_Shown: TypeAlias = tuple[
    Run, tuple[Step, ...], tuple[Signal, ...], tuple[RunValue, ...], Page[Run], tuple[Run, ...], str | None
]
_CHILDREN: Final = 50  # so many are shown


@click.group(short_help="List, show, watch, end and repeat runs.")
def runs() -> None:
    """Look at runs, end them, run them again.

    RUN is a run id, the beginning of one that no other run shares, or the id the run was started with.
    """


@runs.command("list")
@filters
@pages
@where
@as_json
@click.option("--jsonl", is_flag=True, help="Print a JSON document a line.")
def list_runs(
    wanted: Filters,
    limit: int,
    page: str | None,
    url: str | None,
    namespace: str | None,
    json: bool,
    jsonl: bool,
) -> None:
    """List runs, newest first.

    \b
    kagzi runs list --status failed --error CardDeclined --since 2h
    kagzi runs list --tag batch=7 --id-prefix order-
    """
    loaded = quiet_home(url, namespace)
    settings = loaded.settings
    found = run(_list(loaded, wanted, limit, page))
    summaries = [output.run_summary(item) for item in found.items]
    output.listing(
        "runs",
        found,
        summaries,
        ("run", "id", "workflow", "queue", "status", "created"),
        [
            (
                Id(item.run_id),
                own_id(item),
                item.workflow_type,
                item.task_queue,
                item.status.value,
                output.when(item.created_at),
            )
            for item in found.items
        ],
        place=place_of(settings),
        json=json,
        jsonl=jsonl,
        spare=("queue", "workflow"),
        hint="kagzi start WORKFLOW starts one",
        chosen=any(msgspec.structs.astuple(wanted)),
        prev=found.prev,
    )


def own_id(item: Run) -> str:
    """The id that somebody chose. What Kagzi calls the firing of a schedule tells people nothing, and is long."""
    named = item.scheduled_for is None or not output.for_people()
    return (named and item.external_id) or "-"


async def _list(loaded: Loaded, wanted: Filters, limit: int, page: str | None) -> Page[Run]:
    """Returns a page of runs. The first one is full if there are as many runs, however far a filter has to look; others
    are taken as they come, since their tokens do not tell which way they lead."""
    async with engine_of(loaded) as engine:
        filter = await wanted.filter(engine, loaded.settings.namespace)
        found = first = await engine.workflows.list(filter, page_size=limit, page_token=page)
        items = found.items
        while page is None and found.searched_until is not None and found.next is not None and len(items) < limit:
            found = await engine.workflows.list(filter, page_size=limit - len(items), page_token=found.next)
            items += found.items
        return Page(items, found.next, first.prev)


@runs.command()
@click.argument("run_id", metavar="RUN", shell_complete=known_runs)
@click.option(
    "--app",
    metavar="APP",
    help="Decode payloads and errors with the codec of this app. It says where the run lives, too.",
)
@where
@as_json
def show(run_id: str, app: str | None, url: str | None, namespace: str | None, json: bool) -> None:
    """Show a run: why it is not moving, input, result, error, steps and children.

    Also how far it has come, if it says so, what it was told, and what handles its failure.
    Attempts of steps are listed as they happened. A failed run shows where in your code it failed.
    """
    loaded = quiet_home(url, namespace, app)
    shown = run(_show(loaded, run_id))
    if app is not None and (codec := codec_of(app)) is not None:
        shown = _decoded(shown, codec)
    found, steps, signals, values, children, handlers, why = shown
    if json:
        output.document(output.run_details(found, steps, signals, why, values, children.items, handlers))
        return
    failure = Failure.decode(found.error) if found.error else None
    progress = progress_document(values)
    summary = output.run_summary(found)
    first = {name: summary.pop(name) for name in ("run_id", "id", "workflow", "status")} | {
        "why": why,
        "progress": None if progress is None else output.bar(progress.fraction, progress.message),
        "error": failure,
        "handled_by": ", ".join(map(_handler, handlers)) or None,
        "handles": found.handles_run_id,
        "input": _brief(found.input),
        "output": None if found.output is None else _brief(found.output),
    }
    _print_facts(first)
    if failure is not None and places(failure):
        output.text(report(failure))
    if steps:
        _print_steps(steps)
    if signals:
        _print_signals(signals)
    _print_values([each for each in values if not each.name.startswith(OURS)])
    if children.items:
        _print_children(children)
    continued = summary.pop("incarnation")
    summary["debounced"] = _joined(found)
    summary["tags"] = " ".join(tag_text(*tag) for tag in found.tags.items()) or None
    summary["continued"] = "once" if continued == 1 else f"{continued:,} times" if continued else None
    if sys.stdout.isatty():
        click.echo()
    _print_facts(summary)


def _handler(run: Run) -> str:
    failed = f": {Failure.decode(run.error)}" if run.error and run.status.finished else ""
    return f"{run.workflow_type} {run.run_id} {run.status}{failed}"


def _decoded(shown: _Shown, codec: Codec) -> _Shown:
    found, steps, signals, values, children, handlers, why = shown
    lineage = lineage_of(found)
    return (
        decoded_run(found, codec),
        tuple([decoded_step(step, codec, lineage) for step in steps]),
        tuple([decoded_signal(signal, codec, lineage) for signal in signals]),
        tuple([decoded_value(value, codec, lineage) for value in values]),
        children,
        tuple([decoded_run(handler, codec) for handler in handlers]),
        why,
    )


def _joined(found: Run) -> str | None:
    """Returns what became of starts that were debounced, for whoever looks for one of them."""
    if found.debounce_key is None:
        return None
    key = f"key {found.debounce_key!r}, " if found.debounce_key else ""
    if not found.joins or found.joined_at is None:
        return f"{key}1 start"
    first, last = output.when(found.created_at), output.when(found.joined_at)
    begins = "" if found.started_at is not None or found.available_at is None else output.when(found.available_at)
    which = f", start {found.joined_by}" if found.joined_by else ""
    then = f"; begins {begins}" if begins else ""
    return f"{key}{found.joins + 1:,} starts became this run: first {first}, last {last} with its input{which}{then}"


def _print_facts(facts: Mapping[str, object]) -> None:
    output.table(("", ""), [(name, str(value)) for name, value in facts.items() if value is not None])


async def _show(loaded: Loaded, text: str) -> _Shown:
    async with engine_of(loaded) as engine:
        found = await find_run(engine, loaded.settings.namespace, text)
        workflows, run = engine.workflows, (found.namespace, found.run_id)
        steps = await workflows.steps(*run)
        signals = await workflows.signals(*run)
        why = await explain(engine, found, SystemClock().now(), steps=steps, signals=signals)
        of_it = RunFilter(namespace=found.namespace, parent_run_id=found.run_id)
        children = await workflows.list(of_it, page_size=_CHILDREN)
        handlers = await failure_handlers(engine, found)
        return found, steps, signals, await workflows.values(*run), children, handlers, why


def _print_steps(steps: Sequence[Step]) -> None:
    headings = ("step", "attempt", "status", "took", "result")
    if not sys.stdout.isatty():
        output.table(headings, [_step_row(step.step_id, step) for step in steps])
        return
    click.echo()
    output.table(
        headings,
        [
            (line.label, "", f"{line.ended} of {line.begun}", line.took, "")
            if line.step is None
            else _step_row(line.label, line.step)
            for line in nested(steps)
        ],
    )


def _step_row(label: str, step: Step) -> tuple[str, ...]:
    return (
        label,
        str(step.attempt),
        step.status.value,
        "-" if step.finished_at is None else format_span(max(0, step.finished_at - step.started_at)),
        str(Failure.decode(step.error)) if step.error else _brief(step.output),
    )


def _print_signals(signals: Sequence[Signal]) -> None:
    if sys.stdout.isatty():
        click.echo()
    output.table(
        ("signal", "value", "sent", "taken"),
        [(signal.name, _brief(signal.value), str(output.moment(signal.sent_at)), _taken(signal)) for signal in signals],
    )


def _print_values(values: Sequence[RunValue]) -> None:
    if not values:
        return
    if sys.stdout.isatty():
        click.echo()
    output.table(
        ("value", "is", "since"), [(each.name, _brief(each.value), str(output.moment(each.at))) for each in values]
    )


def _print_children(children: Page[Run]) -> None:
    if sys.stdout.isatty():
        click.echo()
    output.runs_table("child", children.items)
    if children.next is not None:
        output.text(f"These are the {_CHILDREN} newest; `kagzi runs list --parent RUN` lists them all.")


def _taken(signal: Signal) -> str:
    return "-" if signal.taken_seq is None else "yes"


def _brief(data: bytes | None) -> str:
    if data is None:
        return "-"
    text = msgspec.json.encode(output.payload(data)).decode()
    return text if len(text) <= 200 else f"{text[:200]}…"


@runs.command()
@click.argument("run_id", metavar="RUN", shell_complete=known_runs)
@click.option("--timeout", type=length, metavar="DURATION", help="Give up after this long, exit code 124.")
@where
@as_json
def watch(run_id: str, timeout: Span | None, url: str | None, namespace: str | None, json: bool) -> None:
    """Follow a run step by step to its end, then print its result. Exit code 1 if it does not complete."""
    loaded = quiet_home(url, namespace)
    finish(run(_watch(loaded, run_id, timeout)), json=json)


async def _watch(loaded: Loaded, text: str, timeout: Span | None) -> Run:
    async with engine_of(loaded) as engine:
        found = await find_run(engine, loaded.settings.namespace, text)
        await note_if_nobody_comes(engine, place_of(loaded.settings), found)
        return await wait_for(engine, found.namespace, found.run_id, timeout, steps=True)


for command in (cancel, terminate, wake, move, retry, rerun, fork, delete, signal, export):
    runs.add_command(command)

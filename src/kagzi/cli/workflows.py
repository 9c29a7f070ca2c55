"""kagzi workflows list | show"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import Final

import click

from kagzi.cli import output
from kagzi.cli.known import known_workflows
from kagzi.cli.options import as_json, engine_of, place_of, quiet_home, run, where
from kagzi.core.duration import format_span
from kagzi.core.instant import SECOND, Span
from kagzi.core.versions import StartDefaults, Versions, WorkflowInterface, WorkflowVersion
from kagzi.core.workflow_report import Spread, WorkflowReport
from kagzi.errors import NotFound
from kagzi.ports.documents.reports import report_document
from kagzi.ports.documents.versions import interface_document, version_document
from kagzi.ports.parameters import Kind, Parameter, Parameters, read_parameters, spoken
from kagzi.settings import Loaded

_EXAMPLES: Final = {Kind.TEXT: '"…"', Kind.INTEGER: "1", Kind.NUMBER: "1.5", Kind.JSON: "…"}


@click.group(short_help="List workflows; show what one takes.")
def workflows() -> None:
    """See which workflows workers offer, what they are for and what they take."""


@workflows.command("list", short_help="List workflows, and what they are for.")
@where
@as_json
def list_workflows(url: str | None, namespace: str | None, json: bool) -> None:
    """List workflows that workers have offered or that have unfinished runs, and what their code says they are for.
    `kagzi versions` tells of every version.

    \b
    kagzi workflows list
    """
    loaded = quiet_home(url, namespace)
    found = run(_list(loaded))
    # The default of each stands for it, else its newest.
    shown: dict[str, WorkflowVersion] = {}
    for each in found.items:
        if each.workflow_type not in shown or each.default:
            shown[each.workflow_type] = each
    if json:
        output.document({"workflows": [version_document(each) for each in shown.values()], "more": found.more})
        return
    online: dict[str, int] = {}
    live: dict[str, int] = {}
    for each in found.items:
        online[each.workflow_type] = max(online.get(each.workflow_type, 0), each.workers)
        live[each.workflow_type] = live.get(each.workflow_type, 0) + each.live
    output.table(
        ("workflow", "version", "workers", "unfinished", "what it is for"),
        [
            (
                name,
                "every" if each.version is None else each.version,
                str(online[name]),
                f"{live[name]}{'+' if each.at_least else ''}",
                each.summary,
            )
            for name, each in shown.items()
        ],
        spare=("unfinished",),
    )
    if not shown:
        output.none("workflows", place_of(loaded.settings), "a worker offers those of its app: kagzi worker shop.py")
    if found.more:
        output.note("there are more: `kagzi workflows show NAME` shows one by its name")


@workflows.command("show", short_help="Show what a workflow is for and what it takes.")
@click.argument("workflow", shell_complete=known_workflows)
@click.option("--version", metavar="VERSION", help="Which version; without it, what a start gets that names none.")
@where
@as_json
def show_workflow(workflow: str, version: str | None, url: str | None, namespace: str | None, json: bool) -> None:
    """Show what WORKFLOW is for and what it takes, as the worker says that registered last with it, and how its newest
    runs have done: how many failed and of what, and how long they and their steps took.

    \b
    kagzi workflows show checkout
    kagzi workflows show checkout --version 2 --json
    """
    loaded = quiet_home(url, namespace)
    found, report, none = run(_describe(loaded, workflow, version))
    if json:
        told = interface_document(found or WorkflowInterface(workflow_type=workflow))
        output.document(output.plain(told) | {"report": report_document(report), "offered": found is not None})
        return
    if found is None:
        output.note(f"{none}{'' if none.endswith('?') else '.'} Runs of it have been started all the same")
        _show_report(report)
        return
    parameters = read_parameters(found.input_schema)
    if sys.stdout.isatty():
        named = "every version" if found.version is None else f"version {found.version}"
        output.prose(f"{found.workflow_type}, {named}{': ' if found.summary else ''}{found.summary}")
        for sentence in _defaults(found.defaults):
            output.prose(sentence)
        click.echo()
    if parameters is None:
        output.note("its worker does not say what it takes; input is JSON: an array by position, an object by name")
    else:
        _show_parameters(found, parameters)
    if sys.stdout.isatty():
        _show_report(report)


def _defaults(defaults: StartDefaults) -> Iterator[str]:
    """Yields what the code gives to runs whose start says nothing about it."""
    if defaults.queue is not None:
        yield f"Its runs wait in queue {defaults.queue}."
    if defaults.timeout is not None:
        yield f"Its runs time out after {format_span(defaults.timeout)}."
    if defaults.on_failure is not None:
        queue = "" if defaults.on_failure_queue is None else f" in queue {defaults.on_failure_queue}"
        yield f"Runs of it that fail start {defaults.on_failure}{queue}."
    if defaults.limit_name is not None:
        yield f"The limits {defaults.limit_name} count for its runs{_by(defaults.limit_key)}."
    if (debounce := defaults.debounce) is not None:
        yield f"Starts{_by(debounce.key)} become one run, {format_span(debounce.wait)} after the last."


def _by(key: str | None) -> str:
    if key is None:
        return ""
    return f", by {key} of the input" if key else ", by a key that its code makes"


def _show_parameters(found: WorkflowInterface, parameters: Parameters) -> None:
    output.table(
        ("parameter", "takes", "default", "about"),
        [(each.name, _takes(each), _default(each), each.about) for each in parameters.items],
        spare=("about",),
    )
    if not parameters.items:
        output.note("it takes no arguments")
    if sys.stdout.isatty():
        command = f"kagzi start {shlex.quote(found.workflow_type)}"
        output.text(f"{command} --input {shlex.quote(_example(parameters))}" if parameters.items else command)


def _show_report(report: WorkflowReport) -> None:
    if not report.runs:
        return
    whole = "all there are" if report.whole else "the newest"
    ended = f"{report.completed:,} completed, {report.failed:,} failed"
    rate = "" if report.failure_rate is None else f" ({report.failure_rate:.1%} of those that ended)"
    click.echo()
    output.prose(f"{report.runs:,} {'run' if report.runs == 1 else 'runs'}, {whole}: {ended}{rate}")
    lengths = [("took", report.took), ("waited for a worker", report.waited)]
    lengths += [(f"step {step.name}", step.took) for step in report.steps]
    output.table(
        ("how long", "half within", "95% within", "99% within", "longest"),
        [(name, *(format_span(each) for each in _rounded(spread))) for name, spread in lengths if spread is not None],
        spare=("99% within",),
    )
    if report.failures:
        click.echo()
        output.table(
            ("failed", "last", "error", "where"),
            [
                (
                    f"{each.count:,}",
                    output.when(each.last_at),
                    f"{each.error.removeprefix('builtins.')}: {each.message}" if each.error else "timed out",
                    each.place or "-",
                )
                for each in report.failures
            ],
        )


def _rounded(spread: Spread) -> list[Span]:
    """Rounds to what people read: three figures are enough."""
    unit = SECOND // 1000
    return [
        round(each / unit) * unit if each >= unit else each
        for each in (spread.p50, spread.p95, spread.p99, spread.longest)
    ]


def _takes(parameter: Parameter) -> str:
    words = parameter.words
    if parameter.kind is Kind.CHOICE and parameter.choices[:2] != ("true", "false"):
        words = ", ".join([spoken(each) for each in parameter.choices])
    return f"{words}, or null" if parameter.nullable and "null" not in parameter.choices else words


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    return "-" if parameter.default is None else spoken(parameter.default)


def _example(parameters: Parameters) -> str:
    """Returns an example input, with the parameters that must be given."""
    needed = [each for each in parameters.items if each.required] or list(parameters.items[:1])
    return parameters.assemble({each.name: _EXAMPLES.get(each.kind) or each.choices[0] for each in needed}).decode()


async def _list(loaded: Loaded) -> Versions:
    async with engine_of(loaded) as engine:
        return await engine.versions.list(loaded.settings.namespace)


async def _describe(
    loaded: Loaded, workflow: str, version: str | None
) -> tuple[WorkflowInterface | None, WorkflowReport, str]:
    """Returns what a worker says of a workflow, how its runs have done, and why there is none although there are runs
    of it."""
    namespace = loaded.settings.namespace
    async with engine_of(loaded) as engine:
        report = await engine.versions.report(namespace, workflow)
        try:
            return await engine.versions.describe(namespace, workflow, version), report, ""
        except NotFound as error:
            if not report.runs or version is not None:
                raise
            return None, report, str(error)

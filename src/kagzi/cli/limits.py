"""kagzi limits list | pause | resume"""

from __future__ import annotations

import click

from kagzi.cli import output
from kagzi.cli.options import as_json, engine_of, home_of, place_of, run, start_logging, where
from kagzi.cli.queues import pause_scope, pause_words, print_limit, resume_scope
from kagzi.core.flow import FlowLimit, Scope
from kagzi.ports.documents import limit_document
from kagzi.settings import Loaded


@click.group(short_help="See and change what holds runs back.")
def limits() -> None:
    """See what holds runs back before a worker may take them, and change it.

    Queues are paused by `kagzi queues pause`, namespaces by `kagzi namespaces pause`.
    """


@limits.command("list")
@where
@as_json
def list_limits(url: str | None, namespace: str | None, json: bool) -> None:
    """List all that holds runs of the namespace back."""
    loaded = _settings(url, namespace)
    found = run(_list(loaded))
    if json:
        output.document({"limits": [limit_document(each) for each in found]})
        return
    output.table(
        ("scope", "name", "state"),
        [(each.scope.value, each.name or "-", _state(each)) for each in found],
    )
    if not found:
        output.note(f"nothing holds runs back in {place_of(loaded.settings)}")


async def _list(loaded: Loaded) -> tuple[FlowLimit, ...]:
    async with engine_of(loaded) as engine:
        return await engine.limits.list(loaded.settings.namespace)


@limits.command()
@click.option("--workflow", required=True, metavar="NAME", help="The workflow whose runs are held back.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people: shown with every run that waits.")
@where
@as_json
def pause(workflow: str, reason: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Hand no run of a workflow to a worker, until it is resumed.

    \b
    kagzi limits pause --workflow checkout
    """
    loaded = _settings(url, namespace)
    print_limit(run(pause_scope(loaded, loaded.settings.namespace, Scope.WORKFLOW, workflow, reason)), json)


@limits.command()
@click.option("--workflow", required=True, metavar="NAME", help="The workflow whose runs were held back.")
@where
@as_json
def resume(workflow: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Hand the runs of a workflow to workers again."""
    loaded = _settings(url, namespace)
    print_limit(run(resume_scope(loaded, loaded.settings.namespace, Scope.WORKFLOW, workflow)), json)


def _state(limit: FlowLimit) -> str:
    return "open" if limit.paused_at is None else pause_words(limit)


def _settings(url: str | None, namespace: str | None) -> Loaded:
    loaded = home_of(url, namespace)
    start_logging(loaded.settings, quiet=True)
    return loaded

"""kagzi namespaces create | list | show | update | enable | disable | pause | resume"""

from __future__ import annotations

from typing import Any

import click

from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.options import as_json, engine_of, handler_of, pages, quiet_home, run
from kagzi.cli.queues import pause_scope, print_limit, resume_scope
from kagzi.connect import default_url
from kagzi.core.flow import Scope
from kagzi.core.namespace import Namespace
from kagzi.core.page import Page
from kagzi.settings import Loaded, mask_url

_home = click.option(
    "--url",
    metavar="URL",
    help="A database, or a server (grpc://…). "
    "[KAGZI_URL, else KAGZI_DB_URL, else what KAGZI_APP says, else .kagzi/kagzi.db]",
)


@click.group(short_help="Make, list, describe, disable and pause namespaces.")
def namespaces() -> None:
    """Look after namespaces: tenants that see nothing of each other.

    While no API keys are configured, a namespace is made by using it; else by `kagzi namespaces create`.
    """


@namespaces.command()
@click.argument("name")
@click.option("--display-name", default="", metavar="TEXT", help="What people call it. [NAME]")
@click.option("--description", default="", metavar="TEXT", help="What it is for.")
@_home
@as_json
def create(name: str, display_name: str, description: str, url: str | None, json: bool) -> None:
    """Make the namespace NAME. Exit code 5 if there is one of that name."""
    _print(run(_create(quiet_home(url, None), name, display_name, description)), json)


async def _create(loaded: Loaded, name: str, display_name: str, description: str) -> Namespace:
    async with engine_of(loaded, make=True) as engine:
        async with audited(engine, "namespaces create", namespace=name, target=f"namespace {name}"):
            return await engine.namespaces.create(name, display_name=display_name, description=description)


@namespaces.command("list")
@pages
@_home
@as_json
def list_namespaces(limit: int, page: str | None, url: str | None, json: bool) -> None:
    """List namespaces by name."""
    loaded = quiet_home(url, None)
    found = run(_list(loaded, limit, page))
    output.listing(
        "namespaces",
        found,
        [summary(item) for item in found.items],
        ("namespace", "display name", "state", "created"),
        [
            (item.namespace, item.display_name or "-", _state(item), output.when(item.created_at))
            for item in found.items
        ],
        place=mask_url(default_url(loaded.settings, make=False)),
        json=json,
    )


async def _list(loaded: Loaded, limit: int, page: str | None) -> Page[Namespace]:
    async with engine_of(loaded) as engine:
        return await engine.namespaces.list(page_size=limit, page_token=page)


@namespaces.command()
@click.argument("name")
@_home
@as_json
def show(name: str, url: str | None, json: bool) -> None:
    """Show what is known about the namespace NAME."""
    _print(run(_show(quiet_home(url, None), name)), json)


async def _show(loaded: Loaded, name: str) -> Namespace:
    async with engine_of(loaded) as engine:
        return await engine.namespaces.get(name)


@namespaces.command()
@click.argument("name")
@click.option("--display-name", metavar="TEXT", help="What people call it.")
@click.option("--description", metavar="TEXT", help="What it is for.")
@click.option(
    "--on-failure",
    metavar="WORKFLOW[@QUEUE]",
    help="Start this workflow when a run fails or times out; without a queue in that of the run.",
)
@click.option("--no-on-failure", is_flag=True, help="Start nothing when a run fails.")
@_home
@as_json
def update(
    name: str,
    display_name: str | None,
    description: str | None,
    on_failure: str | None,
    no_on_failure: bool,
    url: str | None,
    json: bool,
) -> None:
    """Describe the namespace NAME differently, or say what handles its failures. What is not said stays.

    \b
    kagzi namespaces update shop --on-failure notify_ops@ops
    """
    if display_name is None and description is None and on_failure is None and not no_on_failure:
        raise click.UsageError("say --display-name, --description, --on-failure or --no-on-failure")
    if on_failure is not None and no_on_failure:
        raise click.UsageError("say --on-failure or --no-on-failure, not both")
    changes: dict[str, str | None] = {"display_name": display_name, "description": description}
    if on_failure is not None:
        changes["on_failure"], changes["on_failure_queue"] = handler_of(on_failure)
    elif no_on_failure:
        changes["on_failure"] = ""
    _print(run(_update(quiet_home(url, None), name, changes)), json)


async def _update(loaded: Loaded, name: str, changes: dict[str, str | None]) -> Namespace:
    async with engine_of(loaded) as engine:
        async with audited(engine, "namespaces update", namespace=name, target=f"namespace {name}"):
            return await engine.namespaces.update(name, **changes)


@namespaces.command()
@click.argument("name")
@_home
@as_json
def enable(name: str, url: str | None, json: bool) -> None:
    """Let runs be started in the namespace NAME again."""
    _print(run(_enable(quiet_home(url, None), name, True)), json)


@namespaces.command()
@click.argument("name")
@_home
@as_json
def disable(name: str, url: str | None, json: bool) -> None:
    """Start no runs in the namespace NAME.

    Everybody is refused within seconds; what runs goes on, and everything can be looked at.
    """
    _print(run(_enable(quiet_home(url, None), name, False)), json)


async def _enable(loaded: Loaded, name: str, enabled: bool) -> Namespace:
    action = "namespaces enable" if enabled else "namespaces disable"
    async with engine_of(loaded) as engine:
        async with audited(engine, action, namespace=name, target=f"namespace {name}"):
            return await engine.namespaces.enable(name, enabled)


@namespaces.command()
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people: shown with every run that waits.")
@_home
@as_json
def pause(name: str, reason: str, url: str | None, json: bool) -> None:
    """Hand no run of the namespace NAME to a worker, until it is resumed.

    Runs can be started meanwhile, and wait. `kagzi namespaces disable` refuses starts instead.
    """
    print_limit(*run(pause_scope(quiet_home(url, None), name, Scope.NAMESPACE, "", reason)), json=json)


@namespaces.command()
@click.argument("name")
@_home
@as_json
def resume(name: str, url: str | None, json: bool) -> None:
    """Hand the runs of the namespace NAME to workers again."""
    print_limit(run(resume_scope(quiet_home(url, None), name, Scope.NAMESPACE, "")), json=json)


def summary(namespace: Namespace) -> dict[str, Any]:
    return {
        "namespace": namespace.namespace,
        "display_name": namespace.display_name or namespace.namespace,
        "description": namespace.description,
        "enabled": namespace.enabled,
        "on_failure": namespace.on_failure,
        "on_failure_queue": namespace.on_failure_queue,
        "created_at": output.moment(namespace.created_at),
        "updated_at": output.moment(namespace.updated_at),
    }


def _state(namespace: Namespace) -> str:
    return "enabled" if namespace.enabled else "disabled"


def _print(namespace: Namespace, json: bool) -> None:
    if json:
        output.document(summary(namespace))
        return
    output.table(
        ("", ""), [(name, str(value)) for name, value in summary(namespace).items() if value not in ("", None)]
    )

"""kagzi keys create | list | rotate | revoke"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from kagzi.api.keys import NewKey
from kagzi.cli import output
from kagzi.cli.audited import actor
from kagzi.cli.options import as_json, expect_tables, lasting, length, pages, run, settings_of, start_logging
from kagzi.clock import SystemClock
from kagzi.connect import default_url, engine_settings, make_store
from kagzi.core.duration import format_span
from kagzi.core.instant import Span
from kagzi.core.key import Key, Role, read_key
from kagzi.core.limits import check_name
from kagzi.core.page import Page
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest
from kagzi.settings import Settings, mask_url

database = click.option(
    "--url", metavar="URL", help="The database. [KAGZI_DB_URL, else KAGZI_URL, else .kagzi/kagzi.db]"
)
_KEY_HELP = """KEY is the id of a key, as `kagzi keys list` shows it."""


@click.group(short_help="Make, list, rotate and revoke API keys.")
def keys() -> None:
    """Look after the API keys that servers ask for.

    A server asks for keys as soon as there is one, and from then on for ever. Keys are kept in the database, so these
    commands need it, and not a server.
    """


@keys.command()
@click.argument("name")
@click.option(
    "-r",
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="What the key is for: admin everything, client starting and ending runs, worker driving them, viewer looking.",
)
@click.option("-n", "--namespace", metavar="NAME", help="The namespace that it opens. [KAGZI_NAMESPACE, else default]")
@click.option("--all-namespaces", is_flag=True, help="It opens every namespace.")
@click.option("--expires", type=length, metavar="DURATION", help="How long it lives, such as 90d. [for ever]")
@database
@as_json
def create(
    name: str,
    role: str,
    namespace: str | None,
    all_namespaces: bool,
    expires: Span | None,
    url: str | None,
    json: bool,
) -> None:
    """Make a key and print it, this once.

    NAME is for people: who or what uses it. Nobody can show the key again; if it is lost, make another one.
    """
    if all_namespaces and namespace is not None:
        raise click.UsageError("--namespace and --all-namespaces exclude each other")
    settings = _settings(url, namespace)
    made = run(_create(settings, name, Role(role), None if all_namespaces else settings.namespace, expires))
    _print_new(made, json)


async def _create(settings: Settings, name: str, role: Role, namespace: str | None, expires: Span | None) -> NewKey:
    async with engine_on_database(settings, make=True) as engine:
        return await engine.keys.create(name=name, role=role, namespace=namespace, expires_in=expires, actor=actor())


@keys.command("list")
@click.option("-n", "--namespace", metavar="NAME", help="Only keys of this namespace. [all]")
@pages
@database
@as_json
def list_keys(namespace: str | None, limit: int, page: str | None, url: str | None, json: bool) -> None:
    """List keys, the newest first; also those that have ended. Their secrets are not kept anywhere."""
    settings = _settings(url, None)
    found = run(_list(settings, namespace, limit, page))
    output.listing(
        "keys",
        found,
        [summary(key) for key in found.items],
        ("key", "name", "role", "namespace", "state", "created", "last used"),
        [
            (
                key.key_id,
                key.name,
                key.role.value,
                key.namespace or "*",
                _state(key)
                if key.expires_at is None
                else f"{_state(key)} until {output.date_and_time(key.expires_at)}",
                output.when(key.created_at),
                "-" if key.last_used_at is None else output.when(key.last_used_at),
            )
            for key in found.items
        ],
        place=database_of(settings),
        json=json,
        hint="kagzi keys create ci --role client makes one",
    )


async def _list(settings: Settings, namespace: str | None, limit: int, page: str | None) -> Page[Key]:
    async with engine_on_database(settings) as engine:
        return await engine.keys.list(namespace=namespace, page_size=limit, page_token=page)


@keys.command(epilog=_KEY_HELP)
@click.argument("key", metavar="KEY")
@click.option(
    "--overlap",
    type=length,
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="How long the old key still opens.",
)
@database
@as_json
def rotate(key: str, overlap: Span, url: str | None, json: bool) -> None:
    """Put a new key in the place of KEY and print it, this once.

    The new key has the same name, role, namespace and length of life. Both open during the overlap: give the new one to
    whoever uses the old one, which ends by itself.
    """
    made = run(_rotate(_settings(url, None), _key_id(key), overlap))
    _print_new(made, json)
    output.note(f"key {_key_id(key)} still opens for {format_span(overlap)} at most")


async def _rotate(settings: Settings, key_id: str, overlap: Span) -> NewKey:
    async with engine_on_database(settings) as engine:
        return await engine.keys.rotate(key_id, overlap=overlap, actor=actor())


@keys.command(epilog=_KEY_HELP)
@click.argument("key", metavar="KEY")
@database
@as_json
def revoke(key: str, url: str | None, json: bool) -> None:
    """Refuse KEY from now on, for good.

    Running servers do so within ten seconds; calls that wait under the key are cut short.
    """
    revoked = run(_revoke(_settings(url, None), _key_id(key)))
    if json:
        output.document(summary(revoked))
    else:
        output.note(f"key {revoked.key_id} ({revoked.name}) is revoked; servers refuse it within ten seconds")


async def _revoke(settings: Settings, key_id: str) -> Key:
    async with engine_on_database(settings) as engine:
        return await engine.keys.revoke(key_id, actor=actor())


@asynccontextmanager
async def engine_on_database(settings: Settings, *, make: bool = False) -> AsyncIterator[LocalEngine]:
    """Opens an engine without background duties, for commands about what a server does not tell."""
    url = _database_url(settings, make=make)
    if url.partition("://")[0].lower() in ("grpc", "grpcs"):
        raise InvalidRequest(
            f"keys and the audit log are kept in the database, and {mask_url(url)} is a server; name the database by "
            "--url or KAGZI_DB_URL"
        )
    store = make_store(lasting(url), retention_days=settings.retention_days)
    if not make:
        await expect_tables(store, url)
    engine = LocalEngine(store, settings=EngineSettings(**engine_settings(settings)), background=False)
    async with engine:
        yield engine


def database_of(settings: Settings) -> str:
    """Returns which database that is, for people."""
    return mask_url(_database_url(settings))


def _database_url(settings: Settings, *, make: bool = False) -> str:
    return settings.db_url or default_url(settings, make=make)


def summary(key: Key) -> dict[str, object]:
    return {
        "key_id": key.key_id,
        "name": key.name,
        "role": key.role.value,
        "namespace": key.namespace,
        "state": _state(key),
        "created_at": output.moment(key.created_at),
        "expires_at": output.moment(key.expires_at),
        "revoked_at": output.moment(key.revoked_at),
        "last_used_at": output.moment(key.last_used_at),
    }


def _print_new(made: NewKey, json: bool) -> None:
    if json:
        output.document(summary(made.key) | {"key": made.text})
        return
    click.echo(made.text)
    where = "every namespace" if made.key.namespace is None else f"namespace {made.key.namespace}"
    output.note(f"key {made.key.key_id} ({made.key.name}) of role {made.key.role} opens {where}; it is not shown again")


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "live" if key.live(SystemClock().now()) else "expired"


def _key_id(text: str) -> str:
    """Returns the id of a key that is given by its id or whole."""
    shown = read_key(text)
    if shown is not None:
        return shown.key_id
    if text.startswith("kgz_"):
        raise InvalidRequest("that is not a whole key; give its id, as `kagzi keys list` shows it")
    return check_name(text, "the key's id")


def _settings(url: str | None, namespace: str | None) -> Settings:
    settings = settings_of(db_url=url, namespace=namespace).settings
    start_logging(settings, quiet=True)
    return settings

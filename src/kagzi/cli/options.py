"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import click
from msgspec.structs import replace

from kagzi import logs
from kagzi.api.engine import ManagedEngine
from kagzi.cli.grpc_core import prepare_grpc
from kagzi.connect import connect, credentials_of, default_url, engine_settings
from kagzi.core.duration import parse_duration
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import check_name
from kagzi.core.tags import check_tags, read_tag
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest, NotFound
from kagzi.settings import Flag, Loaded, Settings, load, mask_url
from kagzi.store.protocol.store import Store

URL_OF_DEV: Final = "KAGZI_DEV_URL"  # by which `kagzi dev` tells its worker where runs live

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def length(value: str | Span) -> Span:
    """The type of options that are a length of time: 30, 30s, 5m, 1h30m."""
    if isinstance(value, int):
        return value
    try:
        number: float | None = float(value)
    except ValueError:
        number = None
    try:
        return parse_duration(value if number is None else number, "the length")
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from None


tagged = click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME=VALUE",
    help="A tag to find runs by, such as batch=7. May be given several times.",
)


def tags_of(texts: Sequence[str]) -> dict[str, str]:
    """Returns the tags that were given as NAME=VALUE, each name once."""
    tags: dict[str, str] = {}
    for text in texts:
        name, value = read_tag(text, "--tag")
        if name in tags:
            raise InvalidRequest(f"--tag {name} is given twice; a run has one value for each name")
        tags[name] = value
    return check_tags(tags, "--tag")


def handler_of(text: str) -> tuple[str, str | None]:
    """Returns what handles failures, and its queue: WORKFLOW or WORKFLOW@QUEUE."""
    name, found, queue = text.partition("@")
    if not name or (found and not queue):
        raise click.BadParameter(f"{text!r} is not WORKFLOW or WORKFLOW@QUEUE", param_hint="'--on-failure'")
    return name, queue or None


def where(command: F) -> F:
    """--url and --namespace."""
    command = click.option("-n", "--namespace", metavar="NAME", help="The namespace. [KAGZI_NAMESPACE, else default]")(
        command
    )
    return click.option(
        "--url",
        metavar="URL",
        help="Where runs live: sqlite:///file.db, postgresql://… or grpc://host:50051. "
        "[KAGZI_URL, else KAGZI_DB_URL, else what KAGZI_APP says, else .kagzi/kagzi.db]",
    )(command)


def pages(command: F) -> F:
    """--limit and --page."""
    command = click.option("--page", metavar="TOKEN", help="Where to go on; each page tells the token of the next.")(
        command
    )
    return click.option(
        "--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many to list."
    )(command)


def as_json(command: F) -> F:
    return click.option("--json", "json", is_flag=True, help="Print one JSON document.")(command)


def logging_options(command: F) -> F:
    command = click.option(
        "--log-format",
        type=click.Choice(["auto", "pretty", "json"]),
        help="How to log; auto is pretty on a terminal. [KAGZI_LOG_FORMAT, else auto]",
    )(command)
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="What to log at least. [KAGZI_LOG_LEVEL, else info]",
    )(command)


def settings_of(**flags: object) -> Loaded:
    """Returns settings with these fields given on the command line, where they are not None."""
    return load(
        {field: Flag(_NAMES.get(field, f"--{field.replace('_', '-')}"), value) for field, value in flags.items()}
    )


def home_of(url: str | None, namespace: str | None, app: str | None = None) -> Loaded:
    """Returns the settings of a command that looks at runs. Where nothing else says where they live, `app` does, or
    that of KAGZI_APP or kagzi.toml, so that its commands and its worker look at the same place."""
    loaded = settings_of(url=url, namespace=namespace, app=app)
    settings = loaded.settings
    if settings.app is None or settings.url is not None or settings.db_url is not None:
        return loaded
    from kagzi.cli.application import load_app

    named = load_app(settings.app)
    # A key from the environment is not shown to an address that a file chose, directly or by its app.
    source = loaded.sources["app"] if loaded.from_file("app") else f"the app {settings.app}"
    told = {"url": named.url, "namespace": None if namespace else named.namespace}
    told = {field: value for field, value in told.items() if value is not None}
    return Loaded(replace(settings, **told), loaded.sources | dict.fromkeys(told, source), loaded.file)


_NAMES = {"server_host": "--host", "server_port": "--port", "db_url": "--url"}


def start_logging(settings: Settings, *, quiet: bool = False) -> None:
    """Configures the log. Commands that end by themselves (`quiet`) only say what went wrong."""
    prepare_grpc(verbose=settings.log_level == "debug")
    logs.configure(settings.log_format, "warning" if quiet and settings.log_level == "info" else settings.log_level)


def quiet_home(url: str | None, namespace: str | None, app: str | None = None) -> Loaded:
    """Returns the settings of a command that looks at runs and ends by itself; its log only says what went wrong."""
    loaded = home_of(url, namespace, app)
    start_logging(loaded.settings, quiet=True)
    return loaded


def place_of(settings: Settings) -> str:
    """Returns where a command looks, for people."""
    return f"namespace {settings.namespace} of {mask_url(default_url(settings, make=False))}"


def lasting(url: str) -> str:
    """Returns the URL, and refuses one whose database is gone when the command ends."""
    if url.lower().startswith("memory:"):
        raise InvalidRequest(
            "memory:// lives within one process: a command would find nothing there and leave nothing behind. "
            "Name an SQLite file, a PostgreSQL or a server by --url or KAGZI_URL"
        )
    return url


async def expect_tables(store: Store, url: str) -> None:
    """Refuses a database without Kagzi's tables, lest a command that only looks makes one out of a typing error."""
    if len(await store.missing_migrations()) == store.schema_version:
        raise NotFound(
            f"there is no database of Kagzi's at {mask_url(url)}, and this command makes none. Check the URL (--url, "
            "KAGZI_URL); an app, a worker, `kagzi start` or `kagzi migrate` make one where there is none"
        )


@asynccontextmanager
async def engine_of(loaded: Loaded, *, make: bool = False) -> AsyncIterator[ManagedEngine]:
    """Opens an engine where the settings say. Only a command that says `make` creates a database that is not there
    yet."""
    settings = loaded.settings
    check_name(settings.namespace, "namespace")
    url = lasting(default_url(settings, make=make))
    engine = connect(
        url,
        retention_days=settings.retention_days,
        listen_url=settings.listen_url,
        credentials=credentials_of(loaded),
        **engine_settings(settings),
    )
    if isinstance(engine, LocalEngine) and not make:
        await expect_tables(engine.store, url)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


def seconds(span: Span) -> float:
    return span / SECOND

"""Every setting of Kagzi, in one table, and how it gets its value.

`Settings` is the table: a field `server_port` is the environment variable KAGZI_SERVER_PORT and the key `port` under
`[server]` in `kagzi.toml` (or `[tool.kagzi.server]` in pyproject.toml). Whoever comes first decides:

    flags of the command  >  environment  >  kagzi.toml, else [tool.kagzi]  >  the default in the table

`load()` reads them and refuses what it does not know, because a misspelt setting that is silently ignored is found out
in production. Every value remembers where it came from (`kagzi doctor` shows it); secrets may be given as the path of a
file in a variable that ends in _FILE, and are masked wherever they are shown. A file of another user is not read: who
works in a directory that others can write to would run their app, and show them keys. docs/settings.md is made from
the table (`python -m kagzi.cli.reference`).
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from kagzi.core.key import mask_keys
from kagzi.core.limits import NAME_CHARACTERS, PAYLOAD_BYTES, PAYLOAD_WARNING_BYTES
from kagzi.errors import InvalidRequest
from kagzi.owners import read_trusted

PREFIX: Final = "KAGZI_"
FILE_NAME: Final = "kagzi.toml"
_SHARED_FILE_NAME: Final = "pyproject.toml"
MASK: Final = "***"
DATA_DIRECTORY: Final = ".kagzi"
DEFAULT: Final = "default"  # the source of what nobody has set
_GROUPS: Final = ("server", "http", "ui", "tls", "auth", "coordinator", "worker", "payload", "log")
_SECRET_BYTES: Final = 64 * 1024
_PROJECT_FILE_BYTES: Final = 1024 * 1024
log = logging.getLogger("kagzi")

_SECRET_URL: Final = {"secret": "url"}  # the password in it is one
_SECRET_TEXT: Final = {"secret": "text"}
_MOST_SECONDS: Final = 86_400.0

_Url = Annotated[str, Meta(min_length=1, max_length=10_000, pattern=r"^[A-Za-z][A-Za-z0-9+.-]*://")]
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
_Path = Annotated[str, Meta(min_length=1, max_length=4096)]
_Port = Annotated[int, Meta(ge=0, le=65_535)]
_Count = Annotated[int, Meta(ge=1, le=100_000)]
_Bytes = Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)]
_Seconds = Annotated[float, Meta(ge=0.1, le=_MOST_SECONDS)]


class Settings(Struct, frozen=True, kw_only=True):
    """The table: names, types, defaults, and what each of them does."""

    url: Annotated[
        _Url | None,
        Meta(
            description="Where runs live: a database (`sqlite:///file.db`, `postgresql://…`, `memory://`) or a server "
            "(`grpc://host:50051`, several with commas between). "
            "For apps made without a URL, and for commands. Without it KAGZI_DB_URL is taken, and without that an "
            "SQLite file in `.kagzi/` of the project.",
            extra=_SECRET_URL,
        ),
    ] = None
    db_url: Annotated[
        _Url | None,
        Meta(
            description="The database of `kagzi server`, `migrate`, `keys` and `audit`. Without it KAGZI_URL is taken.",
            extra=_SECRET_URL,
        ),
    ] = None
    listen_url: Annotated[
        _Url | None,
        Meta(
            description="Where to LISTEN for wake-ups if KAGZI_DB_URL leads to a PgBouncer in transaction mode: the "
            "PostgreSQL behind it. Without it processes behind a PgBouncer look for work once a second.",
            extra=_SECRET_URL,
        ),
    ] = None
    namespace: Annotated[_Name, Meta(description="The namespace of apps and commands that name none.")] = "default"
    app: Annotated[
        _Name | None,
        Meta(
            description="The app of `kagzi worker`: `module:attribute` or `path.py:attribute`. Without a URL, other "
            "commands look where it lives."
        ),
    ] = None

    server_host: Annotated[
        _Name,
        Meta(
            description="The address `kagzi server` listens on. Other machines cannot reach 127.0.0.1; any other "
            "address needs TLS and keys, or `--insecure`."
        ),
    ] = "127.0.0.1"
    server_port: Annotated[_Port, Meta(description="The port for gRPC; 0 takes a free one.")] = 50051
    server_db_max_connections: Annotated[
        Annotated[int, Meta(ge=7, le=1000)],
        Meta(description="The most PostgreSQL connections a server opens. They are opened when they are needed."),
    ] = 50

    server_starts_per_second: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(
            description="How many runs a second may be started in one namespace through one server; beyond that "
            "callers are told to try again, and our own clients do. Without it, as many as anybody likes."
        ),
    ] = None
    server_reflection: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="Whether gRPC reflection answers, for tools that have no `.proto` at hand: `auto` on 127.0.0.1 "
            "while no keys are asked for, `on` everywhere and for everybody. It tells what can be called, and no data."
        ),
    ] = "auto"

    http_host: Annotated[
        _Name, Meta(description="The address of the HTTP port. The same rules hold as for KAGZI_SERVER_HOST.")
    ] = "127.0.0.1"
    http_port: Annotated[
        _Port,
        Meta(
            description="The port for HTTP: dashboard, `/api/v1`, `/metrics`, `/livez`, `/readyz`; 0 takes a free one."
        ),
    ] = 8420

    ui_enabled: Annotated[
        Literal["on", "off"],
        Meta(description="Whether the HTTP port shows the dashboard; without it there are `/api/v1` and probes alone."),
    ] = "on"
    ui_read_only: Annotated[
        Literal["on", "off"],
        Meta(description="With `on` the dashboard shows everything and changes nothing, whoever is logged in."),
    ] = "off"
    ui_session_secs: Annotated[
        _Seconds,
        Meta(description="How long somebody stays logged in to the dashboard, where keys are asked for."),
    ] = 43_200.0

    tls_cert: Annotated[
        _Path | None,
        Meta(description="A server's certificate with its chain, as a PEM file; a client's own, where servers ask."),
    ] = None
    tls_key: Annotated[_Path | None, Meta(description="The private key of KAGZI_TLS_CERT, as a PEM file.")] = None
    tls_ca: Annotated[
        _Path | None,
        Meta(
            description="The authorities whose servers a `grpcs://` client trusts, as a PEM file. Without it, "
            "the usual ones."
        ),
    ] = None
    tls_client_ca: Annotated[
        _Path | None,
        Meta(
            description="The authorities whose clients a server lets in, as a PEM file. With it every client "
            "needs a certificate."
        ),
    ] = None

    auth_key: Annotated[
        _Name | None,
        Meta(description="The API key that clients, workers and commands show to a server.", extra=_SECRET_TEXT),
    ] = None
    auth_key_file: Annotated[
        _Path | None,
        Meta(description="A file with that key instead. It is read again when it changes, without a restart."),
    ] = None

    auth_pepper: Annotated[
        _Name | None,
        Meta(
            description="A secret of all servers on a database that is mixed into the digests of API keys: whoever "
            "reads the database alone cannot even try keys. Keys made with another one, or without, open nothing.",
            extra=_SECRET_TEXT,
        ),
    ] = None

    coordinator_interval_secs: Annotated[
        _Seconds, Meta(description="How often a process looks for due work of which nobody told it.")
    ] = 1.0
    coordinator_batch_size: Annotated[
        _Count, Meta(description="How many rows a background duty handles in one transaction.")
    ] = 100
    coordinator_max_workflows_per_tick: Annotated[
        _Count, Meta(description="How many rows a background duty handles before the other duties have their turn.")
    ] = 1000
    coordinator_worker_stale_threshold_secs: Annotated[
        _Seconds, Meta(description="A worker without a heartbeat for this long counts as lost.")
    ] = 30.0

    worker_poll_timeout_secs: Annotated[
        _Seconds, Meta(description="How long a worker's request for work waits for some.")
    ] = 60.0
    worker_heartbeat_interval_secs: Annotated[
        _Seconds | None,
        Meta(
            description="How often workers send heartbeats. Without it a third of "
            "KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS, which is 10 seconds. Over `grpc://` the server's setting decides."
        ),
    ] = None
    worker_visibility_timeout_secs: Annotated[
        _Seconds,
        Meta(
            description="How long a lease lasts: the runs of a dead worker go to others after this long. Over "
            "`grpc://` the server's setting decides."
        ),
    ] = 30.0
    worker_blocking_calls: Annotated[
        Literal["warn", "error", "off"],
        Meta(
            description="What becomes of `open()`, connections, processes, `time.sleep()` and threads in workflow "
            "code: a warning for each place, an error that fails the run, or nothing. With `--strict`, in the test kit "
            "and in `kagzi dev` a warning is an error. Where they are errors, steps cost some percent more."
        ),
    ] = "warn"

    payload_warn_threshold_bytes: Annotated[
        _Bytes, Meta(description="Inputs and results above this size are logged as a warning.")
    ] = PAYLOAD_WARNING_BYTES
    payload_max_size_bytes: Annotated[
        _Bytes,
        Meta(
            description="Inputs and results above this size are refused. Through a server its limit counts, too, "
            "and 5 MiB at most."
        ),
    ] = PAYLOAD_BYTES

    retention_days: Annotated[
        Annotated[int, Meta(ge=0, le=36_500)],
        Meta(
            description="How many days a namespace keeps finished runs, if it is made from now on; `default` is made "
            "with the tables. It is stored with the namespace, so that all processes agree."
        ),
    ] = 30

    log_format: Annotated[
        Literal["auto", "pretty", "json"],
        Meta(
            description="How commands log: `pretty` for people, `json` a line each; `auto` is `pretty` on a terminal."
        ),
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="What commands log at least.")
    ] = "info"


class Loaded(Struct, frozen=True):
    """Settings, where each of them came from, and the file that was read."""

    settings: Settings
    sources: dict[str, str]
    file: Path | None = None

    def from_file(self, field: str) -> bool:
        """Says whether kagzi.toml or pyproject.toml decided, which rank below flags and the environment."""
        return self.sources[field] in (FILE_NAME, _SHARED_FILE_NAME)

    def shown(self) -> Iterator[tuple[str, str, str]]:
        """Variable, value fit for showing, source; in the order of the table."""
        for field in Settings.__struct_fields__:
            yield variable(field), show(field, getattr(self.settings, field)), self.sources[field]


class Flag(Struct, frozen=True):
    """A value given on the command line; None was not given."""

    name: str
    value: object


def load(
    flags: Mapping[str, Flag] | None = None,
    environ: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Loaded:
    """Read every setting; `flags` by field. Raises InvalidRequest with all that is wrong, and what is accepted."""
    problems: list[str] = []
    given = _from_flags(flags or {})
    for field, (source, value) in _from_environment(os.environ if environ is None else environ, problems).items():
        given.setdefault(field, (source, value))
    file, in_file = _from_file(start or Path.cwd(), problems)
    for field, (source, value) in in_file.items():
        given.setdefault(field, (source, value))
    values: dict[str, Any] = {}
    for field, (source, value) in given.items():
        try:
            values[field] = _convert(field, value)
        except ValueError:
            problems.append(f"{_named(field, source)} must be {accepted(field)}{_not_this(field, value)}")
    if not problems:
        settings = Settings(**values)
        problems += _contradictions(settings)
        if not problems:
            return Loaded(
                settings,
                {field: given[field][0] if field in given else DEFAULT for field in Settings.__struct_fields__},
                file,
            )
    if len(problems) == 1:
        raise InvalidRequest(problems[0])
    raise InvalidRequest("\n".join([f"{len(problems)} settings cannot be used:", *(f"  {line}" for line in problems)]))


# The table, as the rest of this module needs it.


def variable(field: str) -> str:
    return PREFIX + field.upper()


def key(field: str) -> str:
    """Where it stands in a file: `server.port`, or `url` without a table."""
    group, _, rest = field.partition("_")
    return f"{group}.{rest}" if group in _GROUPS else field


def default(field: str) -> object:
    return Settings.__struct_defaults__[Settings.__struct_fields__.index(field)]


def description(field: str) -> str:
    return next(meta.description for meta in reversed(_metas(field)) if meta.description is not None)


def is_secret(field: str) -> bool:
    return _secret(field) is not None


def _secret(field: str) -> str | None:
    """What kind of secret it holds: `url`, of which the password is one, or `text`, which is one as a whole."""
    return next((meta.extra["secret"] for meta in _metas(field) if meta.extra and "secret" in meta.extra), None)


def accepted(field: str) -> str:
    """What may be given, in words."""
    kind = _kind(field)
    if get_origin(kind) is Literal:
        *most, last = get_args(kind)
        return f"{', '.join(most)} or {last}"
    bounds = _metas(field)
    least = next((meta.ge for meta in bounds if meta.ge is not None), None)
    most_ = next((meta.le for meta in bounds if meta.le is not None), None)
    longest = next((meta.max_length for meta in bounds if meta.max_length is not None), None)
    if kind is int:
        return f"a whole number from {least:,} to {most_:,}"
    if kind is float:
        return f"a number of seconds from {least:g} to {most_:,.0f}"
    return (
        "a URL such as sqlite:///orders.db or postgresql://user@host/orders"
        if _secret(field) == "url"
        else f"text of 1 to {longest} characters"
    )


def show(field: str, value: object) -> str:
    """A value as people may see it."""
    if value is None:
        return "-"
    if kind := _secret(field):
        return mask_url(str(value)) if kind == "url" else MASK
    return f"{value:g}" if isinstance(value, float) else str(value)


def mask_url(url: str) -> str:
    """The URL without what must not be seen: the password, wherever it stands, and API keys."""
    url = mask_keys(url)
    try:
        parts = urlsplit(url)
        user, colon, _ = parts.netloc.rpartition("@")[0].partition(":")
    except ValueError:
        return MASK
    if not parts.scheme or "://" not in url:
        return MASK
    if ":" in parts.netloc and "@" not in parts.netloc and "@" in url:
        # A password with `/`, `?` or `#` in it that was not written as %XX: where it ends is anybody's guess.
        return f"{parts.scheme}://{MASK}"
    login = f"{user}:{MASK}@" if colon else f"{user}@" if user else ""
    query = re.sub(r"(?i)\b([^=&]*(?:password|secret|token|key)[^=&]*)=[^&]*", rf"\1={MASK}", parts.query)
    # Not urlunsplit, which leaves out slashes where there is no host.
    shown = f"{parts.scheme}://{login}{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{shown}?{query}" if query else shown


def _hint(field: str) -> Any:
    return _HINTS[field]


_HINTS: Final = get_type_hints(Settings, include_extras=True)


def _parts(annotation: Any) -> Iterator[Any]:
    """Every part of an annotation, the innermost last."""
    if get_origin(annotation) is Annotated:
        inner, *metas = get_args(annotation)
        yield from metas
        yield from _parts(inner)
    elif get_origin(annotation) in (Union, UnionType):
        for option in get_args(annotation):
            yield from _parts(option)
    else:
        yield annotation


def _metas(field: str) -> list[Meta]:
    return [part for part in _parts(_hint(field)) if isinstance(part, Meta)]


def _kind(field: str) -> Any:
    return next(part for part in _parts(_hint(field)) if not isinstance(part, Meta) and part is not type(None))


# Where values come from.

Given = dict[str, tuple[str, object]]  # by field: the source and the value


def _from_flags(flags: Mapping[str, Flag]) -> Given:
    return {field: (flag.name, flag.value) for field, flag in flags.items() if flag.value is not None}


# What Kubernetes puts into every container beside a Service whose name begins with "kagzi".
_KUBERNETES_NAME = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_KUBERNETES_VALUE = re.compile(r"^(tcp|udp|sctp)://")
_BETWEEN_OURS: Final = frozenset({"KAGZI_WORKER_CHILD"})  # what one process of Kagzi tells another; no setting
_RETIRED = re.compile(r"^KAGZI_(SCHEDULER|WATCHDOG)_(\w+)$")


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> Given:
    fields = {variable(field): field for field in Settings.__struct_fields__}
    given: Given = {}
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        value = environ[name].strip()
        if name in _BETWEEN_OURS:
            continue
        if name.startswith("KAGZI_TEST_") or _KUBERNETES_VALUE.match(value) or _KUBERNETES_NAME.search(name):
            continue
        field = fields.get(name)
        from_file = fields.get(name.removesuffix("_FILE")) if name.endswith("_FILE") else None
        if field is not None:
            if value:
                given[field] = (name, value)
        elif from_file is not None and is_secret(from_file):
            if not value:
                continue
            if environ.get(variable(from_file), "").strip():
                problems.append(f"{variable(from_file)} and {name} are both set; one of them has to go")
            elif (text := read_secret(name, value, problems)) is not None:
                given[from_file] = (name, text)
        else:
            problems.append(_unknown_variable(name, fields))
    return given


def _unknown_variable(name: str, fields: Mapping[str, str]) -> str:
    if retired := _RETIRED.match(name):
        replacement = f"KAGZI_COORDINATOR_{retired[2]}"
        return f"{name} was retired; use {replacement if replacement in fields else 'the KAGZI_COORDINATOR_* settings'}"
    close = difflib.get_close_matches(name, fields, n=1, cutoff=0.7)
    advice = f"did you mean {close[0]}?" if close else "docs/settings.md lists all of them"
    return f"{name} is not a setting of Kagzi; {advice}"


def read_secret(name: str, path: str, problems: list[str]) -> str | None:
    """The text of the file that this variable names; None, and what is wrong, if there is none."""
    try:
        with open(path, "rb") as file:
            data = file.read(_SECRET_BYTES + 1)
        text = data.decode().strip()
    except OSError as error:
        problems.append(f"{name} names a file that cannot be read ({error.strerror or type(error).__name__}): {path}")
        return None
    except ValueError:
        problems.append(f"{name} names a file that is not text: {path}")
        return None
    if not text or len(data) > _SECRET_BYTES:
        problems.append(f"{name} names a file that is {'too large' if text else 'empty'}: {path}")
        return None
    return text


def project_directory(start: Path) -> Path:
    """The nearest directory upward that has a `.kagzi/` or a pyproject.toml, else the one we are in."""
    for directory in (start, *start.parents):
        if (directory / DATA_DIRECTORY).is_dir() or (directory / "pyproject.toml").is_file():
            return directory
    return start


def _from_file(start: Path, problems: list[str]) -> tuple[Path | None, Given]:
    """kagzi.toml or [tool.kagzi] of pyproject.toml, the nearest one between here and the project's directory."""
    project = project_directory(start)
    for directory in (start, *start.parents):
        own = directory / FILE_NAME
        if own.is_file() and (table := _read_toml(own, problems)) is not None:
            return own, _flatten(table, FILE_NAME, problems)
        shared = directory / _SHARED_FILE_NAME
        if shared.is_file() and (table := _read_toml(shared, problems)) is not None:
            tools = table.get("tool")
            ours = tools.get("kagzi") if isinstance(tools, dict) else None
            if ours is not None:
                return shared, _flatten(ours, _SHARED_FILE_NAME, problems)
        if directory == project:
            break
    return None, {}


def _read_toml(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Returns what the file says, None if it belongs to another user."""
    try:
        data = read_trusted(path)
        if data is not None:
            return tomllib.loads(data.decode())
        if path.name == FILE_NAME or _mentions_us(path):
            log.warning(
                "%r is ignored because it belongs to another user; if you trust it, make it your own (chown), or set "
                "KAGZI_URL, KAGZI_APP and the like in the environment",
                str(path),
            )
        return None
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror or type(error).__name__}")
    except (ValueError, RecursionError) as error:  # malformed, or not UTF-8
        problems.append(f"{path} is not valid TOML: {error}")
    return {}


def _mentions_us(shared: Path) -> bool:
    with shared.open("rb") as file:
        return b"tool.kagzi" in file.read(_PROJECT_FILE_BYTES)


def _flatten(table: object, file: str, problems: list[str]) -> Given:
    fields = {key(field): field for field in Settings.__struct_fields__}
    given: Given = {}
    if not isinstance(table, dict):
        problems.append(f"tool.kagzi in {file} must be a table")
        return given
    entries: list[tuple[str, object]] = []
    for name, value in table.items():
        if name in _GROUPS and isinstance(value, dict):
            entries += [(f"{name}.{inner}", entry) for inner, entry in value.items()]
        else:
            entries.append((name, value))
    for name, value in entries:
        field = fields.get(name)
        if field is not None:
            given[field] = (file, value)
            continue
        close = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(fields)}"
        problems.append(f"{name} in {file} is not a setting of Kagzi; {advice}")
    return given


def _convert(field: str, value: object) -> object:
    # Text from the environment may stand for a number; a file says itself what is text.
    converted: object = msgspec.convert(value, _hint(field), strict=not isinstance(value, str))
    if converted is None or converted != converted:
        raise ValueError("not a value")
    if isinstance(converted, str) and ("\0" in converted or not converted.strip()):
        raise ValueError("not text that can be used")
    return converted


def _named(field: str, source: str) -> str:
    if source.endswith(".toml"):
        return f"{key(field)} in {source}"
    return source


def _not_this(field: str, value: object) -> str:
    return "" if is_secret(field) else f", not {value!r:.100}"


def _contradictions(settings: Settings) -> Iterator[str]:
    heartbeat, lease = settings.worker_heartbeat_interval_secs, settings.worker_visibility_timeout_secs
    if heartbeat is not None and heartbeat >= lease:
        yield (
            f"KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS ({heartbeat:g}) must be shorter than "
            f"KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS ({lease:g}); a third of it is a good choice"
        )
    if (settings.tls_cert is None) is not (settings.tls_key is None):
        yield "KAGZI_TLS_CERT and KAGZI_TLS_KEY belong together; one of them is missing"
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        yield "KAGZI_TLS_CLIENT_CA needs KAGZI_TLS_CERT and KAGZI_TLS_KEY: clients show certificates over TLS only"
    if settings.auth_key is not None and settings.auth_key_file is not None:
        yield "KAGZI_AUTH_KEY and KAGZI_AUTH_KEY_FILE are both set; one of them has to go"
    if settings.payload_warn_threshold_bytes > settings.payload_max_size_bytes:
        yield (
            f"KAGZI_PAYLOAD_WARN_THRESHOLD_BYTES ({settings.payload_warn_threshold_bytes:,}) must not be above "
            f"KAGZI_PAYLOAD_MAX_SIZE_BYTES ({settings.payload_max_size_bytes:,})"
        )


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

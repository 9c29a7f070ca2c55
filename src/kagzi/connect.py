"""Composition root of a client process: a URL in, an engine out.

memory://                            in memory, gone with the process
sqlite:///orders.db                  a file, relative to the working directory
sqlite:////var/lib/orders.db         a file, absolute
postgresql://user@host:5432/orders   PostgreSQL 14 or later (also postgres://); several hosts with commas between
grpc://host:50051                    a Kagzi server; several with commas between, any of which will do
grpcs://:kgz_…@host:50051            the same with TLS, and an API key (better in KAGZI_AUTH_KEY)
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from kagzi.api.engine import ManagedEngine
from kagzi.clock import SystemClock
from kagzi.coordinator.coordinator import Coordinator
from kagzi.core.address import is_loopback
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, MissingDependency
from kagzi.owners import is_trusted
from kagzi.rpc.missing import grpc_is_missing
from kagzi.settings import DATA_DIRECTORY, Loaded, Settings, mask_url, project_directory, variable
from kagzi.store.migrate import RETENTION_DAYS
from kagzi.store.protocol.store import Store

_SERVER_LANES = 2  # one for starts and one for chunks, since the calls that bring those are batches already
_CONNECTIONS_OF_THEIR_OWN = _SERVER_LANES + 2  # and the announcer and the listener
ACCEPTED = (
    "memory://, sqlite:///file.db, sqlite:////absolute/file.db, postgresql://user@host/database or grpc://host:50051"
)
SERVER_PORT = 50051
log = logging.getLogger("kagzi")


class Credentials(Struct, frozen=True, kw_only=True):
    """What a client shows to a server, and whom it trusts: an API key or the file it is in, and PEM files."""

    key: str | None = None
    key_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


def connect(
    url: str,
    *,
    retention_days: int = RETENTION_DAYS,
    listen_url: str | None = None,
    credentials: Credentials | None = None,
    **settings: Any,
) -> ManagedEngine:
    """An engine for this database or server, not yet opened. Settings are the fields of `EngineSettings`; a server has
    its own, and is shown the credentials. `retention_days` is for namespaces that do not exist yet."""
    try:
        chosen = EngineSettings(**settings)
    except TypeError:
        known = ", ".join(EngineSettings.__struct_fields__)
        unknown = ", ".join(sorted(set(settings) - set(EngineSettings.__struct_fields__)))
        raise InvalidRequest(f"unknown setting: {unknown}; there are {known}") from None
    if is_server(url):
        return _remote(url, credentials or Credentials())
    return LocalEngine(
        make_store(url, retention_days=retention_days, listen_url=listen_url), settings=chosen, coordinate=Coordinator
    )


def is_server(url: object) -> bool:
    return str(url).partition("://")[0].lower() in ("grpc", "grpcs")


def engine_settings(settings: Settings) -> dict[str, Any]:
    """What the settings say of an engine, as fields of `EngineSettings`."""
    heartbeat = settings.worker_heartbeat_interval_secs
    return {
        "lease": round(settings.worker_visibility_timeout_secs * SECOND),
        "heartbeat": None if heartbeat is None else round(heartbeat * SECOND),
        "worker_stale": round(settings.coordinator_worker_stale_threshold_secs * SECOND),
        "tick": round(settings.coordinator_interval_secs * SECOND),
        "duty_batch": settings.coordinator_batch_size,
        "duty_limit": settings.coordinator_max_workflows_per_tick,
        "payload_bytes": settings.payload_max_size_bytes,
        "payload_warning": settings.payload_warn_threshold_bytes,
        "key_pepper": (settings.auth_pepper or "").encode(),
    }


def credentials_of(loaded: Loaded, *, url: str | None = None, key: str | None = None) -> Credentials:
    """Returns what is shown to the server of the settings, or of this URL from code: the key of the settings, or this
    one. Refuses to show a key to an address that a file chose and the key's owner did not."""
    settings = loaded.settings
    address = None if url else "url" if settings.url else "db_url" if settings.db_url else None
    if address is not None and loaded.from_file(address):
        _check_rank(loaded, address, key)
    return Credentials(
        key=key or settings.auth_key,
        key_file=None if key else settings.auth_key_file,
        tls_ca=settings.tls_ca,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
    )


def _check_rank(loaded: Loaded, address: str, key: str | None) -> None:
    """Refuses to show a key from code or environment to the address of a file: who can write the file could collect
    the keys of all who come by."""
    url = str(getattr(loaded.settings, address))
    fields = [name for name in ("auth_key", "auth_key_file") if getattr(loaded.settings, name) is not None]
    if not is_server(url) or "@" in url or not (key or fields):
        return
    if key is None and loaded.from_file(fields[0]):
        return
    source = "the key given in code" if key else f"the key from {loaded.sources[fields[0]]}"
    raise InvalidRequest(
        f"{source} is not shown to {mask_url(url)}, because that address comes from {str(loaded.file)!r}, which ranks "
        f"below it. If the address is right, say so where the key is: set {variable(address)}, or use --url; or put "
        "auth.key_file beside the address"
    )


def default_url(settings: Settings, start: Path | None = None, *, make: bool = True) -> str:
    """What the settings say, else an SQLite file in the `.kagzi/` of the project we are in. The directory is made if
    need be, unless somebody only wants to know."""
    if url := settings.url or settings.db_url:
        return url
    directory = project_directory(start or Path.cwd()) / DATA_DIRECTORY
    try:
        if make:
            directory.mkdir(mode=0o700, exist_ok=True)
        if directory.exists() and not is_trusted(directory):
            raise InvalidRequest(
                f"the database in {str(directory)!r} belongs to another user, who could read and change your runs; "
                "set KAGZI_URL to where yours should be, or to this one if you trust it"
            )
        if make:
            ignore = directory / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
    except OSError as error:
        raise InvalidRequest(
            f"cannot keep a database in {directory} ({error.strerror}); set KAGZI_URL to where it should be"
        ) from error
    return f"sqlite:///{quote((directory / 'kagzi.db').as_posix())}"


def make_store(
    url: object,
    *,
    connections: int | None = None,
    retention_days: int = RETENTION_DAYS,
    listen_url: str | None = None,
) -> Store:
    """The database behind a URL, not yet opened; on PostgreSQL with at most so many connections, and if need be with
    another way to it for wake-ups."""
    if not isinstance(url, str) or "://" not in url or "\0" in url:
        raise InvalidRequest(f"that is not a database URL; accepted: {ACCEPTED}")
    # Never the URL itself in a message: it may contain a password.
    scheme = url.partition("://")[0].lower()
    match scheme:
        case "memory":
            if url.partition("://")[2]:
                raise InvalidRequest("memory:// takes nothing after the slashes")
            return _sqlite(None, retention_days)
        case "sqlite":
            return _sqlite(_sqlite_path(url), retention_days)
        case "postgresql" | "postgres":
            return _postgres(url, connections, retention_days, listen_url)
        case "grpc" | "grpcs":
            raise InvalidRequest(f"{scheme}:// is a Kagzi server and not a database, which is needed here")
        case _:
            raise InvalidRequest(f"unknown database scheme {scheme[:50]!r}; accepted: {ACCEPTED}")


def _remote(url: str, credentials: Credentials) -> ManagedEngine:
    try:
        parts = urlsplit(url)
        servers = [urlsplit(f"//{server}") for server in parts.netloc.rpartition("@")[2].split(",")]
        hosts = [(server.hostname or "", server.port or SERVER_PORT) for server in servers]
    except ValueError:
        raise InvalidRequest(
            "the address of the server is malformed; its form is grpc://host:50051, or grpc://one:50051,two:50051"
        ) from None
    if not all(host for host, _ in hosts) or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidRequest("a server is named by host and port alone, for example grpc://localhost:50051")
    if "@" in parts.netloc and not parts.password:
        # A user name is shown where a password is not.
        raise InvalidRequest("an API key in a URL is its password: grpcs://:kgz_…@host:50051; or set KAGZI_AUTH_KEY")
    key = unquote(parts.password) if parts.password else credentials.key
    # Else gRPC tries to come along when this process forks, as step bodies may, and now and then kills the child.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import grpc  # noqa: F401  (so that what is missing has this name)

        from kagzi.rpc.client.authorization import FixedKey, KeyInFile, nothing
        from kagzi.rpc.client.remote import RemoteEngine
        from kagzi.rpc.tls import ClientTls
    except ModuleNotFoundError as error:
        raise grpc_is_missing(error) from error
    metadata = nothing
    if key is not None:
        metadata = FixedKey(key)
    elif credentials.key_file is not None:
        metadata = KeyInFile(credentials.key_file, SystemClock().monotonic)
    tls = None
    if parts.scheme == "grpcs":
        tls = ClientTls(ca=credentials.tls_ca, cert=credentials.tls_cert, key=credentials.tls_key)
    elif metadata is not nothing and (far := [host for host, _ in hosts if not is_loopback(host)]):
        log.warning(
            "the API key travels to %s as plain text; use grpcs:// where the way is not your own", ", ".join(far)
        )
    target = ",".join([f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts])
    return RemoteEngine(target, tls=tls, metadata=metadata)


def _sqlite_path(url: str) -> str:
    rest = url.partition("://")[2]
    if not rest.startswith("/"):
        raise InvalidRequest(f"sqlite:// needs a third slash before the path: sqlite:///{rest.split('@')[-1][:100]}")
    path, question, _ = rest[1:].partition("?")
    path = unquote(path)
    if question:
        raise InvalidRequest("sqlite:// takes no options after `?`")
    if path in ("", "/") or path.endswith("/"):
        raise InvalidRequest("sqlite:// needs the name of a file, for example sqlite:///orders.db")
    if path == ":memory:":
        raise InvalidRequest("for a database in memory use memory://")
    return path


def _sqlite(path: str | None, retention_days: int) -> Store:
    from kagzi.store.sqlite.store import SqliteStore

    return SqliteStore(path, retention_days=retention_days)


def _postgres(url: str, connections: int | None, retention_days: int, listen_url: str | None) -> Store:
    try:
        from kagzi.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("asyncpg"):
            raise
        raise MissingDependency('Postgres support is not installed. Run: pip install "kagzi[postgres]"') from error
    if connections is None:
        return PostgresStore(url, retention_days=retention_days, listen_url=listen_url)
    pool_size = max(1, connections - _CONNECTIONS_OF_THEIR_OWN)
    return PostgresStore(
        url, pool_size=pool_size, lanes=_SERVER_LANES, retention_days=retention_days, listen_url=listen_url
    )

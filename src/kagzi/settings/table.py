"""Every setting of Kagzi: its field, type, bounds, default and description."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from kagzi.core.limits import NAME_CHARACTERS, PAYLOAD_BYTES, PAYLOAD_WARNING_BYTES

GROUPS: Final = ("server", "http", "ui", "tls", "auth", "coordinator", "worker", "payload", "log")
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

    public_url: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_000, pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")] | None,
        Meta(
            extra={"accepted": "an address such as https://kagzi.example.org"},
            description="The address under which people reach the HTTP port, if a proxy stands before it, such as "
            "`https://kagzi.example.org`. Forms of the dashboard are taken from there, too.",
        ),
    ] = None
    trusted_proxies: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            extra={"accepted": "addresses and networks with commas between"},
            description="The proxies before the HTTP port whose `X-Forwarded-For` is believed: addresses or networks "
            "with commas between, such as `10.0.0.0/8,127.0.0.1`. The audit log then names the peer that they name.",
        ),
    ] = None

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

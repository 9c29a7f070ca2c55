"""Reading a PostgreSQL URL.

It may name several servers, as psql understands it: `postgresql://user@a:5432,b:5432/orders`, or `?host=a,b`. Each
becomes a URL of its own, because the driver would try them one after the other and wait for a dead one until all
its time is gone. Three options are for us and not passed on: `pgbouncer`, `target_session_attrs`, `connect_timeout`.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from msgspec import Struct

from kagzi.errors import InvalidRequest

CONNECT_SECONDS: Final = 10.0
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
# We write, so whatever is said has to lead to a server that takes writes; `any` does not say otherwise.
_WRITABLE: Final = frozenset({"read-write", "primary", "any"})


class Address(Struct, frozen=True):
    """The address of the database: a URL for each of its servers, and our own options."""

    servers: tuple[str, ...]  # a URL each
    where: str  # in words fit for a message: without the password and without options
    pooled: bool | None  # whether a PgBouncer is in between; None: to be found out
    connect_seconds: float


def read_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        user, hosts = parts.username, parts.netloc.rpartition("@")[2]
        for host in hosts.split(","):
            _ = urlsplit(f"//{host}").port
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    except ValueError:
        # The parser's own message may quote the part with the password.
        raise InvalidRequest(
            "the PostgreSQL URL is malformed; its form is postgresql://user:password@host:5432/database, "
            "with special characters in the password written as %XX"
        ) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidRequest("a PostgreSQL URL begins with postgresql://")
    pooled = _yes_or_no(options.pop("pgbouncer", None))
    seconds = _seconds(options.pop("connect_timeout", None))
    if options.pop("target_session_attrs", "any") not in _WRITABLE:
        raise InvalidRequest("Kagzi writes; target_session_attrs in the PostgreSQL URL must be read-write")
    where = f"{hosts or options.get('host') or 'the local socket'}{parts.path}" + (f" as {user}" if user else "")
    return Address(tuple(_servers(parts, hosts, options)), where, pooled, seconds)


def _servers(parts: SplitResult, hosts: str, options: dict[str, str]) -> list[str]:
    if hosts:
        login = parts.netloc[: len(parts.netloc) - len(hosts)]
        each = [parts._replace(netloc=f"{login}{host}", query=urlencode(options)) for host in hosts.split(",")]
    else:
        names = options.pop("host", "").split(",")
        ports = options.pop("port", "").split(",")
        if len(ports) not in (1, len(names)):
            raise InvalidRequest("the PostgreSQL URL needs one port, or as many as it has hosts")
        ports = ports * len(names) if len(ports) == 1 else ports
        each = [
            parts._replace(
                query=urlencode(options | ({"host": name} if name else {}) | ({"port": port} if port else {}))
            )
            for name, port in zip(names, ports, strict=True)
        ]
    # Not geturl(), which leaves out slashes where there is no host.
    return [f"{one.scheme}://{one.netloc}{one.path}" + (f"?{one.query}" if one.query else "") for one in each]


def _yes_or_no(text: str | None) -> bool | None:
    if text is None or text.lower() == "auto":
        return None
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise InvalidRequest("pgbouncer in the PostgreSQL URL must be true, false or auto")


def _seconds(text: str | None) -> float:
    if text is None:
        return CONNECT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise InvalidRequest("connect_timeout in the PostgreSQL URL must be a number of seconds")
    return seconds

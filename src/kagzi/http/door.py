"""How requests come to the port: by which proxies, under which name, and whether they are answered without API keys.

A request that a proxy passes on looks like one of this machine: it comes from 127.0.0.1, and many proxies put the name
of the server in the place of the one that was asked for, so no header proves that it is local. Without keys nobody is
answered, therefore, unless the developer says that no proxy stands before the port (`LOCAL`); a request that shows
signs of one is refused even then.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from kagzi.core.address import is_loopback
from kagzi.errors import InvalidRequest
from kagzi.http.problems import Refused
from kagzi.ports.keyless import Keyless

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORTS: Final = {"http": 80, "https": 443}
_OF_PROXIES: Final = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip"}
)


class Door:
    """`names` are those of this machine beside `localhost`; `advice` says how the developer lets others in without
    keys; `public_url` is the address that people use (KAGZI_PUBLIC_URL), and `proxies` are those whose word about the
    peer is believed (KAGZI_TRUSTED_PROXIES)."""

    def __init__(
        self,
        keyless: Keyless,
        *,
        names: frozenset[str] = frozenset(),
        advice: str = "make one with `kagzi keys create`",
        public_url: str | None = None,
        proxies: Sequence[Network] = (),
    ) -> None:
        self.keyless = keyless
        self._names = names
        self._advice = advice
        self._public_origin = None if public_url is None else _origin(public_url)
        self._proxies = proxies

    def refusal(self, request: Request) -> Refused | None:
        """Returns why a request is not answered while there are no keys."""
        if self.keyless is Keyless.ANYBODY:
            return None
        if self.keyless is Keyless.NOBODY:
            return Refused(403, "NO_KEYS", f"there are no API keys, so nobody is let in: {self._advice}")
        if not all(is_local(host, self._names) for host in request.headers.getlist("host") or ("",)):
            return Refused(
                421, "MISDIRECTED_REQUEST", "this server is for its own machine: ask for it as 127.0.0.1 or localhost"
            )
        if request.client is None or not is_loopback(request.client.host) or _through_proxy(request):
            return Refused(403, "NO_KEYS", f"there are no API keys, so only this machine is let in: {self._advice}")
        return None

    def is_own(self, origin: str, host: str) -> bool:
        """Whether a page of this origin is one of ours, which a browser asked for under the name `host`. Behind a
        proxy that puts another name there, KAGZI_PUBLIC_URL says what people see."""
        name = origin.partition("://")[2].lower()
        return bool(name) and (name == host.lower() or _origin(origin) == self._public_origin)

    def see(self, scope: Scope) -> None:
        """Notes the real peer of a request that a trusted proxy has passed on."""
        if not self._proxies or scope.get("client") is None:
            return
        peer: str = scope["client"][0]
        hops = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
        while hops and self._trusts(peer):
            if _address(said := hops.pop().strip()) is None:
                break
            peer = said
        scope["client"] = (peer, 0 if peer != scope["client"][0] else scope["client"][1])

    def _trusts(self, peer: str) -> bool:
        address = _address(peer)
        return address is not None and any(address in network for network in self._proxies)


def read_proxies(text: str | None) -> tuple[Network, ...]:
    """Reads KAGZI_TRUSTED_PROXIES: addresses or networks, with commas between."""
    try:
        return tuple([ipaddress.ip_network(part.strip()) for part in (text or "").split(",") if part.strip()])
    except ValueError as error:
        raise InvalidRequest(
            f"KAGZI_TRUSTED_PROXIES: {error}; it takes addresses and networks, for example 10.0.0.0/8,127.0.0.1"
        ) from None


def is_local(header: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this machine. A page of another site can make its own name lead here (DNS
    rebinding), and then it comes with that name."""
    name = header.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    return name in names or is_loopback(name)


def _origin(url: str) -> str | None:
    """Returns scheme, host and port of an address, as browsers write them: the usual port is left out."""
    try:
        parts = urlsplit(url.lower())
        port = "" if parts.port in (None, _PORTS.get(parts.scheme)) else f":{parts.port}"
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.hostname}{port}"


def _through_proxy(request: Request) -> bool:
    """Whether there are signs of a proxy. No browser and no common client speaks HTTP/1.0; proxies do."""
    return request.scope.get("http_version") == "1.0" or any(
        name in _OF_PROXIES or name.startswith("x-forwarded-") for name in request.headers
    )


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None

"""What every request goes through.

    Entrance: a request id, security headers, the log ─▶ room for one more ─▶ Starlette's router
    ─▶ Endpoint: the gate ─▶ reading ─▶ the route's work, within its time ─▶ the answer, or a problem

The API trusts no browser: it knows no cookies and no CORS, and what changes something takes JSON by POST alone, which
no page of another site can send without a permission that is never given. Pages, if there are any, are another kind of
endpoint with sessions and forms of their own (`pages.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote, unquote_to_bytes

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kagzi import tracing
from kagzi.access import Gate
from kagzi.access.shares import Shares
from kagzi.api.keys import AuditService
from kagzi.errors import LimitExceeded, Unavailable
from kagzi.http import limits
from kagzi.http.call import Host
from kagzi.http.endpoint import Endpoint
from kagzi.http.pace import Pace
from kagzi.http.pages import PageEndpoint, Pages, trouble_response, wants_page
from kagzi.http.problems import Refused, problem_response
from kagzi.http.routes import API, Route
from kagzi.ports.requests import HEADER
from kagzi.ports.requests import request_id as name_request

log = logging.getLogger("kagzi.http")

_SECURITY: Final = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def make_app(
    host: Host,
    routes: Sequence[Route],
    *,
    gate: Gate,
    audit: AuditService | None,
    body_bytes: int,
    pages: Pages | None = None,
) -> ASGIApp:
    requests = Shares(limits.REQUESTS_PER_KEY, "requests")
    streams = Shares(limits.STREAMS_PER_KEY, "streams")
    endpoints: dict[str, dict[str, Endpoint]] = {}
    for route in routes:
        endpoint = Endpoint(route, host, gate, audit, body_bytes, streams if route.streams else requests)
        endpoints.setdefault(route.path, {})[route.method] = endpoint
    if pages is not None:
        for route in pages.routes:
            shares = streams if route.streams else requests
            page = PageEndpoint(pages, route, host, gate, audit, body_bytes, shares)
            endpoints.setdefault(route.path, {})[route.method] = page

    async def not_here(request: Request, error: Exception) -> Response:
        if pages is not None and wants_page(request) and not request.url.path.startswith(f"{API}/"):
            return trouble_response(pages, request, Refused(404, "NO_SUCH_PAGE", "there is no page at this address"))
        return await _not_here(request, error)

    app = Starlette(
        routes=[
            StarletteRoute(path, _Methods(path, by_method), methods=list(by_method))
            for path, by_method in endpoints.items()
        ],
        exception_handlers={HTTPException: not_here, Exception: _nobody_foresaw},
    )
    app.router.redirect_slashes = False
    return Entrance(app, host, probes=frozenset(route.path for route in routes if route.public))


class Entrance:
    """Around everything, refusals included."""

    def __init__(self, app: ASGIApp, host: Host, *, probes: frozenset[str]) -> None:
        self._app = app
        self._host = host
        self._probes = probes
        self._pace = Pace()
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["path"] = address(scope["raw_path"])
        self._host.door.see(scope)
        base: str = scope.get("root_path", "")
        probe = scope["path"].removeprefix(base) in self._probes
        if not probe:
            await self._pace.wait()
        request = Request(scope)
        request_id = name_request(request.headers.items(), self._host.ids)
        scope["kagzi.request_id"] = request_id
        loop = asyncio.get_running_loop()
        began, status = loop.time(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        self._under_way += 1
        try:
            refusal = self._refusal(request, probe)
            if refusal is not None:
                await problem_response(refusal, request_id)(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        except OSError:
            pass  # the caller has gone
        except asyncio.CancelledError:
            if status or not self._host.closing.is_set():
                raise
            stopping = Refused(503, Unavailable.code, "the server is stopping; ask another one, or again later")
            await problem_response(stopping, request_id)(scope, receive, answer)
        finally:
            self._under_way -= 1
            taken = loop.time() - began
            route = getattr(scope.get("endpoint"), "path", "")
            self._host.engine.metrics.http_answered(request.method, route, status, taken)
            _log(request, status, taken, request_id)

    def _refusal(self, request: Request, probe: bool) -> Exception | None:
        # Whoever is told that a busy server does not live would start it anew, and have all of them come again.
        if self._under_way > limits.REQUESTS + limits.STREAMS and not probe:
            return LimitExceeded("too many requests are under way; trying again later is safe")
        if "transfer-encoding" in request.headers and "content-length" in request.headers:
            # Where a body ends is then a matter of opinion: what a proxy took for the rest of it may be a request here.
            return Refused(
                400,
                "AMBIGUOUS_LENGTH",
                "content-length and transfer-encoding are both given; send one of them",
                headers={"connection": "close"},
            )
        if sum(len(name) + len(value) for name, value in request.headers.raw) > limits.HEADER_BYTES:
            return Refused(431, "HEADERS_TOO_LARGE", f"the headers are larger than {limits.HEADER_BYTES:,} bytes")
        if len(request.scope["raw_path"]) + len(request.scope["query_string"]) > limits.TARGET_BYTES:
            return Refused(414, "URI_TOO_LONG", f"the address is longer than {limits.TARGET_BYTES:,} bytes")
        return None


class _Methods:
    """The endpoints of one path."""

    def __init__(self, path: str, by_method: dict[str, Endpoint]) -> None:
        self.path = path
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        # What is not UTF-8 is refused by whoever reads the name.
        scope["path_params"] = {
            name: unquote(value, errors="surrogateescape") for name, value in scope["path_params"].items()
        }
        await self._by_method[method](Request(scope, receive, send), send)


async def _not_here(request: Request, error: Exception) -> Response:
    """What Starlette refuses by itself."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        refused = Refused(404, "NO_SUCH_ROUTE", "there is nothing at this address; /api/v1/openapi.json lists what is")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refused = Refused(405, "METHOD_NOT_ALLOWED", f"this address takes {allowed} only", headers={"allow": allowed})
    else:
        refused = Refused(error.status_code, "INVALID_ARGUMENT", "the request cannot be answered")
    return problem_response(refused, request.scope["kagzi.request_id"])


async def _nobody_foresaw(request: Request, error: Exception) -> Response:
    return problem_response(error, request.scope["kagzi.request_id"])


def address(raw_path: bytes) -> str:
    """The path as routes see it: each segment in its one spelling, still encoded. A name may contain anything, so that
    a slash in it must not be one of the path, and dots in it lead nowhere."""
    return "/".join(quote(unquote_to_bytes(segment), safe="") for segment in raw_path.split(b"/"))


def _log(request: Request, status: int, seconds: float, request_id: str) -> None:
    extra: dict[str, object] = {"request_id": request_id}
    if trace := tracing.from_headers(request.headers):
        extra["trace_id"], extra["span_id"] = trace.split("-")[1:3]
    level = logging.DEBUG if request.url.path in ("/livez", "/readyz", "/metrics") else logging.INFO
    log.log(level, "%s %.500s %d in %.1f ms", request.method, request.url.path, status, seconds * 1000, extra=extra)

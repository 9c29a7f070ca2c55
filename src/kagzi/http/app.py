"""What every request goes through.

    Entrance: a request id, security headers, the log ─▶ the host asked for ─▶ room for one more ─▶ Starlette's router
    ─▶ Endpoint: the gate ─▶ reading ─▶ the route's work, within its time ─▶ the answer, or a problem

Nothing here trusts a browser: there are no cookies, no CORS, and what changes something takes JSON by POST alone, which
no page of another site can send without a permission that is never given.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kagzi import tracing
from kagzi.access import ACTIONS, Caller, Gate, shown_key
from kagzi.access.shares import Shares
from kagzi.api.keys import AuditService
from kagzi.core.audit import OK, AuditEntry
from kagzi.core.namespace import DEFAULT_NAMESPACE
from kagzi.errors import LimitExceeded, Unavailable
from kagzi.http import limits
from kagzi.http.call import Call, Host, Reply, Stream, Text
from kagzi.http.pace import Pace
from kagzi.http.problems import Refused, code_of, naming, problem_response
from kagzi.http.reading import named_namespace, read_body, read_path, read_query
from kagzi.http.routes import Route
from kagzi.http.streaming import Streaming
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
    local_names: frozenset[str] | None,
) -> ASGIApp:
    """`local_names`: only requests for these hosts are answered while no keys are asked for; None: for any."""
    requests = Shares(limits.REQUESTS_PER_KEY, "requests")
    streams = Shares(limits.STREAMS_PER_KEY, "streams")
    endpoints: dict[str, dict[str, Endpoint]] = {}
    for route in routes:
        endpoint = Endpoint(route, host, gate, audit, body_bytes, streams if route.streams else requests)
        endpoints.setdefault(route.path, {})[route.method] = endpoint
    app = Starlette(
        routes=[
            StarletteRoute(path, _Methods(path, by_method), methods=list(by_method))
            for path, by_method in endpoints.items()
        ],
        exception_handlers={HTTPException: _not_here, Exception: _nobody_foresaw},
    )
    app.router.redirect_slashes = False
    return Entrance(app, host, gate, local_names, probes=frozenset(route.path for route in routes if route.public))


class Entrance:
    """Around everything, refusals included."""

    def __init__(
        self, app: ASGIApp, host: Host, gate: Gate, local_names: frozenset[str] | None, *, probes: frozenset[str]
    ) -> None:
        self._app = app
        self._host = host
        self._gate = gate
        self._local_names = local_names
        self._probes = probes
        self._pace = Pace()
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["path"] = address(scope["raw_path"])
        if scope["path"] not in self._probes:
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
            refusal = await self._refusal(request)
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

    async def _refusal(self, request: Request) -> Exception | None:
        # Whoever is told that a busy server does not live would start it anew, and have all of them come again.
        if self._under_way > limits.REQUESTS + limits.STREAMS and request.scope["path"] not in self._probes:
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
        if self._local_names is not None and not is_local(request.headers.get("host", ""), self._local_names):
            try:
                asked_for_keys = await self._gate.configured()
            except Exception as error:
                return error
            if not asked_for_keys:
                return Refused(
                    421,
                    "MISDIRECTED_REQUEST",
                    "this server is for its own machine: ask for it as 127.0.0.1 or localhost",
                )
        return None


class Endpoint:
    """One route at work."""

    def __init__(
        self, route: Route, host: Host, gate: Gate, audit: AuditService | None, body_bytes: int, shares: Shares
    ) -> None:
        self._route = route
        self._shares = shares
        self._host = host
        self._gate = gate
        self._audit = audit
        self._body_bytes = body_bytes
        self._under_way = 0
        self._most = limits.STREAMS if route.streams else limits.REQUESTS
        waits = "wait" in route.query.__struct_fields__
        self._seconds = limits.REQUEST_SECONDS + (limits.LONGEST_WAIT_SECONDS if waits else 0)

    async def __call__(self, request: Request, send: Send) -> None:
        self._under_way += 1
        try:
            async with AsyncExitStack() as held:
                response = await self._respond(request, held)
                await response(request.scope, request.receive, send)
        finally:
            self._under_way -= 1

    async def _respond(self, request: Request, held: AsyncExitStack) -> ASGIApp:
        """`held` is what the request holds of the server until its answer is sent."""
        request_id: str = request.scope["kagzi.request_id"]
        caller: Caller | None = None
        code = OK
        try:
            if self._under_way > self._most:
                raise LimitExceeded("too many requests are under way; trying again later is safe")
            async with asyncio.timeout(self._seconds):
                caller = await self._admit(request)
                if caller is None:
                    return await self._answer(request, None, held)
                held.enter_context(self._shares.held(caller))
                with self._gate.call(caller):
                    return await self._answer(request, caller, held)
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except TimeoutError:
            slow = Refused(504, "TIMEOUT", "the server could not answer in time; trying again is safe")
            code = slow.code
            return problem_response(slow, request_id)
        except Exception as error:
            code = code_of(error)
            return problem_response(error, request_id)
        finally:
            self._record(request, caller, request_id, code)

    async def _admit(self, request: Request) -> Caller | None:
        if self._route.public:
            return None
        namespace = request.path_params.get("namespace", named_namespace(request))
        peer = request.client.host if request.client else ""
        with naming("namespace"):
            return await self._gate.admit(
                self._route.action,
                key=shown_key(request.headers.get("authorization")),
                namespace=namespace,
                peer=peer,
                request_id=lambda: request.scope["kagzi.request_id"],
                target=lambda: _storable(_target(request.path_params)),
            )

    async def _answer(self, request: Request, caller: Caller | None, held: AsyncExitStack) -> ASGIApp:
        route = self._route
        path = read_path(request)
        query = read_query(request, route.query)
        named = path.get("namespace", getattr(query, "namespace", None)) or ""
        body = None
        if route.body is not None:
            _refuse_other_sites(request)
            if caller is not None:
                await self._make_room(request, caller, held)
            body = await read_body(request, route.body, self._body_bytes)
            # What is made here has no place in the address yet.
            request.scope["kagzi.made"] = getattr(body, "namespace", "")
        call: Call[Any, Any] = Call(
            self._host,
            namespace=(named if caller is None else caller.confine(named)) or DEFAULT_NAMESPACE,
            path=path,
            query=query,
            body=body,
            headers=request.headers,
            request_id=request.scope["kagzi.request_id"],
            confined=caller is not None and caller.namespace is not None,
        )
        if caller is not None and ACTIONS[route.action].reads and getattr(query, "wait", None) is None:
            async with self._gate.reads.turn(caller):
                result = await self._handle(call)
        else:
            result = await self._handle(call)
        if isinstance(result, Stream):
            return Streaming(result, self._host, None if caller is None else self._gate.call(caller))
        if isinstance(result, Text):
            return Response(result.data, 200, media_type=result.media_type)
        if not isinstance(result, Reply):
            result = Reply(document=result, status=route.status)
        return Response(msgspec.json.encode(result.document), result.status, result.headers, "application/json")

    async def _make_room(self, request: Request, caller: Caller, held: AsyncExitStack) -> None:
        """Waits until there is room for the body, of which nothing is read before."""
        length = request.headers.get("content-length", "")
        known = length.isascii() and length.isdigit() and len(length) <= 15
        size = min(self._body_bytes, int(length)) if known else self._body_bytes
        room = self._gate.room(self._route.action, caller)
        await room.take(size)
        held.callback(room.give, size)

    async def _handle(self, call: Call[Any, Any]) -> Struct | Reply | Stream | Text:
        """As part of the caller's trace, if it says that there is one."""
        call.trace = tracing.from_headers(call.headers)
        if call.trace is None or (tracer := call.host.tracer) is None:
            return await self._route.handle(call)
        with tracing.serving(tracer, self._route.action, call.trace):
            call.trace = tracing.current()
            return await self._route.handle(call)

    def _record(self, request: Request, caller: Caller | None, request_id: str, code: str) -> None:
        rule = ACTIONS.get(self._route.action)
        if self._audit is None or caller is None or rule is None or not rule.audited:
            return
        parameters = {"namespace": request.scope.get("kagzi.made", ""), **request.path_params}
        named = parameters["namespace"] or named_namespace(request) or caller.namespace
        if not named and not rule.everywhere:
            named = DEFAULT_NAMESPACE
        self._audit.record(
            AuditEntry(
                actor=caller.actor,
                action=self._route.action,
                namespace=_storable(named) if named else None,
                target=_storable(_target(parameters)),
                request_id=request_id,
                peer=caller.peer,
                result=code,
            )
        )


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


def is_local(header: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this machine. A page of another site can make its own name lead here (DNS
    rebinding), and then it comes with that name."""
    name = header.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name in names or name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _refuse_other_sites(request: Request) -> None:
    """Browsers say where a request comes from; one from another site is refused even if it says that it is JSON."""
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refused(403, "CROSS_SITE", "requests from pages of other sites are refused")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        raise Refused(403, "CROSS_SITE", "requests from pages of other sites are refused")


def _target(parameters: Mapping[str, str]) -> str:
    """In the words of the gRPC port."""
    for name in ("run_id", "worker_id", "namespace"):
        if value := parameters.get(name):
            return f"{name.removesuffix('_id')} {value}"
    return ""


def _storable(text: str) -> str:
    """What was sent as a name, in a form that every database takes."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:255]


def _log(request: Request, status: int, seconds: float, request_id: str) -> None:
    extra: dict[str, object] = {"request_id": request_id}
    if trace := tracing.from_headers(request.headers):
        extra["trace_id"], extra["span_id"] = trace.split("-")[1:3]
    level = logging.DEBUG if request.url.path in ("/livez", "/readyz", "/metrics") else logging.INFO
    log.log(level, "%s %.500s %d in %.1f ms", request.method, request.url.path, status, seconds * 1000, extra=extra)

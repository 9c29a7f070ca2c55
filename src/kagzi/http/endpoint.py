"""One route at work: the gate, reading, the route's own work within its time, and the answer or a problem."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Send

from kagzi import tracing
from kagzi.access import ACTIONS, Caller, Gate, shown_key
from kagzi.access.shares import Shares
from kagzi.api.keys import AuditService
from kagzi.core.audit import OK, AuditEntry
from kagzi.core.namespace import DEFAULT_NAMESPACE
from kagzi.errors import LimitExceeded, Unavailable
from kagzi.http import limits
from kagzi.http.call import Call, Host, Reply, Result, Stream, Text
from kagzi.http.problems import Refused, code_of, naming, problem_response
from kagzi.http.reading import is_packed, named_namespace, read_body, read_path, read_query
from kagzi.http.routes import Route
from kagzi.http.streaming import Streaming

USER: Final = "kagzi.user"  # in the scope: whom the web app around us has let in


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
        self._body_bytes = limits.PUBLIC_BYTES if route.public else self._most_bytes(body_bytes)
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
            if not (self._route.alone or self._route.public or self._host.reachable()):
                raise Unavailable("the server cannot reach its database; ask another one, or again later")
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
            return self._problem(request, slow)
        except Exception as error:
            code = code_of(error)
            return self._problem(request, error)
        finally:
            self._record(request, caller, request_id, code)

    async def _admit(self, request: Request) -> Caller | None:
        if self._route.public:
            return None
        namespace = request.path_params.get("namespace", named_namespace(request))
        with naming("namespace"):
            caller = await self._gate.admit(
                self._route.action,
                key=shown_key(request.headers.get("authorization")),
                session=self._session(request),
                namespace=namespace,
                peer=_peer(request),
                request_id=lambda: request.scope["kagzi.request_id"],
                target=lambda: _storable(_target(request.path_params)),
            )
        if caller.key_id is None and (refusal := self._host.door.refusal(request)) is not None:
            raise refusal
        user: str | None = request.scope.get(USER)
        return caller if user is None else msgspec.structs.replace(caller, user=user)

    async def _answer(self, request: Request, caller: Caller | None, held: AsyncExitStack) -> ASGIApp:
        route = self._route
        path = read_path(request)
        query = self._read_query(request)
        named = path.get("namespace", getattr(query, "namespace", None)) or ""
        body = None
        if route.body is not None:
            self._refuse_other_sites(request)
            if caller is not None:
                await self._make_room(request, caller, held)
            body = await self._read_body(request)
        namespace = (named if caller is None else caller.confine(named)) or DEFAULT_NAMESPACE
        call = self._call(request, caller, namespace=namespace, path=path, query=query, body=body)
        request.scope["kagzi.call"] = call
        if caller is not None and ACTIONS[route.action].reads and getattr(query, "wait", None) is None:
            async with self._gate.reads.turn(caller):
                result = await self._handle(call)
        else:
            result = await self._handle(call)
        return self._written(result, call)

    # What pages do in another way.

    def _session(self, request: Request) -> str | None:  # noqa: ARG002
        return None

    def _read_query(self, request: Request) -> Struct:
        return read_query(request, self._route.query)

    async def _read_body(self, request: Request) -> Struct:
        assert self._route.body is not None
        return await read_body(request, self._route.body, self._body_bytes)

    def _most_bytes(self, body_bytes: int) -> int:
        """Returns how large a body may be, where `body_bytes` are the bound of those that are JSON."""
        return body_bytes

    def _call(self, request: Request, caller: Caller | None, **fields: Any) -> Call[Any, Any]:
        return Call(
            self._host,
            headers=request.headers,
            request_id=request.scope["kagzi.request_id"],
            caller=caller,
            peer=_peer(request),
            base=request.scope.get("root_path", ""),
            encrypted=request.url.scheme == "https",
            **fields,
        )

    def _written(self, result: Result, call: Call[Any, Any]) -> ASGIApp:
        if isinstance(result, Stream):
            return Streaming(result, self._host, None if call.caller is None else self._gate.call(call.caller))
        if isinstance(result, Text):
            return Response(result.data, 200, media_type=result.media_type)
        if not isinstance(result, Reply):
            assert isinstance(result, Struct)
            result = Reply(document=result, status=self._route.status)
        return Response(msgspec.json.encode(result.document), result.status, result.headers, "application/json")

    def _problem(self, request: Request, error: Exception) -> Response:
        return problem_response(error, request.scope["kagzi.request_id"])

    def _refuse_other_sites(self, request: Request) -> None:
        """Browsers say where a request comes from; one from another site is refused even if it says that it is
        JSON."""
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refused(403, "CROSS_SITE", "requests from pages of other sites are refused")
        origin = request.headers.get("origin")
        if origin is not None and not self._host.door.is_own(origin, request.headers.get("host", "")):
            raise Refused(
                403,
                "CROSS_SITE",
                "requests from pages of other sites are refused; if a proxy stands before this server, say with "
                "KAGZI_PUBLIC_URL under which address people reach it",
            )

    async def _make_room(self, request: Request, caller: Caller, held: AsyncExitStack) -> None:
        """Waits until there is room for the body as it will be unpacked. Nothing of it is read before."""
        length = request.headers.get("content-length", "")
        known = length.isascii() and length.isdigit() and len(length) <= 15 and not is_packed(request)
        size = min(self._body_bytes, int(length)) if known else self._body_bytes
        room = self._gate.room(self._route.action, caller)
        await room.take(size)
        held.callback(room.give, size)

    async def _handle(self, call: Call[Any, Any]) -> Result:
        """Answers the call, within the caller's trace if its headers name one."""
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
        call: Call[Any, Any] | None = request.scope.get("kagzi.call")
        # What is made here has no place in the address yet.
        made = "" if call is None else getattr(call.body, "namespace", "")
        named = request.path_params.get("namespace") or made or named_namespace(request) or caller.namespace
        if not named and not rule.everywhere:
            named = DEFAULT_NAMESPACE
        targets = call.targets if call is not None and call.targets else (_target(request.path_params),)
        for target in targets:
            self._audit.record(
                AuditEntry(
                    actor=caller.actor,
                    action=self._route.action,
                    namespace=_storable(named) if named else None,
                    target=_storable(target),
                    request_id=request_id,
                    peer=caller.peer,
                    result=code,
                )
            )


def _target(parameters: Mapping[str, str]) -> str:
    """In the words of the gRPC port."""
    for name in ("run_id", "job_id", "schedule_id", "worker_id", "queue", "workflow", "namespace"):
        if value := parameters.get(name):
            return f"{name.removesuffix('_id')} {value}"
    return ""


def _storable(text: str) -> str:
    """What was sent as a name, in a form that every database takes."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:255]


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""

"""Pages: the second kind of route, with forms instead of JSON and a session instead of a header.

    PageEndpoint: the cookie's session ─▶ the gate ─▶ query and form ─▶ the page's work ─▶ HTML, or that of an error

What is shown and which pages there are is the business of `kagzi.dashboard`, which is given to the port as `Pages`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from kagzi.access import Caller
from kagzi.errors import Unauthenticated
from kagzi.http.call import Asset, Call, Html, PayloadCodec, Redirect, Result
from kagzi.http.endpoint import USER, Endpoint
from kagzi.http.limits import FORM_BYTES
from kagzi.http.problems import Refused, describe
from kagzi.http.reading import read_form, read_query
from kagzi.http.routes import Route
from kagzi.http.sessions import cookie_name

FORM_TOKEN: Final = "form_token"
# Scripts and styles are files of ours; nothing is fetched from elsewhere, framed, or sent to anybody else.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    # With `no-referrer` a browser would call the origin of our own forms `null`.
    "referrer-policy": "same-origin",
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Trouble(Struct, frozen=True, kw_only=True):
    """An error as its page shows it."""

    status: int
    detail: str
    request_id: str
    base: str
    path: str


class Pages(Struct, frozen=True, kw_only=True):
    """Every page, and how one looks that cannot be shown. `read_only`: no form changes anything. `codec`: payloads are
    shown as that of their app reads them, and what forms write is encoded by it."""

    routes: tuple[Route, ...]
    trouble: Callable[[Trouble], bytes]
    read_only: bool = False
    codec: PayloadCodec | None = None
    session_seconds: float


class PageEndpoint(Endpoint):
    """A page at work."""

    def __init__(self, pages: Pages, route: Route, *rest: Any) -> None:
        super().__init__(route, *rest)
        self._pages = pages

    def _session(self, request: Request) -> str | None:
        shown = "authorization" in request.headers
        return None if shown else self._host.sessions.read(session_of(request))

    def _read_query(self, request: Request) -> Struct:
        return read_query(request, self._route.query, blanks=False)

    async def _read_body(self, request: Request) -> Struct:
        assert self._route.body is not None
        session = session_of(request)

        def check(token: str) -> None:
            if not self._host.sessions.owns_form(token, session):
                raise Refused(403, "STALE_FORM", "this form is too old or not one of ours; load its page again")
            if self._pages.read_only and not self._route.public:
                raise Refused(403, "READ_ONLY", "this dashboard is read-only (KAGZI_UI_READ_ONLY)")

        return await read_form(
            request, self._route.body, self._body_bytes, FORM_TOKEN, check, packed=not self._route.public
        )

    def _most_bytes(self, body_bytes: int) -> int:  # noqa: ARG002
        return FORM_BYTES

    def _call(self, request: Request, caller: Caller | None, **fields: Any) -> Call[Any, Any]:
        call = super()._call(request, caller, **fields)
        call.session = session_of(request)
        call.read_only = self._pages.read_only
        call.codec = self._pages.codec
        return call

    def _written(self, result: Result, call: Call[Any, Any]) -> ASGIApp:
        if isinstance(result, Html):
            return Response(result.data, result.status, dict(HEADERS), "text/html; charset=utf-8")
        if isinstance(result, Redirect):
            response = RedirectResponse(f"{call.base}{result.to}", 303)
            if result.session is not None:
                host = call.headers.get("host", "")
                response.set_cookie(
                    cookie_name(host),
                    result.session,
                    max_age=round(self._host.sessions.seconds) if result.session else 0,
                    path=call.base or "/",
                    secure=_is_encrypted(call),
                    httponly=True,
                    samesite="strict",
                )
            return response
        if isinstance(result, Asset):
            return Response(result.data, 200, {"cache-control": result.caching}, result.media_type)
        return super()._written(result, call)

    def _problem(self, request: Request, error: Exception) -> Response:
        base: str = request.scope.get("root_path", "")
        if isinstance(error, Unauthenticated) and request.method in ("GET", "HEAD"):
            here = request.url.path.removeprefix(base) + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{base}/login?next={quote(here, safe='')}", 303)
        return trouble_response(self._pages, request, error)


def trouble_response(pages: Pages, request: Request, error: Exception) -> Response:
    request_id: str = request.scope["kagzi.request_id"]
    status, _, detail, headers = describe(error, request_id)
    base: str = request.scope.get("root_path", "")
    trouble = Trouble(status=status, detail=detail, request_id=request_id, base=base, path=request.url.path)
    return Response(pages.trouble(trouble), status, {**headers, **HEADERS}, "text/html; charset=utf-8")


def session_of(request: Request) -> str | None:
    """Returns what forms are bound to: the session's cookie, or whom the web app around us has let in."""
    user: str | None = request.scope.get(USER)
    return request.cookies.get(cookie_name(request.headers.get("host", ""))) if user is None else user


def wants_page(request: Request) -> bool:
    """Returns whether a browser asks for this."""
    return request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")


def _is_encrypted(call: Call[Any, Any]) -> bool:
    """Behind a proxy that ends TLS only the browser knows: it says so by the origin of the form."""
    return call.encrypted or call.headers.get("origin", "").startswith("https://")

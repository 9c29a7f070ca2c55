"""`app.asgi()`: the HTTP API and the dashboard inside a web app of the user's own, below any path.

It is what a server has on its HTTP port, on the engine of the app. Who may use it is decided by `auth`, a function of
the web app around it, else by API keys. While there are neither, nobody is answered, or this machine alone if the
developer says that nobody else comes here (`local`): behind a proxy all requests look as if they were of this machine.
An app on a server (`grpc://`) shows that its own key, and here nobody is asked for one: whoever gets in does what the
app may do.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from kagzi.access import Gate
from kagzi.api.engine import Engine, ManagedEngine
from kagzi.clock import Clock
from kagzi.engine.audit import Audit
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest
from kagzi.http import limits
from kagzi.http.app import address, make_app
from kagzi.http.call import Host, PayloadCodec, ServedEngine
from kagzi.http.door import Door
from kagzi.http.endpoint import USER
from kagzi.http.problems import Refused, problem_response
from kagzi.http.relayed import NoKeys, RelayedEngine
from kagzi.http.routes import ROUTES
from kagzi.ids import IdSource
from kagzi.ports.keyless import Keyless
from kagzi.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SILENCE_SECONDS: Final = 5.0
# A stream of events would keep the web server from ending for as long as somebody looks at a page. Browsers ask again.
_STREAM_SECONDS: Final = 20.0
_STREAMS: Final = ("/live", "/api/v1/events")
_PROBES: Final = ("/livez", "/readyz")  # they say nothing but whether this process lives and is ready
_USER_CHARACTERS: Final = 200
_ADVICE: Final = (
    "make one with `kagzi keys create`, let your own code decide with app.asgi(auth=may_see), or mount "
    "app.asgi(local=True) while you develop and no proxy stands before this"
)

Auth = Callable[["Request"], object]


class Mounted:
    """The HTTP port of an app as an ASGI application."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        settings: Callable[[], Settings],
        *,
        clock: Clock,
        ids: IdSource,
        local: bool,
        auth: Auth | None,
        read_only: bool | None,
        codec: PayloadCodec | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._local = local
        self._auth = auth
        self._read_only = read_only
        self._codec = codec
        self._of: Engine | None = None  # the engine that what follows was made for
        self._gate: Gate
        self._host: Host
        self._app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        base: str = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        local = path.removeprefix(base) if path.startswith(f"{base}/") or path == base else path
        if not local:  # `/kagzi`, from which relative addresses would lead elsewhere
            await _redirect(f"{base}/", send)
            return
        raw = scope.get("raw_path") or path.encode()
        prefix = base.encode()
        scope = {**scope, "root_path": base}
        scope["raw_path"] = raw if raw.startswith(prefix + b"/") else prefix + raw
        asked = address(scope["raw_path"]).removeprefix(base)  # what routes see
        try:
            self._make()
        except Exception as error:
            await problem_response(error, self._ids.token())(scope, receive, send)
            return
        refusal = None if self._auth is None or asked in _PROBES else await _refused_by(self._auth, scope)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif asked in _STREAMS:
            await _for_a_while(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def close(self) -> None:
        """Ends requests, because the app is about to be closed."""
        if self._of is not None:
            self._of = None
            self._host.closing.set()
            await self._host.checkups.close()
            await self._gate.close()

    def _make(self) -> None:
        try:
            engine = self._engine()
        except InvalidRequest as error:
            detail = f"{error}; a web app opens it by lifespan=app.lifespan()"
            raise Refused(503, "UNAVAILABLE", detail) from None
        if engine is self._of:
            return
        settings = self._settings()
        pages = None
        if settings.ui_enabled == "on":
            from kagzi.dashboard import make_pages  # templates are read when it is imported

            read_only = settings.ui_read_only == "on" if self._read_only is None else self._read_only
            pages = make_pages(read_only=read_only, session_seconds=settings.ui_session_secs, codec=self._codec)
        served: ServedEngine
        audit: Audit | None = None
        if isinstance(engine, LocalEngine):
            served, audit = engine, engine.audit
            keys = engine.keys if self._auth is None else NoKeys()
            self._gate = Gate(keys, engine.namespaces, audit=audit)
            silence = engine.silence
        else:
            far = cast("ManagedEngine", engine)
            served = RelayedEngine(far, self._clock, secret=f"{self._ids.token()}{self._ids.token()}".encode())
            self._gate = Gate(NoKeys(), far.namespaces)
            silence = _talkative
        self._host = Host(
            served,
            ready=lambda: silence() < _SILENCE_SECONDS,
            clock=self._clock,
            ids=self._ids,
            gate=self._gate,
            door=self._door(settings),
            session_seconds=settings.ui_session_secs,
        )
        self._app = make_app(
            self._host,
            ROUTES,
            gate=self._gate,
            audit=audit,
            body_bytes=settings.payload_max_size_bytes * 4 // 3 + limits.BODY_SLACK_BYTES,
            pages=pages,
        )
        self._of = engine

    def _door(self, settings: Settings) -> Door:
        keyless = Keyless.LOCAL if self._local else Keyless.NOBODY
        return Door(keyless if self._auth is None else Keyless.ANYBODY, advice=_ADVICE, public_url=settings.public_url)


async def _refused_by(auth: Auth, scope: Scope) -> ASGIApp | None:
    """Asks the web app around us whether a request is let in, and notes who it says that this is."""
    request = Request(scope)
    try:
        user = await asyncio.to_thread(auth, request)  # a `def` may wait for a database
        if inspect.isawaitable(user):
            user = await user
    except HTTPException as error:
        if "starlette.exception_handlers" in scope:
            raise  # FastAPI and Starlette answer as their handlers say
        return PlainTextResponse(error.detail, error.status_code, error.headers)
    if isinstance(user, str) and user:
        scope[USER] = user.replace("\0", "").encode("utf-8", "replace").decode()[:_USER_CHARACTERS]
    return None if user else PlainTextResponse("You may not see this page.\n", 403)


def _talkative() -> float:
    """The engine of a server has duties there, and none here that could fall silent."""
    return 0.0


async def _redirect(to: str, send: Send) -> None:
    await send({"type": "http.response.start", "status": 307, "headers": [(b"location", to.encode("latin-1"))]})
    await send({"type": "http.response.body", "body": b""})


async def _for_a_while(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    begun = ended = False

    async def note(message: Message) -> None:
        nonlocal begun, ended
        begun = begun or message["type"] == "http.response.start"
        ended = ended or (message["type"] == "http.response.body" and not message.get("more_body"))
        await send(message)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STREAM_SECONDS):
            await app(scope, receive, note)
    if begun and not ended:
        with contextlib.suppress(OSError):  # the reader has gone
            await send({"type": "http.response.body", "body": b""})

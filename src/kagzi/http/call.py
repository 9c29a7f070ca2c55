"""What a route is given: the request as records, whom it comes from, and the server it came to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Generic, Protocol, TypeVar

from msgspec import Meta, Struct

from kagzi import tracing
from kagzi.access import Caller, Gate
from kagzi.api.engine import Services
from kagzi.api.events import EventService
from kagzi.clock import Clock
from kagzi.core.lineage import PayloadContext
from kagzi.core.page import PageTokens
from kagzi.http.checkups import Checkups
from kagzi.http.door import Door
from kagzi.http.fields import Name
from kagzi.http.sessions import DEFAULT_SECONDS, Sessions
from kagzi.ids import IdSource
from kagzi.metrics.exposition import Measured
from kagzi.ports.closing import Closing

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")


class Namespaced(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of every route about something in a namespace."""

    namespace: Annotated[
        Name | None, Meta(description="The namespace; without it that of the key, else `default`.")
    ] = None


class NoQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a route that takes no parameters."""


class NothingBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request that says everything by its address: `{}`."""


class ServedEngine(Services, Measured, Protocol):
    """The engine that routes ask: one of this process, or one behind a server (`kagzi.http.relayed`)."""

    @property
    def events(self) -> EventService: ...

    @property
    def page_tokens(self) -> PageTokens: ...


class PayloadCodec(Protocol):
    """The codec of an app, by which pages show and write payloads."""

    def encode(self, data: bytes, context: PayloadContext, /) -> bytes: ...

    def decode(self, data: bytes, context: PayloadContext, /) -> bytes: ...


class Host:
    """The server as its routes see it. `ready` says whether requests should be sent here, `reachable` whether the
    database answers: without it requests are refused."""

    def __init__(
        self,
        engine: ServedEngine,
        *,
        ready: Callable[[], bool],
        clock: Clock,
        ids: IdSource,
        gate: Gate,
        door: Door,
        session_seconds: float = DEFAULT_SECONDS,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self.engine = engine
        self.reachable = reachable
        self.ready = ready
        self.clock = clock
        self.ids = ids
        self.tracer = tracing.tracer()
        self.checkups = Checkups(engine.health)
        self.closing = Closing()
        self.gate = gate
        self.door = door
        self.sessions = Sessions(engine.page_tokens, clock, session_seconds)


class Call(Generic[Q, B]):
    """One request. `namespace` is the one it means, and if it is `confined` the only one its key opens; `trace` is what
    it is part of. `caller` is None where no key is asked for. `targets` are what the audit log says was changed, where
    the address does not name it.

    Pages are told more: the path below which they are mounted (`base`), their `session`, whether they are `read_only`,
    whether the request came `encrypted`, and the `codec` of payloads, where that of their app is at hand."""

    __slots__ = (
        "base",
        "body",
        "caller",
        "codec",
        "confined",
        "encrypted",
        "headers",
        "host",
        "namespace",
        "path",
        "peer",
        "query",
        "read_only",
        "request_id",
        "session",
        "targets",
        "trace",
    )

    def __init__(
        self,
        host: Host,
        *,
        namespace: str,
        path: Mapping[str, str],
        query: Q,
        body: B,
        headers: Mapping[str, str],
        request_id: str,
        caller: Caller | None = None,
        peer: str = "",
        base: str = "",
        encrypted: bool = False,
    ) -> None:
        self.host = host
        self.caller = caller
        self.confined = caller is not None and caller.namespace is not None
        self.peer = peer
        self.base = base
        self.encrypted = encrypted
        self.session: str | None = None
        self.read_only = False
        self.codec: PayloadCodec | None = None
        self.namespace = namespace
        self.path = path
        self.query = query
        self.body = body
        self.headers = headers
        self.request_id = request_id
        self.trace: str | None = None
        self.targets: tuple[str, ...] = ()

    @property
    def engine(self) -> ServedEngine:
        return self.host.engine


class Reply(Struct, frozen=True, kw_only=True):
    """A document with a status other than the usual one."""

    document: Struct
    status: int = 200
    headers: dict[str, str] = {}


class Stream:
    """An answer without an end: its parts as they come. `close` is called when the reader has gone."""

    def __init__(self, *, parts: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        self.parts = parts
        self.close = close


class Text:
    """An answer that is not JSON."""

    def __init__(self, data: bytes, media_type: str) -> None:
        self.data = data
        self.media_type = media_type


class Html:
    """A page."""

    def __init__(self, data: bytes, status: int = 200) -> None:
        self.data = data
        self.status = status


class Redirect:
    """An answer that leads elsewhere. `session`: the cookie to keep from now on; empty: none any more."""

    def __init__(self, to: str, *, session: str | None = None) -> None:
        self.to = to
        self.session = session


class Asset:
    """A file that pages use."""

    def __init__(self, data: bytes, media_type: str, caching: str) -> None:
        self.data = data
        self.media_type = media_type
        self.caching = caching


Result = Struct | Reply | Stream | Text | Html | Redirect | Asset

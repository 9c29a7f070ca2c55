"""Listening for HTTP: `serve.Port` over uvicorn.

>>> port = HttpPort(engine, gate=gate, ready=server.ready, port=8420)
>>> await port.start()
>>> await port.stop(grace=10.0)

uvicorn speaks HTTP here and nothing else: signals, logging and the event loop are the server's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from kagzi.access import Gate
from kagzi.api.keys import AuditService
from kagzi.clock import Clock, SystemClock
from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.errors import Unavailable
from kagzi.http import limits
from kagzi.http.app import make_app
from kagzi.http.call import Host, ServedEngine
from kagzi.http.door import Door
from kagzi.http.pages import Pages
from kagzi.http.routes import ROUTES
from kagzi.http.sessions import DEFAULT_SECONDS
from kagzi.http.tls import Tls
from kagzi.ids import IdSource, RandomIds
from kagzi.ports.keyless import Keyless

log = logging.getLogger("kagzi.http")

_BACKLOG: Final = 1024
_LAST_WORD_SECONDS: Final = 0.5
_HANDSHAKE_SECONDS: Final = 10.0
_GOODBYE_SECONDS: Final = 1.0


class HttpPort:
    def __init__(
        self,
        engine: ServedEngine,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        gate: Gate,
        ready: Callable[[], bool],
        door: Door | None = None,
        reachable: Callable[[], bool] = lambda: True,
        audit: AuditService | None = None,
        tls: Tls | None = None,
        payload_bytes: int = PAYLOAD_BYTES,
        pages: Pages | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._engine = engine
        self._address = host
        self.port = port
        self._gate = gate
        self._ready = ready
        self._door = door or Door(Keyless.NOBODY)
        self._reachable = reachable
        self._audit = audit
        self._tls = tls
        self._pages = pages
        # A payload in base64 is a third longer.
        self._body_bytes = payload_bytes * 4 // 3 + limits.BODY_SLACK_BYTES
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds(self._clock.now)
        self._serving = True
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._host: Host | None = None

    @property
    def url(self) -> str:
        name = f"[{self._address}]" if ":" in self._address else self._address
        return f"{'http' if self._tls is None else 'https'}://{name}:{self.port}"

    async def start(self) -> None:
        """The engine must be open. Afterwards `port` is the one that was given, or found if that was 0."""
        pages = self._pages
        self._host = Host(
            self._engine,
            ready=lambda: self._serving and self._ready(),
            reachable=self._reachable,
            clock=self._clock,
            ids=self._ids,
            gate=self._gate,
            door=self._door,
            session_seconds=DEFAULT_SECONDS if pages is None else pages.session_seconds,
        )
        app = make_app(
            self._host,
            ROUTES,
            gate=self._gate,
            audit=self._audit,
            body_bytes=self._body_bytes,
            pages=pages,
        )
        context = None if self._tls is None else self._tls.context()
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=limits.KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=limits.HEADER_BYTES,
            limit_concurrency=limits.CONNECTIONS,
            backlog=_BACKLOG,
        )
        config.load()
        config.ssl = context
        self._server = server = _Server(config)
        listening = await self._bind()
        self.port = listening.getsockname()[1]
        self._task = asyncio.create_task(server.serve([listening]), name="kagzi-http")
        while not server.started:
            if self._task.done():
                listening.close()
                self._task.result()
                raise Unavailable(f"cannot serve HTTP on {self.url}")
            await asyncio.sleep(0)

    async def serving(self, value: bool) -> None:
        """What `/readyz` says follows by itself; this is for an end that is near."""
        self._serving = value

    async def stop(self, grace: float = 10.0) -> None:
        """Takes no new connections, ends streams and waits, lets other requests finish within the grace time."""
        server, task = self._server, self._task
        if server is None or task is None or self._host is None:
            return
        self._serving = False
        self._host.closing.set()
        server.config.timeout_graceful_shutdown = grace  # type: ignore[assignment]  # seconds, also parts of one
        hurry = server.should_exit or grace <= 0
        server.should_exit = True
        if hurry:
            await server.hurry()
        await asyncio.wait([task])
        await server.hurry()
        await self._host.checkups.close()
        self._server = None

    async def __aenter__(self) -> HttpPort:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _bind(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        name = self._address.strip("[]")
        try:
            found = await loop.getaddrinfo(name, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
            except BaseException:
                listening.close()
                raise
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise Unavailable(
                f"cannot listen on {self.url} ({reason}); is another server running there, or is the address not of "
                "this machine?"
            ) from None
        listening.setblocking(False)
        return listening


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """They are for the process, which has more than this to end."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it, with bounds on how long TLS may take to begin and to say goodbye."""
        loop = asyncio.get_running_loop()
        config = self.config
        tls = config.ssl is not None

        def make_protocol() -> asyncio.Protocol:
            return Protocol(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        self.servers = [
            await loop.create_server(
                make_protocol,
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if tls else None,
                ssl_shutdown_timeout=_GOODBYE_SECONDS if tls else None,
            )
            for each in sockets or ()
        ]
        self.started = True

    async def hurry(self) -> None:
        """Cuts off what is still under way. Callers are told so, if they can be told at once."""
        self.force_exit = True
        if tasks := list(self.server_state.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_LAST_WORD_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class Protocol(H11Protocol):
    """HTTP/1.1, with a bound on how long a connection may take to say what it wants."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._idle():
            if self._patience is None:
                self._wait()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _wait(self) -> None:
        self._patience = self.loop.call_later(limits.HEADER_SECONDS, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        self._patience = None
        if self._idle() and not self.transport.is_closing():
            self.transport.abort()

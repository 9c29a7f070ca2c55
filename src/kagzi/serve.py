"""Composition root of a server process: settings in, an engine behind open ports, an orderly end.

    SIGTERM ─▶ not ready ─▶ no new calls ─▶ calls in flight finish, for at most the grace time ─▶ engine closed ─▶ 0

A second signal stops waiting for calls in flight. Handlers are installed explicitly, because the first process of a
container (PID 1) has no default ones. A port is anything that can be started and stopped: gRPC is one, HTTP another,
and neither knows of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from kagzi.access import Gate
from kagzi.clock import SystemClock
from kagzi.connect import default_url, engine_settings, make_store
from kagzi.coordinator.coordinator import Coordinator
from kagzi.core.address import is_loopback
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, Unavailable
from kagzi.ids import RandomIds
from kagzi.ports.keyless import Keyless
from kagzi.process import OpenFiles, fewer_collections, new_event_loop
from kagzi.rpc.missing import grpc_is_missing
from kagzi.sdk.payload import Codec
from kagzi.settings import Settings, mask_url
from kagzi.version import __version__

logger = logging.getLogger("kagzi.server")

_WARN_SECONDS: Final = 60.0
# A database that has not answered for this long makes the server not ready. The look at it is a second apart.
SILENCE_SECONDS: Final = 2.5
_LOOK_SECONDS: Final = 0.5
_WITHOUT_KEYS: Final = "make one with `kagzi keys create`, or start `kagzi server --local` if no proxy stands before it"


class Port(Protocol):
    """Something that listens. `stop` refuses new calls at once and gives those in flight so many seconds."""

    @property
    def port(self) -> int: ...

    async def start(self) -> None: ...

    async def serving(self, value: bool) -> None:
        """Sets what those are told who ask whether calls should be sent here."""
        ...

    async def stop(self, grace: float) -> None: ...


MakePorts = Callable[["Server", Settings], Sequence[tuple[str, Port]]]


class Server:
    """A process that hosts an engine for others. `ready` is what its ports tell load balancers."""

    gate: Gate  # there once the engine is open, hence for ports

    def __init__(
        self,
        settings: Settings,
        *,
        make_ports: MakePorts,
        grace: float,
        local: bool = False,
        insecure: bool = False,
    ) -> None:
        check_local(settings, local=local)
        self.url = server_url(settings)
        store = make_store(
            self.url,
            connections=settings.server_db_max_connections,
            retention_days=settings.retention_days,
            listen_url=settings.listen_url,
        )
        chosen = EngineSettings(**engine_settings(settings))
        self.engine = LocalEngine(store, settings=chosen, coordinate=Coordinator)
        self._settings = settings
        self._make_ports = make_ports
        self._grace = grace
        self._local = local
        self._insecure = insecure
        self._serving = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def ready(self) -> bool:
        """Whether calls should be sent here: the database answers, and the server was not asked to stop. Costs
        nothing."""
        return self._serving and self.reachable()

    def reachable(self) -> bool:
        """Whether the database answers; while it does not, calls are refused. Costs nothing."""
        return self.engine.silence() < SILENCE_SECONDS

    def keyless(self) -> Keyless:
        """Who is answered over HTTP while there are no keys."""
        if self._insecure and (not is_loopback(self._settings.http_host) or behind_proxy(self._settings)):
            return Keyless.ANYBODY
        return Keyless.LOCAL if self._local else Keyless.NOBODY

    def shut_down(self) -> None:
        """The first call ends the server in order, the second one at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Serves until told to stop."""
        if not await self._unless_stopped(self.engine.open()):
            return
        self.gate = gate = Gate(
            self.engine.keys,
            self.engine.namespaces,
            audit=self.engine.audit,
            starts_per_second=self._settings.server_starts_per_second,
        )
        try:
            check_exposure(self._settings, keys=await gate.configured(), insecure=self._insecure)
            async with contextlib.AsyncExitStack() as open_ports:
                ports = self._make_ports(self, self._settings)
                for _, port in ports:
                    await port.start()
                    open_ports.push_async_callback(port.stop, 0.0)
                self._serving = True
                where = ", ".join(f"{name}:{port.port}" for name, port in ports)
                await self._warn()
                if self.keyless() is Keyless.NOBODY and not await gate.configured():
                    logger.info("over HTTP nobody is answered yet, because there are no API keys: %s", _WITHOUT_KEYS)
                logger.info("kagzi server %s is ready: %s; runs live in %s", __version__, where, mask_url(self.url))
                async with _beside(self._tell([port for _, port in ports])):
                    await self._wait()
                    self._serving = False
                logger.info("stopping: calls in flight have %g s to finish", self._grace)
                await self._drain([port for _, port in ports])
                open_ports.pop_all()
        finally:
            self._serving = False
            await gate.close()
            await self.engine.close()
        logger.info("kagzi server has stopped")

    async def _wait(self) -> None:
        while not await self._stopped_within(_WARN_SECONDS):
            await self._warn()

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        return self._stop.is_set()

    async def _warn(self) -> None:
        """Warns of an open address before the server is ready, and again and again while it is true."""
        with contextlib.suppress(Unavailable):
            keys = await self.gate.configured()
            if missing := check_exposure(self._settings, keys=keys, insecure=True):
                logger.warning(
                    "listening on %s without %s (--insecure): %s",
                    " and ".join(exposed_hosts(self._settings)),
                    " and ".join(missing),
                    "keys and data travel as plain text" if keys else "whoever can reach it can do anything",
                )

    async def _tell(self, ports: Sequence[Port]) -> None:
        """Tells probes within seconds that the database is gone, and that it is back. The process lives on
        meanwhile."""
        told = True
        files = OpenFiles()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            files.look()
            if (ready := self.ready()) is not told:
                told = ready
                logger.log(
                    logging.INFO if ready else logging.WARNING,
                    "ready again" if ready else "not ready: the database does not answer",
                )
                for port in ports:
                    await port.serving(ready)

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()

    async def _drain(self, ports: Sequence[Port]) -> None:
        async with _beside(self._hurry_up(ports)):
            await asyncio.gather(*(port.stop(self._grace) for port in ports))

    async def _hurry_up(self, ports: Sequence[Port]) -> None:
        await self._hurry.wait()
        logger.warning("told again: not waiting for calls in flight")
        await asyncio.gather(*(port.stop(0.0) for port in ports))

    async def _unless_stopped(self, opening: Coroutine[Any, Any, None]) -> bool:
        """Does the work unless a signal comes first: opening may take long, on a database that does not answer or has
        to be migrated."""
        task = asyncio.create_task(opening)
        stop = asyncio.create_task(self._wait_for_stop())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait([task])
        return False


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs this in a task, for as long as the block lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def serve(settings: Settings, *, local: bool = False, insecure: bool = False, grace: float = 25.0) -> None:
    """Hosts an engine until SIGTERM or SIGINT. `local`: without keys, this machine is answered over HTTP."""
    check_local(settings, local=local)
    # What can be told without the database. Whether there are keys is looked up when it is open.
    check_exposure(settings, keys=settings.tls_cert is not None, insecure=insecure)

    async def main() -> None:
        server = Server(settings, make_ports=make_ports, grace=grace, local=local, insecure=insecure)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
                loop.add_signal_handler(number, server.shut_down)
        await server.run()
        for number in (signal.SIGTERM, signal.SIGINT):
            # All is done. Being told again while the interpreter packs up must not make a failure of it.
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    gc.freeze()  # what is loaded by now stays
    with fewer_collections(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def make_ports(server: Server, settings: Settings) -> list[tuple[str, Port]]:
    """Makes the ports on which this process listens."""
    return [
        (f"gRPC on {settings.server_host}", _grpc(server, settings)),
        (f"HTTP on {settings.http_host}", make_http_port(server, settings)),
    ]


def make_http_port(server: Server, settings: Settings, codec: Codec | None = None) -> Port:
    """The HTTP port with its dashboard; with the `codec` of an app that shows payloads as it reads them."""
    # Imported here, because whoever uses Kagzi without a server has no use for a web server either.
    from kagzi.http.door import Door, read_proxies
    from kagzi.http.port import HttpPort
    from kagzi.http.tls import Tls

    pages = None
    if settings.ui_enabled == "on":
        from kagzi.dashboard import make_pages

        pages = make_pages(
            read_only=settings.ui_read_only == "on", session_seconds=settings.ui_session_secs, codec=codec
        )
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = Tls(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)
    return HttpPort(
        server.engine,
        settings.http_host,
        settings.http_port,
        gate=server.gate,
        audit=server.engine.audit,
        ready=server.ready,
        door=Door(
            server.keyless(),
            names=frozenset({settings.http_host.lower().strip("[]")}),
            advice=_WITHOUT_KEYS,
            public_url=settings.public_url,
            proxies=read_proxies(settings.trusted_proxies),
        ),
        reachable=server.reachable,
        tls=tls,
        payload_bytes=settings.payload_max_size_bytes,
        pages=pages,
    )


def _grpc(server: Server, settings: Settings) -> Port:
    try:
        from kagzi.rpc.server.guard import GateGuard
        from kagzi.rpc.server.server import RpcServer
        from kagzi.rpc.tls import ServerTls
    except ModuleNotFoundError as error:
        raise grpc_is_missing(error) from error
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = ServerTls(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca).credentials()
    ids = RandomIds(SystemClock().now)
    return RpcServer(
        server.engine,
        settings.server_host,
        settings.server_port,
        tls=tls,
        guard=GateGuard(server.gate, server.engine.audit, ids),
        reflection=_reflection(server.gate, settings),
        ids=ids,
        ready=server.reachable,
    )


def _reflection(gate: Gate, settings: Settings) -> Callable[[], Awaitable[bool]] | None:
    """Returns what decides whether reflection answers; None: it never does."""
    wanted = settings.server_reflection
    if wanted == "off" or (wanted == "auto" and not is_loopback(settings.server_host)):
        return None

    async def check() -> bool:
        return wanted == "on" or not await gate.configured()

    return check


def server_url(settings: Settings) -> str:
    """Returns the URL of a server's database, and refuses that of another server."""
    url = settings.db_url or default_url(settings)
    if url.partition("://")[0].lower() in ("grpc", "grpcs"):
        raise InvalidRequest(
            f"this needs a database, and {mask_url(url)} is a server; name the database by --url or KAGZI_DB_URL"
        )
    return url


def check_exposure(settings: Settings, *, keys: bool, insecure: bool) -> tuple[str, ...]:
    """Returns which protections, TLS and API keys, an address that others can reach lacks. InvalidRequest if it lacks
    one and that was not asked for."""
    hosts = exposed_hosts(settings)
    if not hosts:
        return ()
    protections = (("TLS", settings.tls_cert is not None), ("API keys", keys))
    missing = tuple([name for name, there in protections if not there])
    if missing and not insecure:
        raise InvalidRequest(
            f"refusing to listen on {' and '.join(hosts)} without {' and '.join(missing)}: everybody who can reach it "
            "could start, read and change runs. Listen on 127.0.0.1, or set KAGZI_TLS_CERT and KAGZI_TLS_KEY and make "
            "a key with `kagzi keys create`, or say --insecure if something else protects it"
        )
    return missing


def behind_proxy(settings: Settings) -> bool:
    return settings.public_url is not None or settings.trusted_proxies is not None


def check_local(settings: Settings, *, local: bool) -> None:
    """InvalidRequest if the HTTP port is said to be for this machine alone, and something else says that it is not."""
    others = {
        "KAGZI_PUBLIC_URL": settings.public_url is not None,
        "KAGZI_TRUSTED_PROXIES": settings.trusted_proxies is not None,
        f"the address {settings.http_host}": not is_loopback(settings.http_host),
    }
    if local and (said := [name for name, there in others.items() if there]):
        raise InvalidRequest(
            f"--local says that only this machine reaches the HTTP port, and {' and '.join(said)} that others do; "
            "leave --local out and make a key with `kagzi keys create`"
        )


def exposed_hosts(settings: Settings) -> list[str]:
    """Returns the addresses of our ports that other machines can reach."""
    return [host for host in dict.fromkeys((settings.server_host, settings.http_host)) if not is_loopback(host)]

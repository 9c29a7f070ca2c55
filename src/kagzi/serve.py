"""Composition root of a server process: settings in, an engine behind open ports, an orderly end.

    SIGTERM ─▶ not ready ─▶ no new calls ─▶ calls in flight finish, for at most the grace time ─▶ engine closed ─▶ 0

A second signal stops waiting for calls in flight. Handlers are installed explicitly, because the first process of a
container (PID 1) has no default ones. A port is anything that can be started and stopped: gRPC is one, HTTP will be
another, and neither knows of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from kagzi.connect import default_url, engine_settings, make_store
from kagzi.coordinator.coordinator import Coordinator
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, MissingDependency
from kagzi.settings import Settings, mask_url
from kagzi.version import __version__

logger = logging.getLogger("kagzi.server")

_WARN_SECONDS: Final = 60.0
# A database that has not answered for this long makes the server not ready. The look at it is a second apart.
_SILENCE_SECONDS: Final = 2.5
_LOOK_SECONDS: Final = 0.5


class Port(Protocol):
    """Something that listens. `stop` refuses new calls at once and gives those in flight so many seconds."""

    @property
    def port(self) -> int: ...

    async def start(self) -> None: ...

    async def serving(self, value: bool) -> None:
        """What to tell those who ask whether calls should be sent here."""
        ...

    async def stop(self, grace: float) -> None: ...


MakePorts = Callable[["Server", Settings], Sequence[tuple[str, Port]]]


class Server:
    """A process that hosts an engine for others. `ready` is what its ports tell load balancers."""

    def __init__(self, settings: Settings, *, make_ports: MakePorts, grace: float, exposed: bool = False) -> None:
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
        self._exposed = exposed
        self._serving = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def ready(self) -> bool:
        """Whether calls should be sent here: the database answers, and nobody has asked us to end. Costs nothing."""
        return self._serving and self.engine.silence() < _SILENCE_SECONDS

    def shut_down(self) -> None:
        """The first call ends the server in order, the second one at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Serve until told to stop."""
        if not await self._unless_stopped(self.engine.open()):
            return
        try:
            async with contextlib.AsyncExitStack() as open_ports:
                ports = self._make_ports(self, self._settings)
                for _, port in ports:
                    await port.start()
                    open_ports.push_async_callback(port.stop, 0.0)
                self._serving = True
                where = ", ".join(f"{name} on {self._settings.server_host}:{port.port}" for name, port in ports)
                logger.info("kagzi server %s is ready: %s; runs live in %s", __version__, where, mask_url(self.url))
                async with _beside(self._tell([port for _, port in ports])):
                    await self._wait()
                    self._serving = False
                logger.info("stopping: calls in flight have %g s to finish", self._grace)
                await self._drain([port for _, port in ports])
                open_ports.pop_all()
        finally:
            self._serving = False
            await self.engine.close()
        logger.info("kagzi server has stopped")

    async def _wait(self) -> None:
        while not self._stop.is_set():
            if self._exposed:
                logger.warning(
                    "whoever can reach %s can start, read and change runs: there are no keys and no TLS (--insecure)",
                    self._settings.server_host,
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WARN_SECONDS):
                    await self._stop.wait()

    async def _tell(self, ports: Sequence[Port]) -> None:
        """Probes hear within seconds that the database is gone, and that it is back. The process lives on meanwhile."""
        told = True
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
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
        """Opening may take long, on a database that does not answer or has to be migrated; a signal ends that, too."""
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
    """Do this beside the block, for as long as the block lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def serve(settings: Settings, *, insecure: bool = False, grace: float = 25.0) -> None:
    """Be a server until SIGTERM or SIGINT."""
    exposed = check_exposure(settings.server_host, tls=False, keys=False, insecure=insecure)

    async def main() -> None:
        server = Server(settings, make_ports=make_ports, grace=grace, exposed=exposed)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
                loop.add_signal_handler(number, server.shut_down)
        await server.run()

    asyncio.run(main())


def make_ports(server: Server, settings: Settings) -> list[tuple[str, Port]]:
    """What this process listens on. HTTP joins here."""
    return [("gRPC", _grpc(server, settings))]


def _grpc(server: Server, settings: Settings) -> Port:
    try:
        from kagzi.rpc.server import RpcServer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in (
            "grpc",
            "grpc_health",
            "grpc_reflection",
            "google",
        ):
            raise
        raise MissingDependency('gRPC support is not installed. Run: pip install "kagzi[grpc]"') from error
    return RpcServer(server.engine, settings.server_host, settings.server_port)


def server_url(settings: Settings) -> str:
    """The database of a server. It is no client of another server."""
    url = settings.db_url or default_url(settings)
    if url.partition("://")[0].lower() in ("grpc", "grpcs"):
        raise InvalidRequest(
            "a server needs a database, and KAGZI_URL names a server; set KAGZI_DB_URL to the database"
        )
    return url


def check_exposure(host: str, *, tls: bool, keys: bool, insecure: bool) -> bool:
    """Whether others can reach us unprotected, which is refused unless it was asked for by name."""
    if is_loopback(host) or (tls and keys):
        return False
    if not insecure:
        missing = " and ".join(what for what, there in (("TLS", tls), ("API keys", keys)) if not there)
        raise InvalidRequest(
            f"refusing to listen on {host} without {missing}: everybody who can reach it could start, read and change "
            "runs. Listen on 127.0.0.1, or say --insecure if something else protects it"
        )
    return True


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

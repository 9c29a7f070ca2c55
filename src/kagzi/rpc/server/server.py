"""The gRPC server: hosts any Engine.

A call comes by itself or on a stream with others (`services.exchange`); either way it is answered in one place
(`rpc.respond`).

>>> server = RpcServer(engine, port=50051)
>>> await server.start()
>>> await server.stop(grace=10.0)
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence

import grpc

from kagzi.api.engine import HostedEngine
from kagzi.clock import Clock, SystemClock
from kagzi.errors import Unavailable
from kagzi.ids import IdSource, RandomIds
from kagzi.rpc import limits
from kagzi.rpc.methods import EXCHANGE, METHODS, PACKAGE, SERVICES, path
from kagzi.rpc.server.calls import CallAlone
from kagzi.rpc.server.receiving import received
from kagzi.rpc.server.respond import Failed, Guard, Overdue, Responder, failure
from kagzi.rpc.server.services.admin import AdminService
from kagzi.rpc.server.services.exchange import ExchangeService
from kagzi.rpc.server.services.host import Host
from kagzi.rpc.server.services.jobs import JobService
from kagzi.rpc.server.services.namespaces import NamespaceService
from kagzi.rpc.server.services.schedules import ScheduleService
from kagzi.rpc.server.services.workers import WorkerService
from kagzi.rpc.server.services.workflows import WorkflowService
from kagzi.rpc.server.standards import Health, enable_reflection
from kagzi.rpc.server.unfinished import Unfinished
from kagzi.rpc.status import status_text, trailer

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES),
    # What unpacks to a thousand times its size is gone through before anybody is asked. Nobody's messages need it.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.http2.lookahead_bytes", limits.UNREAD_BYTES),
    ("grpc.http2.bdp_probe", 0),  # which would make that megabytes
    ("grpc.max_concurrent_streams", limits.CONNECTION_CALLS),
    ("grpc.server.max_pending_requests", limits.PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", limits.PENDING_CALLS),
    ("grpc.server_handshake_timeout_ms", limits.HANDSHAKE_MS),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES + limits.ENVELOPE_BYTES),
    ("grpc.max_metadata_size", limits.METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", limits.METADATA_BYTES),  # the same: in between gRPC throws dice
    ("grpc.so_reuseport", 0),  # two servers on one port are a mistake
    ("grpc.keepalive_time_ms", limits.KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", limits.KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", limits.PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", limits.KEEPALIVE_MS // 4),
    ("grpc.http2.max_ping_strikes", 5),
    ("grpc.max_connection_age_ms", limits.CONNECTION_AGE_MS),
    ("grpc.max_connection_age_grace_ms", limits.CONNECTION_GRACE_MS),
)


class RpcServer:
    """`tls` are server credentials of gRPC, `interceptors` are grpc.aio's. `reflection` decides at each question
    whether reflection answers; without it, it never does. While `ready` says no, calls are refused at once."""

    def __init__(
        self,
        engine: HostedEngine,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: grpc.ServerCredentials | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        guard: Guard | None = None,
        reflection: Callable[[], Awaitable[bool]] | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine = engine
        self._ready = ready
        self._overdue: Overdue | None = None
        self._address = host
        self.port = port
        self._tls = tls
        self._interceptors = tuple(interceptors)
        self._guard = guard
        self._reflection = reflection
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds(self._clock.now)
        self._server: grpc.aio.Server | None = None
        self._host: Host | None = None
        self._workflows: WorkflowService | None = None
        self._unfinished: Unfinished | None = None
        self._health: Health | None = None

    @property
    def target(self) -> str:
        """The address for clients: host:port."""
        return f"[{self._address}]:{self.port}" if ":" in self._address else f"{self._address}:{self.port}"

    async def start(self) -> None:
        """The engine must be open. Afterwards `port` is the one that was given, or found if that was 0."""
        server = grpc.aio.server(
            interceptors=self._interceptors, options=_OPTIONS, maximum_concurrent_rpcs=limits.MAXIMUM_CALLS
        )
        self._host = host = Host(self._engine, clock=self._clock, ids=self._ids, ready=self._ready)
        self._workflows = WorkflowService(host)
        responders = self._responders(host)
        # Not named `path`: Python 3.12.1 would take that for the function of the next comprehension.
        self._unfinished = unfinished = Unfinished(lambda: self.port)
        handlers = {called: _handler(responder, self._guard, unfinished) for called, responder in responders.items()}
        handlers[EXCHANGE.path] = _stream_handler(ExchangeService(host, responders, unfinished), self._guard)
        for service, rpcs in SERVICES.items():
            of_service = {rpc: handlers[path(service, rpc)] for rpc in rpcs if path(service, rpc) in handlers}
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", of_service)])
        self._health = Health(server, SERVICES)
        if self._reflection is not None:
            enable_reflection(server, SERVICES, self._reflection)
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(self.target)
            else:
                self.port = server.add_secure_port(self.target, self._tls)
        except RuntimeError:
            reason = _obstacle(self._address, self.port)
            raise Unavailable(
                f"cannot listen on {self.target} ({reason}); is another server running there, or is the address not of "
                "this machine?"
            ) from None
        await server.start()
        self._server = server
        await self._health.serving(True)

    async def serving(self, value: bool) -> None:
        """Sets what standard health probes are told. Calls that wait for a database which is out of reach end now, so
        that their callers go to another server."""
        if self._health is not None:
            await self._health.serving(value)
        if not value and self._overdue is not None:
            self._overdue.end_all()

    async def stop(self, grace: float = 10.0) -> None:
        """Tells probes, answers calls that wait, and lets other calls finish within the grace time."""
        server = self._server
        if server is None or self._host is None:
            return
        if self._health is not None:
            await self._health.serving(False)
        self._host.closing.set()
        await server.stop(grace)  # called again with less grace, it cuts the first call short
        self._server = None
        if self._workflows is not None:
            self._workflows.close()
        if self._unfinished is not None:
            self._unfinished.close()
        await self._host.close()

    async def __aenter__(self) -> RpcServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _services(self, host: Host) -> dict[str, object]:
        assert self._workflows is not None
        return {
            "WorkflowService": self._workflows,
            "WorkerService": WorkerService(host),
            "AdminService": AdminService(host),
            "NamespaceService": NamespaceService(host),
            "WorkflowScheduleService": ScheduleService(host),
            "JobService": JobService(host),
        }

    def _responders(self, host: Host) -> dict[str, Responder]:
        services = self._services(host)
        self._overdue = overdue = Overdue()
        return {
            method.path: Responder(method, getattr(services[method.service], method.rpc), host, self._guard, overdue)
            for method in METHODS.values()
            if hasattr(services.get(method.service), method.rpc)
        }


def _handler(responder: Responder, guard: Guard | None, unfinished: Unfinished) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def answer(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        answered = await _answered(responder, guard, unfinished, CallAlone(context))
        if isinstance(answered, Failed):
            await _abort(context, answered)
            raise AssertionError("abort always raises")
        return answered

    # For gRPC a stream of requests: of a single one it would read all of it before anybody is asked.
    return grpc.stream_unary_rpc_method_handler(answer)


async def _answered(
    responder: Responder, guard: Guard | None, unfinished: Unfinished, call: CallAlone
) -> bytes | Failed:
    """Returns the answer, or what aborts the call. This does not raise: gRPC keeps an exception with all its frames,
    and the request would stay with them until the garbage is collected."""
    try:
        responder.check_ready()
        async with received(responder.method, call, guard) as data:
            unfinished.heard(call.shown, len(data))
            return await responder(data, call)
    except Failed as failed:
        return failed.with_traceback(None)
    except Exception as error:
        return responder.refused(error, call)


def _stream_handler(service: ExchangeService, guard: Guard | None) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def answer(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        call = CallAlone(context)
        try:
            service.host.check_ready()
            if guard is None:
                await service.Exchange(None, call)
            else:
                await guard(EXCHANGE, None, call, service.Exchange)
        except Exception as error:
            await _abort(context, failure(error, EXCHANGE.rpc, call, service.host))

    return grpc.stream_stream_rpc_method_handler(answer)


async def _abort(context: grpc.aio.ServicerContext[bytes, bytes], failed: Failed) -> None:
    await context.abort(failed.status, status_text(failed.detail), trailing_metadata=trailer(failed.detail))


def _obstacle(host: str, port: int) -> str:
    """Returns why nothing can listen there. gRPC does not tell, so this tries again what has just failed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind(address)
    except OSError as error:
        return error.strerror or type(error).__name__
    return "gRPC does not say why"

"""RemoteEngine: `api.engine.ManagedEngine` over a gRPC channel.

Nothing here decides anything. Writes of many callers share calls (`outbox.py`), waits for results too (`waits.py`). A
call that got no answer is repeated with the same ids, which the engine behind the server makes harmless, with growing
jittered pauses for as long as that engine itself would be patient with its database.
"""

from __future__ import annotations

from kagzi._proto.v1 import admin_pb2
from kagzi.clock import SystemClock
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.errors import KagziError, Unavailable
from kagzi.ids import IdSource, RandomIds
from kagzi.rpc.client.admin import ADMIN, RemoteAdmin, RemoteLimits, RemoteNamespaces, RemoteVersions
from kagzi.rpc.client.authorization import MetadataSource, nothing
from kagzi.rpc.client.channel import CONNECT_SECONDS, use_grpc
from kagzi.rpc.client.failover import Choice, channel_to, in_order
from kagzi.rpc.client.handshake import check_server
from kagzi.rpc.client.jobs import RemoteJobs
from kagzi.rpc.client.line import READ_SECONDS, Line
from kagzi.rpc.client.schedules import RemoteSchedules
from kagzi.rpc.client.workers import RemoteWorkers
from kagzi.rpc.client.workflows import RemoteWorkflows
from kagzi.rpc.convert.health import health_from_wire
from kagzi.rpc.tls import ClientTls


class RemoteEngine:
    """`target` is host:port, or several with commas between, any of which will do. With `tls` over TLS; `metadata`
    says what goes along with every call."""

    def __init__(
        self,
        target: str,
        *,
        tls: ClientTls | None = None,
        metadata: MetadataSource = nothing,
        ids: IdSource | None = None,
        threaded: bool = False,
    ) -> None:
        self._target = target
        self._choice = Choice(target.count(",") + 1)
        self._tls = tls
        self._metadata = metadata
        self._ids = ids or RandomIds(SystemClock().now)
        self._threaded = threaded
        self._servers = in_order(target, self._ids.jitter)
        self._parts: _Parts | None = None

    @property
    def workflows(self) -> RemoteWorkflows:
        return self._opened.workflows

    @property
    def workers(self) -> RemoteWorkers:
        return self._opened.workers

    @property
    def admin(self) -> RemoteAdmin:
        return self._opened.admin

    @property
    def jobs(self) -> RemoteJobs:
        return self._opened.jobs

    @property
    def schedules(self) -> RemoteSchedules:
        return self._opened.schedules

    @property
    def namespaces(self) -> RemoteNamespaces:
        return self._opened.namespaces

    @property
    def versions(self) -> RemoteVersions:
        return self._opened.versions

    @property
    def limits(self) -> RemoteLimits:
        return self._opened.limits

    async def open(self) -> None:
        if self._parts is not None:
            return
        use_grpc()
        channel = channel_to(
            self._servers, self._choice, threaded=self._threaded, tls=self._tls, metadata=self._metadata
        )
        try:
            await channel.connect(CONNECT_SECONDS)
        except BaseException:
            await channel.close()
            raise
        line = Line(channel, self._ids.jitter)
        if not self._threaded:
            await self._check_server(line)
        self._parts = _Parts(line)

    async def _check_server(self, line: Line) -> None:
        try:
            await check_server(line, self._target)
        except BaseException:
            await line.channel.close()
            raise

    async def close(self) -> None:
        """Waits for writes under way. Waits for results end with Unavailable."""
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    async def health(self) -> Health:
        try:
            return await self._opened.health()
        except KagziError as error:
            return Health((ComponentHealth("server", HealthStatus.UNHEALTHY, str(error)),))

    def sibling(self) -> RemoteEngine:
        """Returns an engine for another thread, which leaves a server that hangs when this one does."""
        other = RemoteEngine(self._target, tls=self._tls, metadata=self._metadata, ids=self._ids, threaded=True)
        other._servers, other._choice = self._servers, self._choice
        return other

    async def __aenter__(self) -> RemoteEngine:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _opened(self) -> _Parts:
        if self._parts is None:
            raise Unavailable("the engine is not open; call open() first, or use it in `async with`")
        return self._parts


class _Parts:
    """Everything that belongs to a running event loop, made when the engine is opened."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.workflows = RemoteWorkflows(line)
        self.workers = RemoteWorkers(line)
        self.admin = RemoteAdmin(line)
        self.namespaces = RemoteNamespaces(line)
        self.schedules = RemoteSchedules(line)
        self.jobs = RemoteJobs(line)
        self.versions = RemoteVersions(line)
        self.limits = RemoteLimits(line)

    async def health(self) -> Health:
        request = admin_pb2.HealthCheckRequest()
        answer = await self._line.call(
            ADMIN, "HealthCheck", request, admin_pb2.HealthCheckResponse, seconds=READ_SECONDS, patience=0.0
        )
        return health_from_wire(answer)

    async def close(self) -> None:
        self._line.patience = min(self._line.patience, 5.0)
        await self.workflows.close()
        await self.workers.close()
        await self._line.channel.close()

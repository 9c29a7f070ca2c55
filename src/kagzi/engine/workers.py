"""What workers ask: register, poll, commit, heartbeat, leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kagzi.api.operations import Chunk, ChunkAnswer
from kagzi.api.reply import Reply, settled
from kagzi.api.workers import AttachedWorker, Heartbeat, HeartbeatAnswer, Poll, Polled, Registered, Registration
from kagzi.core.limits import check_id
from kagzi.engine.adopters import Adopters
from kagzi.engine.batcher import Lanes
from kagzi.engine.checks import check_chunk, check_heartbeat, check_home, check_poll, check_registration
from kagzi.engine.heartbeats import Heartbeats
from kagzi.engine.namespaces import Namespaces
from kagzi.engine.polls.polls import Polls
from kagzi.engine.settings import EngineSettings
from kagzi.errors import KagziError
from kagzi.store.protocol import Recovered, Store


class Workers:
    """`api.workers.WorkerService` over a store. `changed` hears what leaving workers did to runs."""

    def __init__(
        self,
        store: Store,
        lanes: Lanes,
        polls: Polls,
        adopters: Adopters,
        namespaces: Namespaces,
        heartbeats: Heartbeats,
        changed: Callable[[Sequence[Recovered]], None],
        settings: EngineSettings,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._submit = lanes.submit
        self._polls = polls
        self._adopters = adopters
        self._namespaces = namespaces
        self._heartbeats = heartbeats
        self._changed = changed
        self._settings = settings
        self._payload_bytes = settings.payload_bytes

    async def register(self, registration: Registration) -> Registered:
        check_registration(registration)
        await self._namespaces.ensure(registration.namespace)
        await self._store.register(registration)
        return Registered(
            lease=self._settings.lease, heartbeat=self._settings.heartbeat_every, payload_bytes=self._payload_bytes
        )

    async def poll(self, poll: Poll) -> Polled:
        check_poll(poll)
        return await self._polls.poll(poll)

    def commit(self, chunk: Chunk) -> Reply[ChunkAnswer]:
        try:
            weight = check_chunk(chunk, self._payload_bytes)
        except KagziError as error:
            return settled(error)
        return self._submit(chunk, weight)

    def commit_together(self, chunks: Iterable[Chunk]) -> list[Reply[ChunkAnswer]]:
        replies = [self.commit(chunk) for chunk in chunks]
        self._lanes.part()
        return replies

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        check_heartbeat(heartbeat)
        return await self._heartbeats.send(heartbeat)

    async def drain(self, worker_id: str, namespace: str | None = None) -> None:
        check_id(worker_id, "worker id")
        check_home(namespace)
        await self._store.drain_worker(worker_id, namespace)

    async def deregister(self, worker_id: str, namespace: str | None = None) -> None:
        check_id(worker_id, "worker id")
        check_home(namespace)
        await self._polls.leave(worker_id, namespace)
        self._changed(await self._store.deregister(worker_id, namespace))

    def attach(self, adopter: AttachedWorker, namespace: str, queues: tuple[str, ...]) -> Callable[[], None]:
        return self._adopters.attach(adopter, tuple((namespace, queue) for queue in queues))

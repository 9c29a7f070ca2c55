"""`WorkerService`: workers register, poll, commit, send heartbeats and leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from kagzi.api.operations import Chunk, ChunkAnswer
from kagzi.api.reply import Reply, settled
from kagzi.api.workers import (
    INBOX_READ,
    AttachedWorker,
    Heartbeat,
    HeartbeatAnswer,
    Inbox,
    Poll,
    Polled,
    Registered,
    Registration,
    RunNews,
)
from kagzi.core.alike import alike
from kagzi.core.duration import LONGEST
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import SUSPECT_CRASHES, check_id, check_name
from kagzi.engine.adopters import Adopters
from kagzi.engine.batcher import Lanes
from kagzi.engine.checks import check_chunk, check_heartbeat, check_home, check_poll, check_registration, check_span
from kagzi.engine.heartbeats import Heartbeats
from kagzi.engine.namespaces import Namespaces
from kagzi.engine.news import News
from kagzi.engine.polls.polls import Polls
from kagzi.engine.schedules import Schedules
from kagzi.engine.settings import EngineSettings
from kagzi.errors import KagziError, LeaseLost, Unavailable
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.store import Store


class Workers:
    """`api.workers.WorkerService` over a store. `changed` is told of runs that a leaving worker gave back."""

    def __init__(
        self,
        store: Store,
        lanes: Lanes,
        polls: Polls,
        adopters: Adopters,
        namespaces: Namespaces,
        heartbeats: Heartbeats,
        news: News,
        changed: Callable[[Sequence[Recovered]], None],
        declare_limits: Callable[[str], Awaitable[None]],
        settings: EngineSettings,
        schedules: Schedules,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._submit = lanes.submit
        self._polls = polls
        self._adopters = adopters
        self._namespaces = namespaces
        self._heartbeats = heartbeats
        self._news = news
        self._changed = changed
        self._declare_limits = declare_limits
        self._settings = settings
        self._payload_bytes = settings.payload_bytes
        self._schedules = schedules

    async def register(self, registration: Registration) -> Registered:
        check_registration(registration)
        if registration.schedules:
            await self._schedules.check_declared(registration)
        if not registration.look:
            await self._namespaces.ensure(registration.namespace)
            await self._store.workers.register(registration)
            if registration.queue_limit is not None or registration.type_limits or registration.limits:
                # Strict from the answer on: a worker that declares a limit is handed nothing beyond it.
                await self._declare_limits(registration.namespace)
        warnings = await self._unknown_handlers(registration)
        if registration.schedules:
            # In transactions of their own: they lock templates, which are rows of runs.
            try:
                warnings += await self._schedules.declare(registration)
            except Unavailable as error:
                warnings += (f"schedules in code wait for the worker's next look at them: {error}",)
        return Registered(
            lease=self._settings.lease,
            heartbeat=self._settings.heartbeat_every,
            payload_bytes=self._payload_bytes,
            suspect_crashes=max(1, min(SUSPECT_CRASHES, self._settings.max_crashes - 1)),
            schedules=len(registration.schedules),
            warnings=warnings,
        )

    async def _unknown_handlers(self, registration: Registration) -> tuple[str, ...]:
        """Warns of workflows that are to handle failures and that no worker has offered: the name may be wrong, and
        nobody would hear of a failure."""
        own = {offered.name for offered in registration.types}
        handlers = {each.defaults.on_failure: each.workflow_type for each in registration.interfaces}
        warnings = []
        for handler in sorted({name for name in handlers if name is not None and name not in own}):
            if not (await self._store.versions.resolve(registration.namespace, handler)).known:
                meant = alike(handler, own)
                warnings.append(
                    f"on_failure of workflow {handlers[handler]} is {handler!r}, which no worker has offered in "
                    f"namespace {registration.namespace}{'' if meant is None else f'; did you mean {meant!r}?'}"
                )
        return tuple(warnings)

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
        self._lanes.close_batch()
        return replies

    async def heartbeat(self, heartbeat: Heartbeat, within: Span | None = None) -> HeartbeatAnswer:  # noqa: ARG002
        check_heartbeat(heartbeat)
        return await self._heartbeats.send(heartbeat)

    async def read_inbox(
        self,
        namespace: str,
        run_id: str,
        token: str,
        names: Sequence[str],
        *,
        children: bool = False,
        reconcile: bool = False,
    ) -> Inbox:
        check_name(namespace, "namespace")
        for name in names:
            check_name(name, "signal name")
        run_id, token = check_id(run_id, "run id"), check_id(token, "token")
        inbox = await self._store.signals.read_inbox(namespace, run_id, token, names, INBOX_READ, children, reconcile)
        if inbox is None:
            raise LeaseLost(f"run {run_id} is not held under this lease")
        return inbox

    async def news(self, worker_id: str, namespace: str, wait: Span) -> tuple[RunNews, ...]:
        check_name(namespace, "namespace")
        worker_id = check_id(worker_id, "worker id")
        check_span(wait, "wait", 0, LONGEST)
        return await self._news.wait((namespace, worker_id), wait / SECOND)

    async def drain(self, worker_id: str, namespace: str | None = None) -> None:
        check_id(worker_id, "worker id")
        check_home(namespace)
        await self._store.workers.drain(worker_id, namespace)

    async def deregister(self, worker_id: str, namespace: str | None = None) -> None:
        check_id(worker_id, "worker id")
        check_home(namespace)
        await self._polls.leave(worker_id, namespace)
        self._changed(await self._store.workers.deregister(worker_id, namespace))

    def attach(self, adopter: AttachedWorker, namespace: str, queues: tuple[str, ...]) -> Callable[[], None]:
        return self._adopters.attach(adopter, tuple((namespace, queue) for queue in queues))

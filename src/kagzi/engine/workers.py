"""What workers ask: register, poll, commit, heartbeat, leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from kagzi.api.operations import Chunk, ChunkAnswer
from kagzi.api.reply import Reply, settled
from kagzi.api.workers import AttachedWorker, Heartbeat, HeartbeatAnswer, Poll, Polled, Registered, Registration
from kagzi.core.instant import SECOND
from kagzi.core.limits import check_id
from kagzi.engine.batcher import Lanes
from kagzi.engine.births import Births
from kagzi.engine.checks import check_chunk, check_heartbeat, check_home, check_poll, check_registration
from kagzi.engine.driven import Driven
from kagzi.engine.heartbeats import Heartbeats
from kagzi.engine.namespaces import Namespaces
from kagzi.engine.next_polls import NextPolls
from kagzi.engine.settings import EngineSettings
from kagzi.engine.wakeups import Wakeups, Watch
from kagzi.errors import KagziError, Unavailable
from kagzi.interruption import seen_through
from kagzi.store.protocol import Store


class Workers:
    """`api.workers.WorkerService` over a store."""

    def __init__(
        self,
        store: Store,
        lanes: Lanes,
        wakeups: Wakeups,
        driven: Driven,
        namespaces: Namespaces,
        heartbeats: Heartbeats,
        new_token: Callable[[], str],
        settings: EngineSettings,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._submit = lanes.submit
        self._wakeups = wakeups
        self._driven = driven
        self._namespaces = namespaces
        self._heartbeats = heartbeats
        self._settings = settings
        self._next_polls = NextPolls(lanes.submit, driven, new_token, settings)
        self._payload_bytes = settings.payload_bytes
        self._loop = asyncio.get_running_loop()
        driven.on_let_go = self._let_go

    async def register(self, registration: Registration) -> Registered:
        check_registration(registration)
        await self._namespaces.ensure(registration.namespace)
        await self._store.register(registration)
        return Registered(
            lease=self._settings.lease, heartbeat=self._settings.heartbeat_every, payload_bytes=self._payload_bytes
        )

    async def poll(self, poll: Poll) -> Polled:
        check_poll(poll)
        if self._wakeups.is_closed():
            raise Unavailable("the engine is closed")
        deadline = self._loop.time() + poll.wait / SECOND
        # Subscribe before looking: what becomes due in between leaves the watch dirty.
        watch = self._wakeups.watch(poll.worker_id, tuple((poll.namespace, queue) for queue in poll.queues))
        if poll.number < watch.number:
            return self._nothing()  # a straggler; the worker has long gone on
        if poll.number == watch.number:
            if watch.handed_out is not None:
                return watch.handed_out
            watch.dirty = True  # a repeat: what it claimed the first time is in the database
        else:
            watch.number = poll.number
            watch.poll = poll
            watch.ending = poll.ending
            watch.handed_out = None
            watch.release()  # a poll that still waits has been given up
        watch.begin_poll()
        try:
            polled = await self._next_polls.take(poll, watch) or await self._look(poll, watch, deadline)
        finally:
            watch.end_poll(self._loop.time())
        if self._adopts_by_polls(poll):
            self._loop.call_soon(self._offer_next, poll, watch, len(polled.claims))  # the answer goes first
        return polled

    def _offer_next(self, poll: Poll, watch: Watch, given: int) -> None:
        if watch.number == poll.number:
            self._next_polls.offer(poll, watch, poll.limit - given)

    def _let_go(self, workers: list[tuple[str, str]]) -> None:
        for namespace, worker_id in workers:
            for watch in self._wakeups.watches_of(worker_id, namespace):
                if watch.poll is not None and self._adopts_by_polls(watch.poll):
                    self._next_polls.let_go(watch.poll, watch)

    def _adopts_by_polls(self, poll: Poll) -> bool:
        """Whether runs may be born for the polls of this worker. One in this process adopts them itself."""
        return poll.adopts and self._driven.attached(poll.namespace, poll.worker_id) is None

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
        watches = self._wakeups.watches_of(worker_id, namespace)
        for watch in watches:
            self._next_polls.give_up(watch)
            self._wakeups.forget(watch)
        for watch in watches:
            await watch.no_polls()  # what they were about to get is handed back as well
        self._wakeups.changed(await self._store.deregister(worker_id, namespace))

    def attach(self, adopter: AttachedWorker, namespace: str, queues: tuple[str, ...]) -> Callable[[], None]:
        return self._driven.attach(adopter, tuple((namespace, queue) for queue in queues))

    async def close(self) -> None:
        await self._next_polls.close()

    async def _look(self, poll: Poll, watch: Watch, deadline: float) -> Polled:
        while not watch.forgotten:
            if watch.dirty:
                polled = await self._claim(poll, watch)
                if polled is None or polled.claims:
                    return polled or self._nothing()
            seconds = deadline - self._loop.time()
            if seconds <= 0 or watch.number != poll.number:
                return self._nothing()
            if self._next_polls.awaits(poll, watch):
                return self._nothing()  # so that the worker comes for them
            if not watch.dirty:
                polled = await self._wait(poll, watch, seconds)
                if polled is not None:
                    return polled
        return self._nothing()

    async def _wait(self, poll: Poll, watch: Watch, seconds: float) -> Polled | None:
        """Until there may be something to claim, or runs were born for this poll."""
        if not self._adopts_by_polls(poll):
            await watch.wait(seconds)
            return None
        if watch.births is not None:
            watch.births.close()  # this poll is a repeat, and nobody hears the answer to the first
        limit = min(poll.limit, self._settings.claim_limit)
        births = watch.births = Births(poll, limit, self._settings.lease, watch.release)
        withdraw = self._driven.offer(births, watch.queues)
        try:
            await watch.wait(seconds)
        finally:
            withdraw()
            now, claims = await births.collect()
        return Polled(now=now, claims=claims) if claims else None

    async def _claim(self, poll: Poll, watch: Watch) -> Polled | None:
        """What is due now; None if the worker has no slot left, because runs were born in them meanwhile."""
        limit = min(poll.limit, self._settings.claim_limit)
        adopter = self._driven.attached(poll.namespace, poll.worker_id)
        if adopter is not None:
            limit = adopter.claimable(limit)
        try:
            if limit <= 0:
                return None
            watch.dirty = False
            try:
                # Whoever repeats this poll, or sees its worker off, is to find what it has claimed.
                polled = await seen_through(self._store.claim(replace(poll, limit=limit), self._settings.lease))
            except BaseException:
                watch.dirty = True
                raise
            if len(polled.claims) >= limit:
                watch.wake()  # there may be more, also for another poll of this worker that waits
            self._wakeups.claimed(watch, polled.now)
            self._driven.claimed(polled.claims, poll.worker_id)
            return polled
        finally:
            if adopter is not None:
                adopter.claimed()

    def _nothing(self) -> Polled:
        return Polled(now=self._wakeups.now(), claims=())

"""The polls of all workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kagzi.api.workers import Poll, Polled
from kagzi.core.instant import SECOND
from kagzi.engine.adopters import WorkerKey
from kagzi.engine.polls.worker_polls import Surroundings, WorkerPolls
from kagzi.engine.wakeups import Wakeups
from kagzi.errors import Unavailable
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.duties import Offer


class Polls:
    """`WorkerPolls` by worker and queues. Polls of one worker for other queues are apart, and so are those of a caller
    who uses the id of a worker in another namespace."""

    def __init__(self, wakeups: Wakeups, surroundings: Surroundings) -> None:
        self._wakeups = wakeups
        self._around = surroundings
        self._kept_seconds = surroundings.settings.watch_kept / SECOND
        self._loop = asyncio.get_running_loop()
        self._by_worker: dict[str, dict[tuple[Queue, ...], WorkerPolls]] = {}
        self._closed = False
        self.newcomers = 0  # workers that have asked for a queue for the first time

    async def poll(self, poll: Poll) -> Polled:
        if self._closed:
            raise Unavailable("the engine is closed")
        return await self._polls_for(poll).answer(poll)

    def let_go(self, workers: Iterable[WorkerKey]) -> None:
        """Tells the polls of these workers that a run was let go of, one entry for each run."""
        for namespace, worker_id in workers:
            for polls in self._of(worker_id, namespace):
                polls.let_go()

    async def leave(self, worker_id: str, namespace: str | None) -> None:
        """Ends the polls of a worker, in its namespace or in any; returns when none is under way."""
        leaving = self._of(worker_id, namespace)
        for polls in leaving:
            self._forget(polls)
        for polls in leaving:
            await polls.ended()  # what they were about to get is handed back as well

    def forget_unused(self) -> None:
        """Forgets workers that have not polled for long."""
        oldest = self._loop.time() - self._kept_seconds
        for polls in self._all():
            if polls.unused_since(oldest):
                self._forget(polls)

    def offers(self) -> list[Offer]:
        """Returns the workflows that polls of this process have asked for."""
        return [offer for polls in self._all() for offer in polls.offers()]

    async def stop_offering(self) -> None:
        """Offers no slots between polls any more, and hands back what no worker has come for."""
        self._around.hand_backs.closing = True
        for polls in self._all():
            polls.give_up_next()
        await self._around.hand_backs.close()

    def close(self) -> None:
        """Ends every poll with nothing."""
        self._closed = True
        for polls in self._all():
            self._forget(polls)

    def _polls_for(self, poll: Poll) -> WorkerPolls:
        queues = tuple((poll.namespace, queue) for queue in poll.queues)
        of_worker = self._by_worker.setdefault(poll.worker_id, {})
        polls = of_worker.get(queues)
        if polls is None:
            self.newcomers += 1
            polls = of_worker[queues] = WorkerPolls(poll.worker_id, queues, self._around)
            # Before it looks: what becomes due in between leaves it dirty.
            self._wakeups.add(polls, queues)
        return polls

    def _of(self, worker_id: str, namespace: str | None) -> list[WorkerPolls]:
        return [polls for polls in self._by_worker.get(worker_id, {}).values() if namespace in (None, polls.namespace)]

    def _all(self) -> list[WorkerPolls]:
        return [polls for of_worker in self._by_worker.values() for polls in of_worker.values()]

    def _forget(self, polls: WorkerPolls) -> None:
        of_worker = self._by_worker.get(polls.worker_id, {})
        if of_worker.pop(polls.queues, None) is None:
            return
        if not of_worker:
            del self._by_worker[polls.worker_id]
        polls.leave()
        self._wakeups.remove(polls, polls.queues)

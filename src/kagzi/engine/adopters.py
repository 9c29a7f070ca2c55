"""Who may take a run at the moment it is started: workers of this process, and waiting polls of others."""

from __future__ import annotations

from collections.abc import Callable

from kagzi.api.operations import BirthLease, StartRun
from kagzi.api.workers import Adopter, AttachedWorker
from kagzi.store.protocol.changes import Queue

WorkerKey = tuple[str, str]  # (namespace, worker id)


class Adopters:
    """Adopters by queue, and the leases they have reserved for runs that are being started."""

    def __init__(self) -> None:
        self._at_once: dict[Queue, list[Adopter]] = {}
        self._later: dict[Queue, list[Adopter]] = {}  # asked when none of the others has room
        self._attached: dict[WorkerKey, AttachedWorker] = {}
        self._reserved: dict[int, Adopter] = {}  # by the identity of the lease: those of one poll are alike

    def attach(self, worker: AttachedWorker, queues: tuple[Queue, ...]) -> Callable[[], None]:
        """Takes in a worker of this process; the returned function lets it go."""
        keys = {(namespace, worker.worker_id) for namespace, _ in queues}
        self._attached |= dict.fromkeys(keys, worker)
        withdraw = self.offer(worker, queues)

        def detach() -> None:
            for key in keys:
                self._attached.pop(key, None)
            withdraw()

        return detach

    def attached(self, namespace: str, worker_id: str) -> AttachedWorker | None:
        return self._attached.get((namespace, worker_id))

    @property
    def any_attached(self) -> bool:
        return bool(self._attached)

    def offer(self, adopter: Adopter, queues: tuple[Queue, ...], *, later: bool = False) -> Callable[[], None]:
        """Lets runs of these queues be born under a lease of this adopter, until the returned function is called.
        Adopters that take them at once come before those that take them `later`."""
        adopters = self._later if later else self._at_once
        for queue in queues:
            adopters.setdefault(queue, []).append(adopter)

        def withdraw() -> None:
            for queue in queues:
                offered = adopters.get(queue, [])
                if adopter in offered:
                    offered.remove(adopter)
                if not offered:
                    adopters.pop(queue, None)

        return withdraw

    def reserve(self, start: StartRun) -> BirthLease | None:
        """Returns a lease of an adopter with a free slot for this run. It hears `adopt` or `decline`, also if its offer
        is withdrawn meanwhile."""
        queue = (start.namespace, start.task_queue)
        adopters: list[Adopter] = [*self._at_once.get(queue, ()), *self._later.get(queue, ())]
        for adopter in adopters:
            lease = adopter.reserve(start)
            if lease is not None:
                self._reserved[id(lease)] = adopter
                return lease
        return None

    def redeem(self, lease: BirthLease) -> Adopter | None:
        """Returns the adopter that has reserved this lease, once."""
        return self._reserved.pop(id(lease), None)

    def withhold(self, lease: BirthLease) -> None:
        """Tells the adopter that has reserved this lease that no run will come for it."""
        adopter = self.redeem(lease)
        if adopter is not None:
            adopter.decline(lease)

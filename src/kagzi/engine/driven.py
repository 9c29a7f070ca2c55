"""The runs this process started or drives, and what follows from their commits.

Kept in memory only, as a shortcut: a result reaches a waiter in the same process without a query, a parked
run's due time is known before the horizon is read, a run born beside a free worker is handed to it. Whatever
is missing here (evicted, or changed by others) is found by looking at the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from kagzi.api.events import Change
from kagzi.api.operations import (
    Answer,
    BirthLease,
    CancelAnswer,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    EndCancelledRun,
    FailRun,
    HandBackRun,
    ParkRun,
    RepeatRun,
    RetryRun,
    RunOperation,
    Started,
    StartRun,
    Write,
)
from kagzi.api.workers import Adopter, AttachedWorker, Claim
from kagzi.core.instant import Instant
from kagzi.core.run import Run, RunStatus
from kagzi.engine.events import Events
from kagzi.engine.wakeups import Wakeups
from kagzi.store.protocol import Queue

WorkerKey = tuple[str, str]  # (namespace, worker id)

_MOST_STARTED: Final = 5000
_MOST_DRIVEN: Final = 100_000
_SURELY: Final = 5.0  # seconds
_INPUT_BYTES: Final = 1024  # inputs up to this size are kept


class _Start:
    """A run started by this process."""

    __slots__ = ("available_at", "created_at", "known_at", "start")

    def __init__(self, start: StartRun, created_at: Instant, known_at: float) -> None:
        self.start = start
        self.created_at = created_at
        self.available_at = created_at
        self.known_at = known_at  # by the loop's clock


class _Driven:
    """A run leased by a worker of this process."""

    __slots__ = ("active_at", "claim", "started", "worker_id")

    def __init__(self, claim: Claim, worker_id: str, active_at: float, started: _Start | None) -> None:
        self.claim = claim
        self.worker_id = worker_id
        self.active_at = active_at
        self.started = started


class Driven:
    def __init__(self, wakeups: Wakeups, events: Events) -> None:
        self._loop = asyncio.get_running_loop()
        self._wakeups = wakeups
        self._events = events
        self._started: dict[str, _Start] = {}
        self._unknown_at = -inf  # when anything may have finished elsewhere
        self._driven: dict[str, _Driven] = {}
        self._adopters: dict[Queue, list[Adopter]] = {}
        self._later: dict[Queue, list[Adopter]] = {}  # asked when none of the others has room
        self._ended: list[tuple[str, str, Run | None]] = []
        self._let_go: list[WorkerKey] = []  # the workers of runs that were let go of
        self._by_worker: dict[WorkerKey, AttachedWorker] = {}
        self._reserved: dict[int, Adopter] = {}  # by the identity of the lease: those of one poll are alike
        # Told which workers have let go of a run, after those who wait for it.
        self.on_let_go: Callable[[list[WorkerKey]], None] = lambda workers: None  # noqa: ARG005

    # Workers in this process.

    def attach(self, worker: AttachedWorker, queues: tuple[Queue, ...]) -> Callable[[], None]:
        keys = {(namespace, worker.worker_id) for namespace, _ in queues}
        self._by_worker |= dict.fromkeys(keys, worker)
        withdraw = self.offer(worker, queues)

        def detach() -> None:
            for key in keys:
                self._by_worker.pop(key, None)
            withdraw()

        return detach

    def offer(self, adopter: Adopter, queues: tuple[Queue, ...], *, later: bool = False) -> Callable[[], None]:
        """From now on runs of these queues may be born under a lease of this adopter, until the offer is withdrawn.
        Those who take them at once come before those who take them `later`."""
        adopters = self._later if later else self._adopters
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
        """A lease from a worker with a free slot for it. It hears `adopt` or `decline`, also if it leaves
        meanwhile."""
        queue = (start.namespace, start.task_queue)
        adopters: list[Adopter] = [*self._adopters.get(queue, ()), *self._later.get(queue, ())]
        for adopter in adopters:
            lease = adopter.reserve(start)
            if lease is not None:
                self._reserved[id(lease)] = adopter
                return lease
        return None

    def attached(self, namespace: str, worker_id: str) -> AttachedWorker | None:
        return self._by_worker.get((namespace, worker_id))

    # What is known about a run.

    def claim_of(self, run_id: str, token: str) -> Claim | None:
        driven = self._driven.get(run_id)
        return None if driven is None or driven.claim.token != token else driven.claim

    def surely(self, run_id: str) -> bool:
        """Whether the run's end will be heard of here without looking: it has made progress here just now."""
        driven = self._driven.get(run_id)
        return driven is not None and self._loop.time() - driven.active_at < _SURELY

    def alive(self, namespace: str, run_id: str) -> bool:
        """Whether a waiter may skip its first look: the run is driven here, or was started here just now beside a
        worker of this process and nothing was heard of it since. Should that be wrong, the pulse finds out. A run of
        another namespace is not one."""
        driven = self._driven.get(run_id)
        if driven is not None and driven.claim.namespace == namespace and self.surely(run_id):
            return True
        started = self._started.get(run_id)
        return (
            started is not None
            and started.start.namespace == namespace
            and started.known_at > max(self._unknown_at, self._loop.time() - _SURELY)
            and self._wakeups.is_watched((started.start.namespace, started.start.task_queue))
        )

    def ended_elsewhere(self, run_id: str | None) -> None:
        """Heard from another process; None: anything may have ended."""
        if run_id is None:
            self._unknown_at = self._loop.time()
        else:
            self._started.pop(run_id, None)

    def claimed(self, claims: tuple[Claim, ...], worker_id: str) -> None:
        now = self._loop.time()
        for claim in claims:
            started = self._started.pop(claim.run_id, None)
            self._drive(_Driven(claim, worker_id, now, started))
            if self._events.on:
                self._tell_claimed(claim)

    # What follows from a commit.

    def settled(self, writes: list[Write], answers: list[Answer]) -> None:
        births: list[tuple[StartRun, Started | None]] = []
        self._ended, self._let_go = [], []
        now, done = self._loop.time(), ChunkAnswer.DONE
        for write, answer in zip(writes, answers, strict=True):
            if isinstance(write, Chunk):
                last = write.operations[-1]
                if answer is not done:
                    self._chunk_refused(write, answer)
                elif type(last) is not CompleteStep and isinstance(last, RunOperation):
                    self._run_settled(write, last)
                else:
                    if (driven := self._driven.get(write.run_id)) is not None:
                        driven.active_at = now
                    if self._events.on:
                        self._events.progressed(write.namespace, write.run_id)
            elif isinstance(write, StartRun):
                if isinstance(answer, Started):
                    self._start_settled(write, answer, births)
                elif write.lease is not None:
                    births.append((write, None))
            elif isinstance(answer, CancelAnswer) and answer.effective:
                self._cancel_settled(write.namespace, answer)
            elif self._events.on and isinstance(write, RepeatRun) and isinstance(answer, Started):
                self._tell_started(write.namespace, answer)
        if len(writes) == 1 and not self._by_worker:
            # Whoever waits for the run or for its end hears of it before the one who wrote it. Of many writes the
            # replies go first: those who share calls have more to do with them.
            self._tell(self._ended)
            self._deliver(births)
        else:
            if self._ended:
                # After the callbacks of this batch's own replies, in which workers free the slots of these runs:
                # whoever starts another run when it has its result should find the slot free.
                self._loop.call_soon(self._tell, self._ended)
            if births:
                # In a callback of its own, because a worker drives runs outside of any task.
                self._loop.call_soon(self._deliver, births)
        if self._let_go:
            self._loop.call_soon(self.on_let_go, self._let_go)

    def _start_settled(self, start: StartRun, answer: Started, births: list[tuple[StartRun, Started | None]]) -> None:
        if start.lease is not None:
            births.append((start, answer))
        if answer.already_exists:
            return
        if self._events.on:
            self._tell_started(start.namespace, answer, start.workflow_type, start.task_queue)
        immediate = not start.delay and start.start_at is None
        if answer.born:
            self._wakeups.heard(answer.started_at)
            return
        if answer.status is RunStatus.PENDING:
            if immediate:
                self._wakeups.heard(answer.available_at)
            self._wakeups.available((start.namespace, start.task_queue), answer.available_at)
        if immediate:
            self._remember(answer.run_id, _Start(start, answer.available_at, self._loop.time()))

    def _deliver(self, births: list[tuple[StartRun, Started | None]]) -> None:
        for start, answer in births:
            lease = start.lease
            assert lease is not None
            adopter = self._reserved.pop(id(lease), None)
            if adopter is None:
                continue
            if answer is None or not answer.born:
                adopter.decline(lease)
                continue
            claim = Claim(
                namespace=start.namespace,
                run_id=answer.run_id,
                token=lease.token,
                workflow_type=start.workflow_type,
                version=start.version,
                task_queue=start.task_queue,
                external_id=start.external_id,
                input=start.input,
                started_at=answer.started_at,
                lease=lease.length,
                attempts=0,
                executions=1,
                crashes=0,
                inbox_seq=0,
                retry_policy=start.retry_policy,
                history=(),
                trace_context=start.trace_context,
            )
            now = self._loop.time()
            self._drive(_Driven(claim, lease.worker_id, now, _Start(start, answer.started_at, now)))
            if self._events.on:
                self._tell_claimed(claim)
            adopter.adopt(claim, answer.started_at)

    def _tell(self, ended: list[tuple[str, str, Run | None]]) -> None:
        for namespace, run_id, run in ended:
            self._wakeups.finished(namespace, run_id, run)

    def _chunk_refused(self, chunk: Chunk, answer: Answer) -> None:
        driven = self._driven.get(chunk.run_id)
        if answer is not ChunkAnswer.NEWS and driven is not None and driven.claim.token == chunk.token:
            del self._driven[chunk.run_id]

    def _run_settled(self, chunk: Chunk, last: RunOperation) -> None:
        driven = self._driven.get(chunk.run_id)
        if driven is not None:
            if driven.claim.token == chunk.token:
                del self._driven[chunk.run_id]
                if not isinstance(last, HandBackRun):  # whoever hands a run back leaves, or has no room
                    self._let_go.append((chunk.namespace, driven.worker_id))
            else:
                driven = None  # a late answer to an old lease
        if self._events.on:
            self._tell_settled(chunk, last, driven)
        if isinstance(last, CompleteRun | FailRun | EndCancelledRun):
            run = None
            if driven is not None and self._wakeups.expected(chunk.namespace, chunk.run_id):
                run = self._finished_run(driven, last)
            self._ended.append((chunk.namespace, chunk.run_id, run))
        elif driven is not None:
            at = last.available_at if isinstance(last, ParkRun | RetryRun | HandBackRun) else None
            if driven.started is not None and at is not None:
                driven.started.available_at = at
                self._remember(chunk.run_id, driven.started)
            self._wakeups.available((chunk.namespace, driven.claim.task_queue), at or 0)

    def _cancel_settled(self, namespace: str, answer: CancelAnswer) -> None:
        """A run was told to end, or has ended. Its worker hears of it at once if it is in this process, else with its
        next heartbeat. In a callback of its own, because a worker drives runs outside of any task."""
        run_id = answer.run_id
        if self._events.on:
            change = Change.FINISHED if answer.status.finished else Change.CANCELLING
            self._events.run(namespace, run_id, change, answer.status, queue=answer.task_queue or None)
        if not answer.status.finished:
            self._wakeups.look_soon(0.0)  # so that the coordinator knows when its time to clean up is over
        if answer.status is RunStatus.RUNNING:
            adopter = self._adopter_of(run_id)
            if adopter is not None:
                self._loop.call_soon(adopter.cancel, run_id)
        elif not answer.status.finished:
            self._wakeups.available((namespace, answer.task_queue), answer.available_at)
        else:
            adopter = self._adopter_of(run_id)
            self._started.pop(run_id, None)
            self._driven.pop(run_id, None)
            self._wakeups.finished(namespace, run_id)
            if adopter is not None:
                self._loop.call_soon(adopter.lose, run_id)

    def _adopter_of(self, run_id: str) -> AttachedWorker | None:
        driven = self._driven.get(run_id)
        return None if driven is None else self.attached(driven.claim.namespace, driven.worker_id)

    def _finished_run(self, driven: _Driven, last: CompleteRun | FailRun | EndCancelledRun) -> Run | None:
        """The finished run as the database shows it, except that `finished_at` is estimated. Only the common
        case:
        what failed is read from the database."""
        if driven.started is None or not isinstance(last, CompleteRun):
            return None
        claim = driven.claim
        start, created_at = driven.started.start, driven.started.created_at
        deadlines = [] if start.deadline_at is None else [start.deadline_at]
        if start.timeout is not None:
            deadlines.append(created_at + start.timeout)
        return Run(
            namespace=claim.namespace,
            run_id=claim.run_id,
            external_id=claim.external_id,
            task_queue=claim.task_queue,
            workflow_type=claim.workflow_type,
            version=claim.version,
            status=RunStatus.COMPLETED,
            priority=start.priority,
            attempts=claim.attempts,
            executions=claim.executions,
            crashes=claim.crashes,
            created_at=created_at,
            available_at=driven.started.available_at,
            started_at=claim.started_at,
            finished_at=self._wakeups.now(),
            deadline_at=min(deadlines, default=None),
            worker_id=driven.worker_id,
            input=claim.input,
            output=last.output,
            error=None,
        )

    # Telling those who watch.

    def _tell_started(
        self, namespace: str, answer: Started, workflow: str | None = None, queue: str | None = None
    ) -> None:
        if not answer.already_exists:
            self._events.run(namespace, answer.run_id, Change.STARTED, RunStatus.PENDING, workflow, queue)

    def _tell_claimed(self, claim: Claim) -> None:
        self._events.run(
            claim.namespace, claim.run_id, Change.CLAIMED, RunStatus.RUNNING, claim.workflow_type, claim.task_queue
        )

    def _tell_settled(self, chunk: Chunk, last: RunOperation, driven: _Driven | None) -> None:
        if last.status.finished:
            change = Change.FINISHED
        else:
            change = Change.PARKED if isinstance(last, ParkRun) else Change.RETURNED
        workflow = None if driven is None else driven.claim.workflow_type
        queue = None if driven is None else driven.claim.task_queue
        self._events.run(chunk.namespace, chunk.run_id, change, last.status, workflow, queue)

    def _remember(self, run_id: str, started: _Start) -> None:
        if len(started.start.input) <= _INPUT_BYTES:
            if len(self._started) >= _MOST_STARTED:
                del self._started[next(iter(self._started))]
            self._started[run_id] = started

    def _drive(self, driven: _Driven) -> None:
        if len(self._driven) >= _MOST_DRIVEN:
            del self._driven[next(iter(self._driven))]
        self._driven[driven.claim.run_id] = driven

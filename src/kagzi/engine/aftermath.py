"""What follows from a commit: waiters are told, queues woken, runs handed to their workers, events sent.

Also what follows when duties, heartbeats and leaving workers change runs. All of it happens after the transaction, in
memory only; whatever is lost here is found by the pulse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from kagzi.api.events import Change
from kagzi.api.operations import (
    ENDS,
    TRANSITIONS,
    Answer,
    CancelAnswer,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    EndRun,
    HandBackRun,
    RepeatRun,
    SignalAnswer,
    Started,
    StartRun,
    Transition,
    Write,
)
from kagzi.api.workers import AttachedWorker, Claim, RunNews
from kagzi.core.carried import born_with
from kagzi.core.instant import Instant
from kagzi.core.run import Run, RunStatus
from kagzi.engine.adopters import Adopters, WorkerKey
from kagzi.engine.announcements import Announcements
from kagzi.engine.database_clock import DatabaseClock
from kagzi.engine.events import Events
from kagzi.engine.known_runs import DrivenRun, KnownRuns, StartedRun
from kagzi.engine.news import News
from kagzi.engine.results import Results
from kagzi.engine.wakeups import Wakeups
from kagzi.store.protocol.changes import Recovered, Told

# isinstance takes long to find the base of a struct, and every write is asked.
_TRANSITIONS: Final = frozenset(TRANSITIONS)
_ENDS: Final = frozenset(ENDS)

_Birth = tuple[StartRun, Started | None]
_End = tuple[str, str, Run | None]


class Aftermath:
    """Draws the consequences of committed writes. `look_soon` asks for the horizon within so many
    seconds; `look_for_room` hears of namespaces in which there may be room for held runs."""

    def __init__(
        self,
        known: KnownRuns,
        adopters: Adopters,
        wakeups: Wakeups,
        results: Results,
        events: Events,
        clock: DatabaseClock,
        news: News,
        announcements: Announcements,
        look_soon: Callable[[float], None],
        look_for_room: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._known = known
        self._adopters = adopters
        self._wakeups = wakeups
        self._results = results
        self._events = events
        self._clock = clock
        self._news = news
        self._announcements = announcements
        self._look_soon = look_soon
        self._look_for_room = look_for_room

    def claimed(self, claims: tuple[Claim, ...], worker_id: str) -> None:
        for claim in claims:
            self._known.claimed(claim, worker_id)
            if claim.limited:
                self._look_for_room(claim.namespace)  # the next of its line, if there is room for it, too
            if self._events.on:
                self._tell_claimed(claim)

    def changed(self, runs: Sequence[Recovered]) -> None:
        """Follows up on runs that a duty, a heartbeat or a leaving worker changed."""
        if runs:
            self._events.changed(runs)
        for run in runs:
            if run.status.finished:
                self._results.finished(run.namespace, run.run_id)
                self._look_soon(0.0)  # its children, if it has any, follow
            else:
                self._wakeups.available((run.namespace, run.task_queue), run.available_at)

    def fired(self, runs: Sequence[Recovered]) -> None:
        """Follows up on runs that schedules or jobs have started."""
        for run in runs:
            self._wakeups.available((run.namespace, run.task_queue), run.available_at)
            if self._events.on:
                workflow = run.workflow_type or None
                self._events.run(run.namespace, run.run_id, Change.STARTED, RunStatus.PENDING, workflow, run.task_queue)

    def told_to_end(self, answers: Sequence[tuple[str, CancelAnswer]]) -> None:
        """Follows up on runs that were told to end, each in this namespace."""
        for namespace, answer in answers:
            self._cancel_settled(namespace, answer)

    def settled(self, writes: list[Write], answers: list[Answer]) -> list[WorkerKey]:
        """Follows up on a durable batch. Returns the workers that have let go of a run, one entry for each run."""
        births: list[_Birth] = []
        ended: list[_End] = []
        let_go: list[WorkerKey] = []
        now, done, known = self._loop.time(), ChunkAnswer.DONE, self._known
        for write, answer in zip(writes, answers, strict=True):
            if type(write) is Chunk:
                last = write.operations[-1]
                if answer is not done:
                    if answer is not ChunkAnswer.NEWS:
                        known.release(write.run_id, write.token)
                elif type(last) in _TRANSITIONS:
                    self._run_settled(write, cast("Transition", last), ended, let_go)
                else:
                    if (driven := known.driven(write.run_id)) is not None:
                        driven.active_at = now
                    if self._events.on:
                        self._events.progressed(write.namespace, write.run_id)
            elif type(write) is StartRun:
                if isinstance(answer, Started):
                    self._start_settled(write, answer, births)
                elif write.lease is not None:
                    births.append((write, None))
            elif isinstance(answer, CancelAnswer) and answer.effective:
                self._cancel_settled(write.namespace, answer)
            elif isinstance(answer, SignalAnswer) and not answer.repeated:
                self._signal_settled(write.namespace, answer)
            elif self._events.on and isinstance(write, RepeatRun) and isinstance(answer, Started):
                self._tell_started(write.namespace, answer)
        self._pass_on(ended, births, alone=len(writes) == 1)
        return let_go

    def _pass_on(self, ended: list[_End], births: list[_Birth], *, alone: bool) -> None:
        if alone and not self._adopters.any_attached:
            # Those who wait for the run or for its end hear of it before the one who wrote it. Of many writes the
            # replies go first: callers who share a call have more to do with them.
            self._tell_ended(ended)
            self._deliver(births)
            return
        if ended:
            # After the callbacks of this batch's own replies, in which workers free the slots of these runs: a caller
            # who starts another run when it has its result should find the slot free.
            self._loop.call_soon(self._tell_ended, ended)
        if births:
            # In a callback of its own, because a worker drives runs outside of any task.
            self._loop.call_soon(self._deliver, births)

    def _tell_ended(self, ended: list[_End]) -> None:
        for namespace, run_id, run in ended:
            self._results.finished(namespace, run_id, run)

    # Starts.

    def _start_settled(self, start: StartRun, answer: Started, births: list[_Birth]) -> None:
        if start.lease is not None:
            births.append((start, answer))
        if answer.left_line:
            self._look_for_room(start.namespace)  # the next of its line has a slot that it was told to take
        if answer.already_exists:
            if answer.signal is not None and not answer.signal.repeated:
                self._signal_settled(start.namespace, answer.signal)
            elif start.debounce is not None:
                self._wakeups.available((start.namespace, start.task_queue), answer.available_at)
            return
        if self._events.on:
            self._tell_started(start.namespace, answer, start.workflow_type, start.task_queue)
        immediate = not start.delay and start.start_at is None and start.debounce is None
        if answer.born:
            self._clock.heard(answer.started_at)
            return
        if answer.status is RunStatus.PENDING:
            if immediate:
                self._clock.heard(answer.available_at)
            self._wakeups.available((start.namespace, start.task_queue), answer.available_at)
        if immediate:
            self._known.remember(answer.run_id, StartedRun(start, answer.available_at, self._loop.time()))

    def _deliver(self, births: list[_Birth]) -> None:
        """Hands runs that were born under a lease to the adopters that reserved it."""
        for start, answer in births:
            lease = start.lease
            assert lease is not None
            assert start.version is not None
            adopter = self._adopters.redeem(lease)
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
                history=(),
                **born_with(start),
            )
            now = self._loop.time()
            self._known.drive(DrivenRun(claim, lease.worker_id, now, StartedRun(start, answer.started_at, now)))
            if self._events.on:
                self._tell_claimed(claim)
            adopter.adopt(claim, answer.started_at)

    # Operations under a lease, and cancellations.

    def _run_settled(self, chunk: Chunk, last: Transition, ended: list[_End], let_go: list[WorkerKey]) -> None:
        driven = self._known.release(chunk.run_id, chunk.token)
        if driven is not None and driven.claim.limited:
            self._look_for_room(chunk.namespace)
            self._wakeups.available((chunk.namespace, driven.claim.task_queue))  # if it is the queue that was full
        if driven is not None and type(last) is not HandBackRun:
            # A worker that hands a run back leaves, or has no room.
            let_go.append((chunk.namespace, driven.worker_id))
        if self._events.on:
            self._tell_settled(chunk, last, driven)
        if type(last) in _ENDS:
            if cast("EndRun", last).family:
                self._look_soon(0.0)  # so that its children follow it at once
            run = None
            # Only the common case is made up here: what failed is read from the database.
            if (
                driven is not None
                and type(last) is CompleteRun
                and self._results.expected(chunk.namespace, chunk.run_id)
            ):
                run = driven.completed(last, self._clock.now())
            ended.append((chunk.namespace, chunk.run_id, run))
        elif driven is not None:
            at: Instant | None = getattr(last, "available_at", None)
            if driven.started is not None and at is not None:
                driven.started.available_at = at
                self._known.remember(chunk.run_id, driven.started)
            self._wakeups.available((chunk.namespace, driven.claim.task_queue), at or 0)

    def _cancel_settled(self, namespace: str, answer: CancelAnswer) -> None:
        """Follows up on a run that was told to end, or has ended. Its worker hears of it at once. In a callback of its
        own, because a worker drives runs outside of any task."""
        run_id = answer.run_id
        if self._events.on:
            change = Change.FINISHED if answer.status.finished else Change.CANCELLING
            self._events.run(namespace, run_id, change, answer.status, queue=answer.task_queue or None)
        # So that the coordinator knows when its time to clean up is over, or that its children are to follow.
        self._look_soon(0.0)
        worker = self._worker_of(run_id)
        if answer.status is RunStatus.RUNNING:
            if worker is not None:
                self._loop.call_soon(worker.cancel, run_id)
            else:
                self._tell_worker(namespace, RunNews(run_id, 0, cancelled=True))
        elif not answer.status.finished:
            self._wakeups.available((namespace, answer.task_queue), answer.available_at)
        else:
            self._known.ended(run_id)
            self._results.finished(namespace, run_id)
            if worker is not None:
                self._loop.call_soon(worker.lose, run_id)

    def _signal_settled(self, namespace: str, answer: SignalAnswer) -> None:
        """Follows up on the inbox of a live run that has grown: its holder reads it, or the run is claimed if it waits
        for that."""
        self._news_arrived(namespace, answer.run_id, answer.seq, answer.status, answer.task_queue, answer.available_at)

    def woken(self, runs: Sequence[Told]) -> None:
        """Follows up on runs that were told of the ends of others in the transaction of those ends, and on new ones:
        children and failure handlers."""
        for run in runs:
            if run.workflow_type:
                self._wakeups.available((run.namespace, run.task_queue), run.available_at)
                if self._events.on:
                    self._events.run(
                        run.namespace, run.run_id, Change.STARTED, run.status, run.workflow_type, run.task_queue
                    )
                continue
            self._news_arrived(run.namespace, run.run_id, run.inbox_seq, run.status, run.task_queue, run.available_at)

    def _news_arrived(
        self, namespace: str, run_id: str, inbox_seq: int, status: RunStatus, task_queue: str, available_at: Instant
    ) -> None:
        if status is RunStatus.RUNNING:
            worker = self._worker_of(run_id)
            if worker is not None:
                # In a callback of its own, because a worker drives runs outside of any task.
                self._loop.call_soon(worker.hear_news, run_id, inbox_seq)
            else:
                self._tell_worker(namespace, RunNews(run_id, inbox_seq))
        elif status is RunStatus.SLEEPING:
            self._wakeups.available((namespace, task_queue), available_at)
        if self._events.on:
            self._events.progressed(namespace, run_id)

    def _tell_worker(self, namespace: str, news: RunNews) -> None:
        """Tells the worker that holds this run, or the process it polls."""
        driven = self._known.driven(news.run_id)
        if driven is None:
            self._announcements.add_news((namespace, news.run_id))
        elif driven.claim.namespace == namespace:
            self._news.tell((namespace, driven.worker_id), news)

    def heard_news(self, namespace: str, run_id: str) -> None:
        """Passes on the word of another process that something has arrived for a run, if its worker is reached through
        here."""
        driven = self._known.driven(run_id)
        if driven is None or driven.claim.namespace != namespace:
            return
        worker = self._worker_of(run_id)
        if worker is not None:
            worker.hear_news(run_id, 0)
        else:
            self._news.tell((namespace, driven.worker_id), RunNews(run_id, 0))

    def _worker_of(self, run_id: str) -> AttachedWorker | None:
        driven = self._known.driven(run_id)
        return None if driven is None else self._adopters.attached(driven.claim.namespace, driven.worker_id)

    # Events.

    def _tell_started(
        self, namespace: str, answer: Started, workflow: str | None = None, queue: str | None = None
    ) -> None:
        if not answer.already_exists:
            self._events.run(namespace, answer.run_id, Change.STARTED, RunStatus.PENDING, workflow, queue)

    def _tell_claimed(self, claim: Claim) -> None:
        self._events.run(
            claim.namespace, claim.run_id, Change.CLAIMED, RunStatus.RUNNING, claim.workflow_type, claim.task_queue
        )

    def _tell_settled(self, chunk: Chunk, last: Transition, driven: DrivenRun | None) -> None:
        if last.status.finished:
            change = Change.FINISHED
        else:
            change = Change.PARKED if last.status is RunStatus.SLEEPING else Change.RETURNED
        workflow = None if driven is None else driven.claim.workflow_type
        queue = None if driven is None else driven.claim.task_queue
        self._events.run(chunk.namespace, chunk.run_id, change, last.status, workflow, queue)

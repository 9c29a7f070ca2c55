"""The runs this process started or drives, kept in memory as a shortcut.

With it a result reaches a waiter in the same process without a query, and a parked run's due time is known before the
horizon is read. Whatever is missing here (evicted, or changed by others) is found by looking at the database.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

from kagzi.api.operations import CompleteRun, StartRun
from kagzi.api.workers import Claim
from kagzi.core.instant import Instant
from kagzi.core.run import Run, RunStatus

_MOST_STARTED: Final = 5000
_MOST_DRIVEN: Final = 100_000
_ACTIVE_SECONDS: Final = 5.0  # a run that made progress within this time counts as active
_INPUT_BYTES: Final = 1024  # inputs up to this size are kept


class StartedRun:
    """A run started by this process."""

    __slots__ = ("available_at", "created_at", "known_at", "start")

    def __init__(self, start: StartRun, created_at: Instant, known_at: float) -> None:
        self.start = start
        self.created_at = created_at
        self.available_at = created_at
        self.known_at = known_at  # by the loop's clock


class DrivenRun:
    """A run leased by a worker that polls this process; `started` if it was started here, too."""

    __slots__ = ("active_at", "claim", "started", "worker_id")

    def __init__(self, claim: Claim, worker_id: str, active_at: float, started: StartedRun | None) -> None:
        self.claim = claim
        self.worker_id = worker_id
        self.active_at = active_at
        self.started = started

    def completed(self, last: CompleteRun, finished_at: Instant) -> Run | None:
        """Returns the completed run as the database shows it, except that `finished_at` is estimated; None if it was
        not started here, or by a step."""
        if self.started is None or self.started.start.started_by is not None:
            return None
        claim = self.claim
        start, created_at = self.started.start, self.started.created_at
        deadline_at = start.deadline_at
        if start.timeout is not None:
            times_out_at = created_at + start.timeout
            deadline_at = times_out_at if deadline_at is None else min(deadline_at, times_out_at)
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
            available_at=self.started.available_at,
            started_at=claim.started_at,
            finished_at=finished_at,
            deadline_at=deadline_at,
            worker_id=self.worker_id,
            input=claim.input,
            output=last.output,
            error=None,
        )


class KnownRuns:
    """Started and driven runs by their id, both bounded: the oldest is forgotten."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started: dict[str, StartedRun] = {}
        self._driven: dict[str, DrivenRun] = {}
        self._unknown_at = -inf  # when anything may have finished elsewhere

    def driven(self, run_id: str) -> DrivenRun | None:
        return self._driven.get(run_id)

    def claim_of(self, run_id: str, token: str) -> Claim | None:
        driven = self._driven.get(run_id)
        return None if driven is None or driven.claim.token != token else driven.claim

    def end_will_pass_here(self, run_id: str) -> bool:
        """Returns whether the run's end will be heard of here without looking, because it has made progress here just
        now."""
        driven = self._driven.get(run_id)
        return driven is not None and self._loop.time() - driven.active_at < _ACTIVE_SECONDS

    def started_just_now(self, namespace: str, run_id: str) -> StartedRun | None:
        """Returns a run of this namespace that was started here a moment ago and not heard of since."""
        started = self._started.get(run_id)
        if started is None or started.start.namespace != namespace:
            return None
        recent = started.known_at > max(self._unknown_at, self._loop.time() - _ACTIVE_SECONDS)
        return started if recent else None

    def remember(self, run_id: str, started: StartedRun) -> None:
        if len(started.start.input) <= _INPUT_BYTES:
            if len(self._started) >= _MOST_STARTED:
                del self._started[next(iter(self._started))]
            self._started[run_id] = started

    def claimed(self, claim: Claim, worker_id: str) -> None:
        started = self._started.pop(claim.run_id, None)
        self.drive(DrivenRun(claim, worker_id, self._loop.time(), started))

    def drive(self, driven: DrivenRun) -> None:
        if len(self._driven) >= _MOST_DRIVEN:
            del self._driven[next(iter(self._driven))]
        self._driven[driven.claim.run_id] = driven

    def release(self, run_id: str, token: str) -> DrivenRun | None:
        """Forgets and returns a driven run whose lease has this token; None: another lease has followed, or none is
        known."""
        driven = self._driven.get(run_id)
        if driven is None or driven.claim.token != token:
            return None
        del self._driven[run_id]
        return driven

    def ended(self, run_id: str) -> None:
        self._started.pop(run_id, None)
        self._driven.pop(run_id, None)

    def ended_elsewhere(self, run_id: str | None) -> None:
        """Forgets runs that another process says have ended; None: any may have."""
        if run_id is None:
            self._unknown_at = self._loop.time()
        else:
            self._started.pop(run_id, None)

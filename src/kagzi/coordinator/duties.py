"""The duties, as a table: what each does in one tick, and when the horizon says that it is due.

A new duty is one more row in `duties`, and a field of `Horizon` if it has a moment of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from kagzi.api.operations import Write
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.job import JOB_RETENTION_DAYS
from kagzi.core.page import Cursor
from kagzi.core.schedule import FIRED_AT_ONCE
from kagzi.engine.local import HeldRuns, UnservedRuns
from kagzi.engine.settings import EngineSettings
from kagzi.store.protocol.changes import Changed
from kagzi.store.protocol.overview import Horizon
from kagzi.store.protocol.schedules import Fired
from kagzi.store.protocol.store import Store
from kagzi.store.unserved import OVERDUE

log = logging.getLogger("kagzi.coordinator")

_LONGEST_BACKOFF: Final[Span] = 60 * SECOND


class Duty(Struct, frozen=True):
    """One bounded tick, safe to run in any number of processes at once.

    `tick` returns whether there is more to do at once. `when` reads from the horizon when something of its kind is due;
    without it the duty runs at its interval alone.
    """

    name: str
    tick: Callable[[], Awaitable[bool]]
    every: Span
    when: Callable[[Horizon], Instant | None] | None = None


def duties(
    store: Store,
    settings: EngineSettings,
    changed: Callable[[Changed], None],
    jitter: Callable[[], float],
    new_run_id: Callable[[], str],
    fired: Callable[[Fired], None],
    submit: Callable[[Write], Awaitable[Any]],
    limits: HeldRuns,
    unserved: UnservedRuns,
) -> tuple[Duty, ...]:
    """Returns all duties. `changed` hears which runs they have changed, `fired` what schedules have started;
    `submit` has a write made durable, as those of callers are."""
    limit = settings.duty_batch

    def ending(message: str, end: Callable[[], Awaitable[Changed]]) -> Callable[[], Awaitable[bool]]:
        """Makes a tick that logs the runs it has changed."""

        async def tick() -> bool:
            done = await end()
            for run in done.runs:
                about = {"namespace": run.namespace, "run_id": run.run_id}
                log.warning(message, run.run_id, run.status.value, extra=about)
            changed(done)
            return len(done.runs) >= limit

        return tick

    def backoff(crashes: int) -> Span:
        return crash_backoff(crashes, jitter())

    async def expire_workers() -> bool:
        # For people to see only: runs are recovered by their own leases, whatever their worker's row says.
        lost = await store.workers.expire(limit, settings.worker_stale)
        for worker_id in lost:
            log.warning("worker %s has not been heard of and counts as lost", worker_id, extra={"worker_id": worker_id})
        return len(lost) >= limit

    async def fire_schedules() -> bool:
        turn = await store.schedules.fire(limit, new_run_id)
        for namespace, schedule_id, error in turn.errors:
            log.warning("schedule %s cannot fire: %s", schedule_id, error, extra={"namespace": namespace})
        if turn.looked:
            fired(turn)
        # A schedule that has more to catch up on than fits into a turn is due again at once.
        return turn.looked >= limit or len(turn.runs) >= FIRED_AT_ONCE

    async def fold_schedule_ends() -> bool:
        return await store.schedules.fold_ends(limit) >= limit

    async def cascade_ends() -> bool:
        # As ordinary writes, so that holders and waiters hear of them as of any other.
        requests = await store.duties.cascade_ends(limit)
        await asyncio.gather(*[submit(request) for request in requests])
        return bool(requests)

    async def run_jobs() -> bool:
        turn = await store.jobs.run_batch(new_run_id)
        if turn.job is None:
            return False
        # Also of a batch that has changed no run: the horizon says when the job goes on, and is read each second only.
        fired(Fired(looked=0, runs=turn.started, told=turn.told, woken=turn.woken))
        job = turn.job
        if job.status.finished:
            about = {"namespace": job.namespace}
            counts = (job.done, job.skipped, job.failed)
            log.info(
                "job %s (%s) is %s: %d done, %d skipped, %d failed",
                job.job_id,
                job.action,
                job.status,
                *counts,
                extra=about,
            )
        return True

    async def repair_lines() -> bool:
        # The net under what engines do at once when a run is let go of.
        return await limits.repair()

    def unserved_due(horizon: Horizon) -> Instant | None:
        overdue = any(at <= horizon.now - OVERDUE for at in horizon.due.values())
        return horizon.now if overdue or unserved.wanted else None

    every = settings.duty_interval
    return (
        Duty("fire schedules", fire_schedules, every, lambda horizon: horizon.schedule),
        Duty(
            "recover runs",
            ending(
                "the lease of run %s ended; it is %s now",
                lambda: store.duties.recover_runs(limit, settings.max_crashes, backoff),
            ),
            every,
            lambda horizon: horizon.lease,
        ),
        Duty(
            "time out steps",
            ending(
                "a step of run %s took too long; the run is %s now",
                lambda: store.duties.time_out_steps(limit, settings.step_grace),
            ),
            every,
            lambda horizon: _later(horizon.step_timeout, settings.step_grace),
        ),
        Duty(
            "time out runs",
            ending("run %s passed its deadline; it is %s now", lambda: store.duties.time_out_runs(limit)),
            every,
            lambda horizon: horizon.deadline,
        ),
        Duty(
            "end cancelled runs",
            ending(
                "run %s was cancelled and did not end in time; it is %s now",
                lambda: store.duties.end_cancelled_runs(limit),
            ),
            every,
            lambda horizon: horizon.cancel,
        ),
        Duty("run jobs", run_jobs, every, lambda horizon: horizon.job),
        Duty("repair lines", repair_lines, every, lambda horizon: horizon.now if horizon.limited else None),
        Duty("set unserved runs aside", unserved.look, every, unserved_due),
        Duty("cascade ends", cascade_ends, every, lambda horizon: horizon.cascade),
        Duty("expire workers", expire_workers, every, lambda horizon: _later(horizon.heartbeat, settings.worker_stale)),
        Duty("fold schedule ends", fold_schedule_ends, every, lambda horizon: horizon.schedule_end),
        # Most of what this one looks at stays, so it may look at more at once.
        Duty("prune history", Pruning(store, settings.duty_limit).tick, settings.prune_interval),
    )


class Pruning:
    """Deletes finished runs and workers that have gone, past their namespace's retention, and old entries of the audit
    log; a few at a time."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._from: Cursor | None = None  # where the next tick goes on

    async def tick(self) -> bool:
        deleted, self._from = await self._store.duties.prune_runs(self._limit, self._from)
        if deleted:
            log.info("%d finished runs were past their retention and are deleted", deleted)
        if self._from is not None:
            return True
        workers = await self._store.workers.prune(self._limit)
        entries = await self._store.audit.prune(self._limit)
        skips = await self._store.schedules.prune_skips(self._limit)
        await self._store.jobs.prune(JOB_RETENTION_DAYS * 86_400 * SECOND, self._limit)
        return max(workers, entries, skips) >= self._limit


def crash_backoff(crashes: int, jitter: float = 0.5) -> Span:
    """Returns how long a run waits after its n-th crash in a row: not at all the first time, which is nearly always a
    worker that died, then about 1 s, 2 s, 4 s … up to a minute, because it may be the run that kills them.

    About, by half either way (`jitter` is from 0 to 1): a worker that dies takes all its runs along. If they came
    back together, the one that kills would take the others down with it each time, until all count as poison.
    """
    if crashes <= 1:
        return 0
    return round(min(SECOND << min(crashes - 2, 6), _LONGEST_BACKOFF) * (0.5 + jitter))


def _later(at: Instant | None, span: Span) -> Instant | None:
    return None if at is None else at + span

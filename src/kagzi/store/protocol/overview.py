"""Counts of everything in a database, and the moments at which something is next due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kagzi.core.instant import Instant, Span
from kagzi.core.load import Load
from kagzi.store.protocol.changes import Queue

MOST_SURVEYED = 100_000


class Horizon(Struct, frozen=True, kw_only=True):
    """When something will next be due, read in one query once a second. None means nothing in sight."""

    now: Instant
    due: dict[Queue, Instant]  # the earliest claim of each queue asked about
    lease: Instant | None  # the earliest end of a lease
    step_timeout: Instant | None  # the earliest timeout of a step that shows as RUNNING
    deadline: Instant | None  # the earliest deadline of a live run
    cancel: Instant | None  # the earliest end of the time that a cancelled run has to clean up
    heartbeat: Instant | None  # the oldest heartbeat of a worker that is not OFFLINE
    schedule: Instant | None = None  # when a schedule is next looked at
    schedule_end: Instant | None = None  # the oldest end of a scheduled run that no counter has
    cascade: Instant | None = None  # the oldest end of a run whose children were not all told
    job: Instant | None = None  # when a job goes on
    limited: bool = False  # anything is limited, so runs may be held


class DueRun(Struct, frozen=True):
    """A run that waits for a worker, and what this has to have for it."""

    namespace: str
    run_id: str
    task_queue: str
    workflow_type: str
    version: str


class Survey(Struct, frozen=True, kw_only=True):
    """Counts of everything in all namespaces, for people."""

    now: Instant
    pending: int  # this and sleeping: of the first MOST_SURVEYED that wait
    sleeping: int
    running: int
    oldest_due_at: Instant | None  # since when the run that has waited longest could have been claimed
    workers_online: int
    workers_draining: int
    schema: int  # the newest migration this database has
    oldest_due: DueRun | None = None  # that run


class Blocker(Struct, frozen=True, kw_only=True):
    """A transaction that others of ours wait for, which is not one of ours that takes a moment."""

    now: Instant
    who: str
    everything: bool  # it holds a whole table; else some rows


class Overview(Protocol):
    """Counts and due moments, over all namespaces."""

    async def blocker(self) -> Blocker | None:
        """Returns who holds up our transactions. Reads no table of ours, so it waits for nobody, and may be asked
        before the store is open."""
        ...

    async def horizon(self, queues: Sequence[Queue]) -> Horizon: ...

    async def survey(self, stale: Span) -> Survey:
        """Counts everything. `stale` is, here and below, for how long a worker may be silent: one that was not heard of
        since is OFFLINE, whether `expire_workers` has come by or not."""
        ...

    async def load(self, stale: Span) -> Load:
        """Returns what gauges show. Reads no sleeping runs, and counts up to MOST_SURVEYED in each of the
        first QUEUES_OF_NAMESPACE queues of a namespace, and in MOST_QUEUES in all."""
        ...

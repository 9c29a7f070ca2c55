"""SqliteStore: the Store contract over one SQLite database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kagzi.api.admin import RunCount, WorkerFilter
from kagzi.api.keys import AuditFilter, LiveKeys
from kagzi.api.operations import CancelRun, Started, StartRun, TerminateRun, WakeAnswer, Write
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.api.transactions import BeginTransaction
from kagzi.api.workers import Heartbeat, Inbox, LeaseState, Poll, Polled, Registration
from kagzi.api.workflows import RunFilter
from kagzi.clock import SystemClock
from kagzi.core.audit import AuditEntry
from kagzi.core.declaration import Verdict
from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.core.instant import Instant, Span
from kagzi.core.job import Job
from kagzi.core.key import Key
from kagzi.core.load import Load
from kagzi.core.namespace import Namespace
from kagzi.core.page import Cursor
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.schedule import Schedule, Skip
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.core.versions import CheckedRun, Versions
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.errors import Conflict, InvalidRequest
from kagzi.store.migrate import PAGE_SECRET, RETENTION_DAYS, Migration
from kagzi.store.protocol import (
    Applied,
    Changed,
    Fired,
    FoundRuns,
    HeartbeatResult,
    Horizon,
    JobTurn,
    LimitChange,
    MovedPage,
    Offer,
    Queue,
    Recovered,
    RunFacts,
    SetAside,
    StoreTransaction,
    Survey,
    Unheld,
)
from kagzi.store.sqlite import (
    batch,
    borrowed,
    cancels,
    claims,
    duties,
    jobs,
    keys,
    leases,
    limits,
    lines,
    namespaces,
    schedules,
    search,
    signals,
    steps,
    unserved,
    values,
    versions,
    workers,
)
from kagzi.store.sqlite import children as family
from kagzi.store.sqlite import runs as read_runs
from kagzi.store.sqlite import survey as read_survey
from kagzi.store.sqlite.connection import Database
from kagzi.store.sqlite.schema import known_migrations, missing_migrations
from kagzi.store.sqlite.transactions import StepTransactions


class SqliteStore:
    """A file, or with no path a database in memory.

    `now` replaces the host's clock; `inline` replaces threads by calls in the caller's own (see
    `connection`). The clock is read within each transaction, so instants rise in the order of commits.
    """

    lanes = 1
    exclusive = True  # see `Joinable`
    _steps: StepTransactions | None = None  # made for the first step that has a transaction

    def __init__(
        self,
        path: str | None,
        *,
        now: Callable[[], Instant] | None = None,
        inline: bool = False,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        self._now = now or SystemClock().now
        self._retention_days = retention_days
        self._database = Database(path, inline=inline, retention_days=retention_days)
        self._listening: list[asyncio.Future[None]] = []
        self._opened = False
        self.page_secret = b""

    def lane_of(self, write: Write) -> int:  # noqa: ARG002 (there is one)
        return 0

    async def open(self) -> None:
        await self._database.open()
        self._opened = True
        try:
            self.page_secret = await self._database.read(lambda connection: keys.get_secret(connection, PAGE_SECRET))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for closed in self._listening:
            if not closed.done():
                closed.set_result(None)
        if self._opened:
            self._opened = False
            await self._database.close()

    @property
    def schema_version(self) -> int:
        return len(known_migrations())

    async def missing_migrations(self) -> tuple[Migration, ...]:
        return await asyncio.to_thread(missing_migrations, self._database.path)

    async def missing_indexes(self) -> tuple[str, ...]:
        return ()  # migrations have built them

    async def build_indexes(self) -> None: ...

    def sibling(self) -> SqliteStore:
        """Shares the connections: they have threads of their own already, and one writer is what SQLite
        wants.
        """
        other = SqliteStore.__new__(SqliteStore)
        other._now = self._now
        other._retention_days = self._retention_days
        other._database = self._database
        other._listening = []
        other._opened = False
        other.page_secret = self.page_secret
        return other

    # Writes.

    async def apply(self, writes: Sequence[Write]) -> Applied:
        now = self._now
        return await self._database.write(lambda connection: batch.apply(connection, writes, now()))

    async def start_in(self, connection: object, start: StartRun) -> Started:
        """In the thread of the caller, whose connection it is."""
        return borrowed.start_in(connection, start, path=self._database.path, now=self._now())

    async def begin(
        self, wanted: BeginTransaction, ready: Callable[[], Awaitable[None]], longest: Span
    ) -> StoreTransaction:
        if self._steps is None:
            self._steps = StepTransactions(self._database, self._now)
        return await self._steps.begin(wanted, ready, longest)

    async def claim(self, poll: Poll, lease: Span) -> Polled:
        now = self._now
        return await self._database.write(lambda connection: claims.claim(connection, poll, lease, now()))

    async def read_lease(self, namespace: str, run_id: str, token: str, confirm: bool) -> LeaseState | None:
        now = self._now
        state = await self._database.read(
            lambda connection: leases.read_lease(connection, namespace, run_id, token, now())
        )
        if state is None or state.confirmed or not confirm:
            return state
        await self._database.write(lambda connection: leases.confirm_lease(connection, namespace, run_id, token, now()))
        return await self.read_lease(namespace, run_id, token, False)

    async def read_inbox(
        self,
        namespace: str,
        run_id: str,
        token: str,
        names: Sequence[str],
        limit: int,
        children: bool = False,
        reconcile: bool = False,
    ) -> Inbox | None:
        run, now = (namespace, run_id), self._now
        if reconcile and await self._database.read(lambda connection: family.has_untold(connection, run)):
            await self._database.write(lambda connection: family.reconcile(connection, run, now()))
        return await self._database.read(
            lambda connection: signals.read_inbox(connection, namespace, run_id, token, names, limit, children)
        )

    # Reads.

    async def list_signals(self, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
        return await self._database.read(
            lambda connection: signals.list_signals(connection, namespace, run_id, after, limit)
        )

    async def read_values(self, namespace: str, run_id: str, names: Sequence[str], after: str) -> list[RunValue]:
        return await self._database.read(
            lambda connection: values.read_values(connection, namespace, run_id, names, after)
        )

    async def get_run(self, namespace: str, run_id: str) -> Run | None:
        return await self._database.read(lambda connection: read_runs.get_run(connection, namespace, run_id))

    async def get_runs(self, runs: Sequence[tuple[str, str]]) -> list[Run]:
        return await self._database.read(lambda connection: read_runs.get_runs(connection, runs))

    async def get_run_by_external_id(self, namespace: str, external_id: str) -> Run | None:
        return await self._database.read(
            lambda connection: read_runs.get_run_by_external_id(connection, namespace, external_id)
        )

    async def list_runs(self, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
        return await self._database.read(lambda connection: search.list_runs(connection, filter, cursor, limit))

    async def get_steps(
        self, namespace: str, run_id: str, payloads: bool = True, step_id: str | None = None
    ) -> list[Step]:
        return await self._database.read(
            lambda connection: steps.get_steps(connection, namespace, run_id, payloads, step_id)
        )

    async def wake_run(self, namespace: str, run_id: str) -> WakeAnswer | None:
        now = self._now
        return await self._database.write(lambda connection: cancels.wake_run(connection, namespace, run_id, now()))

    async def finished_of(self, runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        return await self._database.read(lambda connection: read_runs.finished_of(connection, runs))

    async def horizon(self, queues: Sequence[Queue]) -> Horizon:
        now = self._now
        return await self._database.read(lambda connection: read_runs.horizon(connection, queues, now()))

    async def survey(self, stale: Span) -> Survey:
        now = self._now
        return await self._database.read(lambda connection: read_survey.survey(connection, now(), stale))

    async def load(self, stale: Span) -> Load:
        now = self._now
        return await self._database.read(lambda connection: read_survey.load(connection, now(), stale))

    async def facts_of(self, runs: Sequence[tuple[str, str]]) -> list[RunFacts]:
        return await self._database.read(lambda connection: read_survey.facts_of(connection, runs))

    # Namespaces and workers.

    async def ensure_namespace(self, namespace: str) -> None:
        now = self._now
        days = self._retention_days
        await self._database.write(lambda connection: read_runs.ensure_namespace(connection, namespace, days, now()))

    async def create_namespace(self, namespace: str, display_name: str, description: str) -> Namespace | None:
        now = self._now
        days = self._retention_days
        return await self._database.write(
            lambda connection: namespaces.create_namespace(
                connection, namespace, display_name, description, days, now()
            )
        )

    async def get_namespace(self, namespace: str) -> Namespace | None:
        return await self._database.read(lambda connection: namespaces.get_namespace(connection, namespace))

    async def list_namespaces(self, after: str, limit: int) -> list[Namespace]:
        return await self._database.read(lambda connection: namespaces.list_namespaces(connection, after, limit))

    async def update_namespace(
        self,
        namespace: str,
        display_name: str | None,
        description: str | None,
        enabled: bool | None,
        handler: tuple[str, str | None] | None = None,
    ) -> Namespace | None:
        now = self._now
        return await self._database.write(
            lambda connection: namespaces.update_namespace(
                connection, namespace, display_name, description, enabled, handler, now()
            )
        )

    async def disabled_namespaces(self) -> list[str]:
        return await self._database.read(lambda connection: namespaces.disabled_namespaces(connection))

    async def register(self, registration: Registration) -> None:
        now = self._now

        def register(connection: sqlite3.Connection) -> None:
            moment = now()
            workers.register(connection, registration, moment)
            versions.remember_types(connection, registration, moment)

        await self._database.write(register)

    async def heartbeats(self, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        now = self._now
        return await self._database.write(
            lambda connection: [workers.heartbeat(connection, beat, now()) for beat in beats]
        )

    async def deregister(self, worker_id: str, namespace: str | None = None) -> list[Recovered]:
        now = self._now
        return await self._database.write(
            lambda connection: workers.deregister(connection, worker_id, namespace, now())
        )

    async def list_workers(self, namespace: str) -> list[Worker]:
        return await self._database.read(lambda connection: workers.list_workers(connection, namespace))

    async def get_worker(self, worker_id: str, namespace: str | None, stale: Span) -> Worker | None:
        now = self._now
        return await self._database.read(
            lambda connection: workers.get_worker(connection, worker_id, namespace, now() - stale)
        )

    async def find_workers(self, filter: WorkerFilter, cursor: Cursor | None, limit: int, stale: Span) -> list[Worker]:
        now = self._now
        return await self._database.read(
            lambda connection: workers.find_workers(connection, filter, cursor, limit, now() - stale)
        )

    async def drain_worker(self, worker_id: str, namespace: str | None = None) -> bool:
        now = self._now
        return await self._database.write(
            lambda connection: workers.drain_worker(connection, worker_id, namespace, now())
        )

    async def count_workers(self, namespace: str | None, stale: Span) -> dict[WorkerStatus, int]:
        now = self._now
        return await self._database.read(lambda connection: workers.count_workers(connection, namespace, now() - stale))

    async def count_runs(
        self,
        namespace: str | None,
        live: bool,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> list[RunCount]:
        return await self._database.read(
            lambda connection: read_runs.count_runs(connection, namespace, live, created_after, created_before)
        )

    # Versions of workflows.

    async def resolve_version(self, namespace: str, workflow_type: str) -> str:
        return await self._database.read(
            lambda connection: versions.resolve_version(connection, namespace, workflow_type)
        )

    async def set_default_version(self, namespace: str, workflow_type: str, version: str | None, force: bool) -> bool:
        now = self._now
        return await self._database.write(
            lambda connection: versions.set_default_version(connection, namespace, workflow_type, version, force, now())
        )

    async def list_versions(self, namespace: str, workflow_type: str | None, limit: int, stale: Span) -> Versions:
        now = self._now
        return await self._database.read(
            lambda connection: versions.list_versions(connection, namespace, workflow_type, limit, now() - stale)
        )

    async def move_runs(
        self,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        after: tuple[str, int, str],
        limit: int,
        dry_run: bool,
    ) -> MovedPage:
        asked = (namespace, workflow_type, from_version, to_version, after, limit, dry_run)
        return await self._database.write(lambda connection: versions.move_runs(connection, *asked))

    async def move_checked_runs(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> MovedPage:
        asked = (namespace, workflow_type, from_version, to_version, runs)
        return await self._database.write(lambda connection: versions.move_checked_runs(connection, *asked))

    # Pauses and limits.

    async def list_limits(self, namespace: str) -> list[FlowLimit]:
        return await self._database.read(lambda connection: limits.list_limits(connection, namespace))

    async def pause(self, namespace: str, scope: Scope, name: str, by: str, reason: str) -> FlowLimit:
        now = self._now
        return await self._database.write(
            lambda connection: limits.pause(connection, namespace, scope, name, by, reason, now())
        )

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        now = self._now
        return await self._database.write(lambda connection: limits.resume(connection, namespace, scope, name, now()))

    async def set_limit(self, namespace: str, scope: Scope, name: str, change: LimitChange) -> FlowLimit:
        now = self._now
        return await self._database.write(
            lambda connection: limits.set_limit(connection, namespace, scope, name, change, now())
        )

    async def declare_limits(self, namespace: str) -> None:
        now = self._now
        await self._database.write(lambda connection: limits.declare_limits(connection, namespace, now()))

    async def limited_namespaces(self) -> list[str]:
        return await self._database.read(limits.limited_namespaces)

    async def unhold(self, namespace: str, after: tuple[str, ...]) -> Unheld:
        now = self._now
        return await self._database.write(lambda connection: lines.unhold(connection, namespace, after, now()))

    async def read_wait(self, namespace: str, run_id: str) -> SlotWait | None:
        now = self._now
        return await self._database.read(lambda connection: lines.read_wait(connection, namespace, run_id, now()))

    # Schedules.

    async def create_schedule(self, create: CreateSchedule) -> Schedule | Conflict:
        now = self._now
        return await self._database.write(lambda connection: schedules.create_schedule(connection, create, now()))

    async def get_schedule(self, namespace: str, schedule_id: str) -> Schedule | None:
        return await self._database.read(lambda connection: schedules.get_schedule(connection, namespace, schedule_id))

    async def find_schedule(self, namespace: str, name: str) -> str | None:
        return await self._database.read(lambda connection: schedules.find_schedule(connection, namespace, name))

    async def list_schedules(
        self, namespace: str, task_queue: str | None, cursor: Cursor | None, limit: int
    ) -> list[Schedule]:
        return await self._database.read(
            lambda connection: schedules.list_schedules(connection, namespace, task_queue, cursor, limit)
        )

    async def declare_schedule(self, declare: DeclareSchedule) -> Verdict:
        now = self._now
        return await self._database.write(lambda connection: schedules.declare_schedule(connection, declare, now()))

    async def update_schedule(self, update: UpdateSchedule) -> Schedule | InvalidRequest | None:
        now = self._now
        return await self._database.write(lambda connection: schedules.update_schedule(connection, update, now()))

    async def delete_schedule(self, namespace: str, schedule_id: str) -> bool:
        return await self._database.write(
            lambda connection: schedules.delete_schedule(connection, namespace, schedule_id)
        )

    async def trigger_schedule(self, namespace: str, schedule_id: str, run_id: str) -> Recovered | Conflict | None:
        now = self._now
        return await self._database.write(
            lambda connection: schedules.trigger_schedule(connection, namespace, schedule_id, run_id, now())
        )

    async def backfill_schedule(
        self, schedule: Schedule, instants: Sequence[tuple[Instant, str]]
    ) -> list[Recovered] | None:
        now = self._now
        return await self._database.write(
            lambda connection: schedules.backfill_schedule(connection, schedule, instants, now())
        )

    async def list_schedule_runs(
        self, namespace: str, schedule_id: str, cursor: Cursor | None, limit: int
    ) -> list[Run]:
        return await self._database.read(
            lambda connection: schedules.list_schedule_runs(connection, namespace, schedule_id, cursor, limit)
        )

    async def list_skips(self, namespace: str, schedule_id: str, limit: int) -> list[Skip]:
        return await self._database.read(
            lambda connection: schedules.list_skips(connection, namespace, schedule_id, limit)
        )

    # Keys and the audit log.

    async def live_keys(self) -> LiveKeys:
        now = self._now
        return await self._database.read(lambda connection: keys.live_keys(connection, now()))

    async def create_key(self, key: Key, expires_in: Span | None, entry: AuditEntry) -> Key:
        now = self._now
        return await self._database.write(lambda connection: keys.create_key(connection, key, expires_in, entry, now()))

    async def get_key(self, key_id: str) -> Key | None:
        return await self._database.read(lambda connection: keys.get_key(connection, key_id))

    async def list_keys(self, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
        return await self._database.read(lambda connection: keys.list_keys(connection, namespace, cursor, limit))

    async def rotate_key(self, key_id: str, overlap: Span, new_id: str, digest: bytes, entry: AuditEntry) -> Key | None:
        now = self._now
        return await self._database.write(
            lambda connection: keys.rotate_key(connection, key_id, overlap, new_id, digest, entry, now())
        )

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> Key | None:
        now = self._now
        return await self._database.write(lambda connection: keys.revoke_key(connection, key_id, entry, now()))

    async def touch_keys(self, used: Mapping[str, Instant]) -> None:
        await self._database.write(lambda connection: keys.touch_keys(connection, used))

    async def append_audit(self, entries: Sequence[AuditEntry]) -> None:
        now = self._now
        await self._database.write(lambda connection: keys.append_audit(connection, entries, now()))

    async def list_audit(self, filter: AuditFilter, cursor: Cursor | None, limit: int) -> list[AuditEntry]:
        return await self._database.read(lambda connection: keys.list_audit(connection, filter, cursor, limit))

    # Duties.

    async def recover_runs(self, limit: int, max_crashes: int, backoff: Callable[[int], Span]) -> Changed:
        now = self._now
        return await self._database.write(
            lambda connection: duties.recover_runs(connection, limit, max_crashes, backoff, now())
        )

    async def time_out_steps(self, limit: int, grace: Span) -> Changed:
        now = self._now
        return await self._database.write(lambda connection: duties.time_out_steps(connection, limit, grace, now()))

    async def time_out_runs(self, limit: int) -> Changed:
        now = self._now
        return await self._database.write(lambda connection: duties.time_out_runs(connection, limit, now()))

    async def end_cancelled_runs(self, limit: int) -> Changed:
        now = self._now
        return await self._database.write(lambda connection: duties.end_cancelled_runs(connection, limit, now()))

    async def cascade_ends(self, limit: int) -> list[CancelRun | TerminateRun]:
        return await self._database.write(lambda connection: family.cascade_ends(connection, limit))

    async def set_runs_aside(self, offered: Sequence[Offer], stale: Span, limit: int) -> SetAside:
        now = self._now
        return await self._database.write(
            lambda connection: unserved.set_runs_aside(connection, offered, limit, (at := now()) - stale, at)
        )

    async def expire_workers(self, limit: int, after: Span) -> list[str]:
        now = self._now
        return await self._database.write(lambda connection: workers.expire_workers(connection, limit, after, now()))

    async def fire_schedules(self, limit: int, new_run_id: Callable[[], str]) -> Fired:
        now = self._now
        return await self._database.write(
            lambda connection: schedules.fire_schedules(connection, limit, new_run_id, now())
        )

    async def start_job(self, job: Job, most: int) -> Job | None:
        now = self._now
        return await self._database.write(lambda connection: jobs.insert_job(connection, job, most, now()))

    async def get_job(self, namespace: str, job_id: str) -> Job | None:
        return await self._database.read(lambda connection: jobs.get_job(connection, namespace, job_id))

    async def list_jobs(self, namespace: str, cursor: Cursor | None, limit: int) -> list[Job]:
        return await self._database.read(lambda connection: jobs.list_jobs(connection, namespace, cursor, limit))

    async def cancel_job(self, namespace: str, job_id: str) -> None:
        now = self._now
        await self._database.write(lambda connection: jobs.cancel_job(connection, namespace, job_id, now()))

    async def run_job(self, new_run_id: Callable[[], str]) -> JobTurn:
        now = self._now
        return await self._database.write(lambda connection: jobs.run_job(connection, new_run_id, now()))

    async def delete_run(self, namespace: str, run_id: str) -> bool:
        return await self._database.write(lambda connection: jobs.delete_run(connection, namespace, run_id))

    async def prune_jobs(self, kept: Span, limit: int) -> None:  # noqa: ARG002
        before = self._now() - kept
        await self._database.write(lambda connection: jobs.prune_jobs(connection, before))

    async def fold_schedule_ends(self, limit: int) -> int:
        now = self._now
        # Looking needs no write lock, and there is seldom anything to add.
        if not await self._database.read(schedules.has_schedule_ends):
            return 0
        return await self._database.write(lambda connection: schedules.fold_schedule_ends(connection, limit, now()))

    async def prune_skips(self, limit: int) -> int:
        now = self._now
        old = await self._database.read(lambda connection: schedules.find_old_skips(connection, limit, now()))
        if not old:
            return 0
        return await self._database.write(lambda connection: schedules.delete_skips(connection, old))

    async def prune_runs(self, limit: int, after: Cursor | None) -> tuple[int, Cursor | None]:
        now = self._now
        # Looking needs no write lock, and there is seldom anything to delete. Finished runs do not change in
        # between.
        expired, cursor = await self._database.read(
            lambda connection: duties.find_expired_runs(connection, limit, after, now())
        )
        if not expired:
            return 0, cursor
        return await self._database.write(lambda connection: duties.delete_runs(connection, expired)), cursor

    async def prune_workers(self, limit: int) -> int:
        now = self._now
        gone, old = await self._database.read(lambda connection: workers.find_gone_workers(connection, limit, now()))
        deleted = 0
        if gone or old:
            deleted += await self._database.write(lambda connection: workers.delete_workers(connection, gone, old))
        left = limit - deleted
        unseen = await self._database.read(lambda connection: versions.find_unseen_types(connection, left, now()))
        if unseen:
            deleted += await self._database.write(lambda connection: versions.forget_types(connection, unseen))
        return deleted

    async def prune_audit(self, limit: int) -> int:
        now = self._now
        # As above: there is seldom anything to delete.
        if not await self._database.read(lambda connection: keys.has_old_audit(connection, limit, now())):
            return 0
        return await self._database.write(lambda connection: keys.prune_audit(connection, limit, now()))

    # Wake-ups.

    async def listen(
        self,
        on_work: Callable[[Queue], None],  # noqa: ARG002
        on_finished: Callable[[str, str], None],  # noqa: ARG002
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,  # noqa: ARG002
    ) -> None:
        # SQLite says that another process has written, not what.
        stop = self._database.watch(on_unknown)
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening.append(closed)
        try:
            await closed
        finally:
            self._listening.remove(closed)
            stop()

    async def announce(
        self, work: Sequence[Queue], finished: Sequence[tuple[str, str]], news: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Nothing to do: the commit itself is what other processes notice."""

"""PostgresStore: the store on PostgreSQL.

Who uses which connection:

    lane 0      starts of runs
    lane 1 …    chunks, sharded by run id, so that all of one run's go through one connection in their order; and what
                is asked for outside of a lease
    pool        claims, heartbeats, duties, reads
    announcer   notifications to other processes
    listener    notifications from them, while somebody listens

They are opened when first needed: a command that reads one run makes one connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from kagzi.api.admin import RunCount, WorkerFilter
from kagzi.api.keys import AuditFilter, LiveKeys
from kagzi.api.operations import CancelRun, Chunk, SendSignal, Started, StartRun, TerminateRun, WakeAnswer, Write
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.api.transactions import BeginTransaction
from kagzi.api.workers import Heartbeat, Inbox, LeaseState, Poll, Polled, Registration
from kagzi.api.workflows import RunFilter
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
from kagzi.errors import Conflict, InvalidRequest, KagziError
from kagzi.store.migrate import PAGE_SECRET, RETENTION_DAYS, Migration
from kagzi.store.postgres import (
    borrowed,
    cancels,
    duties,
    jobs,
    keys,
    leases,
    limits,
    lines,
    namespaces,
    runs,
    schedules,
    search,
    signals,
    steps,
    unserved,
    values,
    versions,
    workers,
)
from kagzi.store.postgres import children as family
from kagzi.store.postgres.cancels import Request, apply_requests
from kagzi.store.postgres.chunks import apply_chunks
from kagzi.store.postgres.connection import Connector, translate
from kagzi.store.postgres.migrations import SETTINGS as MIGRATION_SETTINGS
from kagzi.store.postgres.migrations import known_migrations, migrate, missing_migrations, unbuilt_migrations
from kagzi.store.postgres.online import IndexBuilds, names_of, not_built
from kagzi.store.postgres.pool import Line, Pool, hang_up
from kagzi.store.postgres.signals import apply_signals
from kagzi.store.postgres.starts import apply_starts
from kagzi.store.postgres.survey import facts_of, load, survey
from kagzi.store.postgres.transactions import StepTransactions
from kagzi.store.postgres.wakeups import Announcer, Listener
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

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

R = TypeVar("R")
T = TypeVar("T", StartRun, Chunk, SendSignal, Request)
Apply = Callable[["Connection", Sequence[T], Instant | None], Awaitable[Applied]]

POOL_SIZE = 4
SIBLING_POOL_SIZE = 2
_SCHEDULE_INDEXES = (
    "workflow_runs_fire",
    "workflow_runs_firing",
    "workflow_runs_scheduled",
    "workflow_runs_scheduled_live",
)

_LINES = "workflow_runs_lines"
_DEBOUNCED = "workflow_runs_debounced"


class PostgresStore:
    """See `kagzi.store.protocol.Store`.

    `now` replaces the database's clock, for tests. `listen_url` is where notifications can be heard, if that is another
    way to the same database: behind a PgBouncer in transaction mode they cannot.
    """

    exclusive = False  # see `Joinable`

    def __init__(
        self,
        url: str,
        *,
        now: Callable[[], Instant] | None = None,
        pool_size: int = POOL_SIZE,
        lanes: int = 3,
        listen_url: str | None = None,
        chance: random.Random | None = None,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        if lanes < 2:
            raise ValueError("there is a lane for starts and at least one for chunks")
        self.lanes = lanes
        self.page_secret = b""
        self._url = url
        self._clock = now
        self._now: Callable[[], Instant | None] = now or _nothing
        self._listen_url = listen_url
        self._retention_days = retention_days
        self._chance = chance or random.Random()
        self._connector = Connector(url)
        self._hearing = self._connector if listen_url is None else Connector.for_listening(listen_url)
        self._lanes = [Line(self._connector, self._chance) for _ in range(lanes)]
        self._pool = Pool(self._connector, self._chance, pool_size)
        self._indexes = IndexBuilds(self._hearing, self._pool)
        # On the way we listen on, too: there our own notifications can be told from others'.
        self._announcer = Announcer(self._hearing, self._chance)
        self._listeners: set[asyncio.Task[None]] = set()
        self._steps: StepTransactions | None = None  # made for the first step that has a transaction

    def lane_of(self, write: Write) -> int:
        if type(write) is StartRun:
            return 0
        # The last character of a run id is random; its code is as good a hash as any.
        return 1 + ord(write.run_id[-1]) % (self.lanes - 1)

    @property
    def schema_version(self) -> int:
        return len(known_migrations())

    async def open(self) -> None:
        async def prepare(connection: Connection) -> bytes:
            await migrate(connection, self._retention_days)
            await self._indexes.read(connection)
            return await keys.get_secret(connection, PAGE_SECRET)

        self.page_secret = await self._on_its_own(prepare)
        self._indexes.start()

    async def missing_migrations(self) -> tuple[Migration, ...]:
        return await self._on_its_own(missing_migrations)

    async def missing_indexes(self) -> tuple[str, ...]:
        if self.page_secret:  # it is open, and looks every few seconds
            return self._indexes.missing
        return names_of(await self._on_its_own(unbuilt_migrations))

    async def build_indexes(self) -> None:
        await self._indexes.finish()

    async def _on_its_own(self, work: Callable[[Connection], Awaitable[R]]) -> R:
        """Do work about the schema on a connection made for it, which is given time."""
        connection = await self._connector.connect(**MIGRATION_SETTINGS)
        try:
            return await work(connection)
        except KagziError:
            raise
        except Exception as error:
            raise translate(error) from None
        finally:
            await hang_up(connection)

    async def close(self) -> None:
        await self._indexes.close()
        for task in self._listeners:
            task.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in self._lanes), self._pool.close(), self._announcer.close())
        if self._steps is not None:
            await self._steps.close()

    def sibling(self) -> PostgresStore:
        return PostgresStore(
            self._url,
            now=self._clock,
            pool_size=SIBLING_POOL_SIZE,
            lanes=self.lanes,
            retention_days=self._retention_days,
            listen_url=self._listen_url,
        )

    # Writes.

    async def apply(self, writes: Sequence[Write]) -> Applied:
        if not writes:
            return Applied([], [])
        chunks = [write for write in writes if type(write) is Chunk]
        if len(chunks) == len(writes):
            return await self._apply(self.lane_of(chunks[0]), apply_chunks, chunks)
        starts = [write for write in writes if type(write) is StartRun]
        if len(starts) == len(writes):
            return await self._apply_starts(starts)
        sent = [write for write in writes if type(write) is SendSignal]
        requests = [write for write in writes if not isinstance(write, StartRun | Chunk | SendSignal)]
        nothing = Applied([], [])
        started = await self._apply_starts(starts) if starts else nothing
        done = await self._apply(self.lane_of(chunks[0]), apply_chunks, chunks) if chunks else nothing
        told = await self._apply(self.lane_of(sent[0]), apply_signals, sent) if sent else nothing
        asked = await self._apply(self.lane_of(requests[0]), apply_requests, requests) if requests else nothing
        answers = {StartRun: iter(started.answers), Chunk: iter(done.answers), SendSignal: iter(told.answers)}
        others = iter(asked.answers)
        return Applied([next(answers.get(type(write), others)) for write in writes], done.woken + asked.woken)

    async def _apply_starts(self, starts: list[StartRun]) -> Applied:
        """Without the index that keeps a key to one run, debounced starts would make one each."""
        if _DEBOUNCED not in self._indexes.missing or all(start.debounce is None for start in starts):
            return await self._apply(0, apply_starts, starts)
        others = [start for start in starts if start.debounce is None]
        answers = iter((await self._apply(0, apply_starts, others)).answers if others else ())
        return Applied([next(answers) if start.debounce is None else not_built() for start in starts], [])

    async def start_in(self, connection: object, start: StartRun) -> Started:
        return await borrowed.start_in(connection, start, secret=self.page_secret, now=self._now())

    async def begin(
        self, wanted: BeginTransaction, ready: Callable[[], Awaitable[None]], longest: Span
    ) -> StoreTransaction:
        if self._steps is None:
            self._steps = StepTransactions(self._url, lambda: self.page_secret, self._now)
        return await self._steps.begin(wanted, ready, longest)

    async def _apply(self, lane: int, apply: Apply[T], writes: Sequence[T]) -> Applied:
        now = self._now()
        try:
            return await self._lanes[lane].do(lambda connection: apply(connection, writes, now))
        except InvalidRequest as error:
            # Somewhere in the batch is a value that cannot be stored. It must not fail the others.
            if len(writes) == 1:
                return Applied([error], [])
        middle = len(writes) // 2
        applied = await self._apply(lane, apply, writes[:middle])
        # Nothing of a run is applied after a refused operation: its chunks stay in order.
        refused = {
            (write.namespace, write.run_id): answer
            for write, answer in zip(writes[:middle], applied.answers, strict=True)
            if isinstance(answer, InvalidRequest)
        }
        rest = [write for write in writes[middle:] if (write.namespace, write.run_id) not in refused]
        later = await self._apply(lane, apply, rest) if rest else Applied([], [])
        answers = iter(later.answers)
        applied.answers.extend(
            refused.get((write.namespace, write.run_id)) or next(answers) for write in writes[middle:]
        )
        applied.woken.extend(later.woken)
        return applied

    async def claim(self, poll: Poll, lease: Span) -> Polled:
        now = self._now()
        return await self._pool.run(lambda connection: runs.claim_runs(connection, poll, lease, now))

    async def read_lease(self, namespace: str, run_id: str, token: str, confirm: bool) -> LeaseState | None:
        if not (runs.is_id(run_id) and runs.is_id(token)):
            return None
        now = self._now()
        return await self._pool.run(
            lambda connection: leases.read_lease(connection, namespace, run_id, token, confirm, now)
        )

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
        if not (runs.is_id(run_id) and runs.is_id(token)):
            return None
        if reconcile:
            now = self._now()
            await self._pool.run(lambda connection: family.reconcile(connection, namespace, run_id, now))
        return await self._pool.run(
            lambda connection: signals.read_inbox(connection, namespace, run_id, token, names, limit, children)
        )

    # Reads.

    async def list_signals(self, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
        if not runs.is_id(run_id):
            return []
        return await self._pool.run(
            lambda connection: signals.list_signals(connection, namespace, run_id, after, limit)
        )

    async def read_values(self, namespace: str, run_id: str, names: Sequence[str], after: str) -> list[RunValue]:
        if not runs.is_id(run_id):
            return []
        return await self._pool.run(lambda connection: values.read_values(connection, namespace, run_id, names, after))

    async def get_run(self, namespace: str, run_id: str) -> Run | None:
        if not runs.is_id(run_id):
            return None
        return await self._pool.run(lambda connection: runs.get_run(connection, namespace, run_id))

    async def get_runs(self, runs_asked: Sequence[tuple[str, str]]) -> list[Run]:
        asked = [pair for pair in runs_asked if runs.is_id(pair[1])]
        return await self._pool.run(lambda connection: runs.get_runs(connection, asked))

    async def get_run_by_external_id(self, namespace: str, external_id: str) -> Run | None:
        return await self._pool.run(lambda connection: runs.get_run_by_external_id(connection, namespace, external_id))

    async def list_runs(self, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
        missing = self._indexes.missing
        return await self._pool.run(lambda connection: search.list_runs(connection, filter, cursor, limit, missing))

    async def get_steps(
        self, namespace: str, run_id: str, payloads: bool = True, step_id: str | None = None
    ) -> list[Step]:
        if not runs.is_id(run_id):
            return []
        return await self._pool.run(
            lambda connection: steps.get_steps(connection, namespace, run_id, payloads, step_id)
        )

    async def wake_run(self, namespace: str, run_id: str) -> WakeAnswer | None:
        if not runs.is_id(run_id):
            return None
        now = self._now()
        return await self._pool.run(lambda connection: cancels.wake_run(connection, namespace, run_id, now))

    async def finished_of(self, runs_asked: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        malformed = [pair for pair in runs_asked if not runs.is_id(pair[1])]
        asked = [pair for pair in runs_asked if runs.is_id(pair[1])]
        if not asked:
            return malformed
        return malformed + await self._pool.run(lambda connection: runs.finished_of(connection, asked))

    async def horizon(self, queues: Sequence[Queue]) -> Horizon:
        now = self._now()
        return await self._pool.run(lambda connection: runs.read_horizon(connection, queues, now))

    async def survey(self, stale: Span) -> Survey:
        now = self._now()
        return await self._pool.run(lambda connection: survey(connection, now, stale))

    async def load(self, stale: Span) -> Load:
        now = self._now()
        return await self._pool.run(lambda connection: load(connection, now, stale))

    async def facts_of(self, runs_asked: Sequence[tuple[str, str]]) -> list[RunFacts]:
        asked = [pair for pair in runs_asked if runs.is_id(pair[1])]
        return await self._pool.run(lambda connection: facts_of(connection, asked)) if asked else []

    # Namespaces and workers.

    async def ensure_namespace(self, namespace: str) -> None:
        now = self._now()
        days = self._retention_days
        await self._pool.run(lambda connection: runs.ensure_namespace(connection, namespace, days, now))

    async def create_namespace(self, namespace: str, display_name: str, description: str) -> Namespace | None:
        now = self._now()
        days = self._retention_days
        return await self._pool.run(
            lambda connection: namespaces.create_namespace(connection, namespace, display_name, description, days, now)
        )

    async def get_namespace(self, namespace: str) -> Namespace | None:
        return await self._pool.run(lambda connection: namespaces.get_namespace(connection, namespace))

    async def list_namespaces(self, after: str, limit: int) -> list[Namespace]:
        return await self._pool.run(lambda connection: namespaces.list_namespaces(connection, after, limit))

    async def update_namespace(
        self,
        namespace: str,
        display_name: str | None,
        description: str | None,
        enabled: bool | None,
        handler: tuple[str, str | None] | None = None,
    ) -> Namespace | None:
        now = self._now()
        return await self._pool.run(
            lambda connection: namespaces.update_namespace(
                connection, namespace, display_name, description, enabled, handler, now
            )
        )

    async def disabled_namespaces(self) -> list[str]:
        return await self._pool.run(lambda connection: namespaces.disabled_namespaces(connection))

    async def register(self, registration: Registration) -> None:
        now = self._now()

        async def register(connection: Connection) -> None:
            await workers.register_worker(connection, registration, now)
            await versions.remember_types(connection, registration, now)

        await self._pool.run(register)

    async def heartbeats(self, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        now = self._now()
        return await self._pool.run(lambda connection: workers.heartbeats(connection, beats, now))

    async def deregister(self, worker_id: str, namespace: str | None = None) -> list[Recovered]:
        now = self._now()
        return await self._pool.run(lambda connection: workers.deregister_worker(connection, worker_id, namespace, now))

    async def list_workers(self, namespace: str) -> list[Worker]:
        return await self._pool.run(lambda connection: workers.list_workers(connection, namespace))

    async def get_worker(self, worker_id: str, namespace: str | None, stale: Span) -> Worker | None:
        if not runs.is_id(worker_id):
            return None
        now = self._now()
        return await self._pool.run(lambda connection: workers.get_worker(connection, worker_id, namespace, now, stale))

    async def find_workers(self, filter: WorkerFilter, cursor: Cursor | None, limit: int, stale: Span) -> list[Worker]:
        now = self._now()
        return await self._pool.run(
            lambda connection: workers.find_workers(connection, filter, cursor, limit, now, stale)
        )

    async def drain_worker(self, worker_id: str, namespace: str | None = None) -> bool:
        now = self._now()
        return await self._pool.run(lambda connection: workers.drain_worker(connection, worker_id, namespace, now))

    async def count_workers(self, namespace: str | None, stale: Span) -> dict[WorkerStatus, int]:
        now = self._now()
        return await self._pool.run(lambda connection: workers.count_workers(connection, namespace, now, stale))

    async def count_runs(
        self,
        namespace: str | None,
        live: bool,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> list[RunCount]:
        return await self._pool.run(
            lambda connection: runs.count_runs(connection, namespace, live, created_after, created_before)
        )

    # Versions of workflows.

    async def resolve_version(self, namespace: str, workflow_type: str) -> str:
        return await self._pool.run(lambda connection: versions.resolve_version(connection, namespace, workflow_type))

    async def set_default_version(self, namespace: str, workflow_type: str, version: str | None, force: bool) -> bool:
        now = self._now()
        return await self._pool.run(
            lambda connection: versions.set_default_version(connection, namespace, workflow_type, version, force, now)
        )

    async def list_versions(self, namespace: str, workflow_type: str | None, limit: int, stale: Span) -> Versions:
        now = self._now()
        return await self._pool.run(
            lambda connection: versions.list_versions(connection, namespace, workflow_type, limit, now, stale)
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
        return await self._pool.run(lambda connection: versions.move_runs(connection, *asked))

    async def move_checked_runs(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> MovedPage:
        asked = (namespace, workflow_type, from_version, to_version, runs)
        return await self._pool.run(lambda connection: versions.move_checked_runs(connection, *asked))

    # Pauses and limits.

    async def list_limits(self, namespace: str) -> list[FlowLimit]:
        return await self._pool.run(lambda connection: limits.list_limits(connection, namespace))

    async def pause(self, namespace: str, scope: Scope, name: str, by: str, reason: str) -> FlowLimit:
        if scope is Scope.WORKFLOW:
            self._indexes.check(_LINES)
        now = self._now()
        return await self._pool.run(
            lambda connection: limits.pause(connection, namespace, scope, name, by, reason, now)
        )

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        now = self._now()
        return await self._pool.run(lambda connection: limits.resume(connection, namespace, scope, name, now))

    async def set_limit(self, namespace: str, scope: Scope, name: str, change: LimitChange) -> FlowLimit:
        self._indexes.check(_LINES)
        now = self._now()
        return await self._pool.run(
            lambda connection: limits.set_limit(connection, namespace, scope, name, change, now)
        )

    async def declare_limits(self, namespace: str) -> None:
        self._indexes.check(_LINES)
        now = self._now()
        await self._pool.run(lambda connection: limits.declare_limits(connection, namespace, now))

    async def limited_namespaces(self) -> list[str]:
        return await self._pool.run(limits.limited_namespaces)

    async def unhold(self, namespace: str, after: tuple[str, ...]) -> Unheld:
        if _LINES in self._indexes.missing:
            return Unheld([], ())  # so that runs are not read one by one; nothing is held before
        now = self._now()
        return await self._pool.run(lambda connection: lines.unhold(connection, namespace, after, now))

    async def read_wait(self, namespace: str, run_id: str) -> SlotWait | None:
        if _LINES in self._indexes.missing:
            return None
        now = self._now()
        return await self._pool.run(lambda connection: lines.read_wait(connection, namespace, run_id, now))

    # Schedules.

    async def create_schedule(self, create: CreateSchedule) -> Schedule | Conflict:
        self._indexes.check(*_SCHEDULE_INDEXES)
        now = self._now()
        return await self._pool.run(lambda connection: schedules.create_schedule(connection, create, now))

    async def get_schedule(self, namespace: str, schedule_id: str) -> Schedule | None:
        return await self._pool.run(lambda connection: schedules.get_schedule(connection, namespace, schedule_id))

    async def find_schedule(self, namespace: str, name: str) -> str | None:
        return await self._pool.run(lambda connection: schedules.find_schedule(connection, namespace, name))

    async def list_schedules(
        self, namespace: str, task_queue: str | None, cursor: Cursor | None, limit: int
    ) -> list[Schedule]:
        return await self._pool.run(
            lambda connection: schedules.list_schedules(connection, namespace, task_queue, cursor, limit)
        )

    async def declare_schedule(self, declare: DeclareSchedule) -> Verdict:
        self._indexes.check(*_SCHEDULE_INDEXES)
        now = self._now()
        return await self._pool.run(lambda connection: schedules.declare_schedule(connection, declare, now))

    async def update_schedule(self, update: UpdateSchedule) -> Schedule | InvalidRequest | None:
        now = self._now()
        return await self._pool.run(lambda connection: schedules.update_schedule(connection, update, now))

    async def delete_schedule(self, namespace: str, schedule_id: str) -> bool:
        return await self._pool.run(lambda connection: schedules.delete_schedule(connection, namespace, schedule_id))

    async def trigger_schedule(self, namespace: str, schedule_id: str, run_id: str) -> Recovered | Conflict | None:
        self._indexes.check(*_SCHEDULE_INDEXES)
        now = self._now()
        return await self._pool.run(
            lambda connection: schedules.trigger_schedule(connection, namespace, schedule_id, run_id, now)
        )

    async def backfill_schedule(
        self, schedule: Schedule, instants: Sequence[tuple[Instant, str]]
    ) -> list[Recovered] | None:
        self._indexes.check(*_SCHEDULE_INDEXES)
        now = self._now()
        return await self._pool.run(lambda connection: schedules.backfill_schedule(connection, schedule, instants, now))

    async def list_schedule_runs(
        self, namespace: str, schedule_id: str, cursor: Cursor | None, limit: int
    ) -> list[Run]:
        self._indexes.check(*_SCHEDULE_INDEXES)
        return await self._pool.run(
            lambda connection: schedules.list_schedule_runs(connection, namespace, schedule_id, cursor, limit)
        )

    async def list_skips(self, namespace: str, schedule_id: str, limit: int) -> list[Skip]:
        return await self._pool.run(lambda connection: schedules.list_skips(connection, namespace, schedule_id, limit))

    # Keys and the audit log.

    async def live_keys(self) -> LiveKeys:
        now = self._now()
        return await self._pool.run(lambda connection: keys.live_keys(connection, now))

    async def create_key(self, key: Key, expires_in: Span | None, entry: AuditEntry) -> Key:
        now = self._now()
        return await self._pool.run(lambda connection: keys.create_key(connection, key, expires_in, entry, now))

    async def get_key(self, key_id: str) -> Key | None:
        return await self._pool.run(lambda connection: keys.get_key(connection, key_id))

    async def list_keys(self, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
        return await self._pool.run(lambda connection: keys.list_keys(connection, namespace, cursor, limit))

    async def rotate_key(self, key_id: str, overlap: Span, new_id: str, digest: bytes, entry: AuditEntry) -> Key | None:
        now = self._now()
        return await self._pool.run(
            lambda connection: keys.rotate_key(connection, key_id, overlap, new_id, digest, entry, now)
        )

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> Key | None:
        now = self._now()
        return await self._pool.run(lambda connection: keys.revoke_key(connection, key_id, entry, now))

    async def touch_keys(self, used: Mapping[str, Instant]) -> None:
        await self._pool.run(lambda connection: keys.touch_keys(connection, used))

    async def append_audit(self, entries: Sequence[AuditEntry]) -> None:
        now = self._now()
        await self._pool.run(lambda connection: keys.append_audit(connection, entries, now))

    async def list_audit(self, filter: AuditFilter, cursor: Cursor | None, limit: int) -> list[AuditEntry]:
        return await self._pool.run(lambda connection: keys.list_audit(connection, filter, cursor, limit))

    # Duties.

    async def recover_runs(self, limit: int, max_crashes: int, backoff: Callable[[int], Span]) -> Changed:
        now = self._now()
        return await self._pool.run(
            lambda connection: duties.recover_runs(connection, limit, max_crashes, backoff, now)
        )

    async def time_out_steps(self, limit: int, grace: Span) -> Changed:
        now = self._now()
        return await self._pool.run(lambda connection: duties.time_out_steps(connection, limit, grace, now))

    async def time_out_runs(self, limit: int) -> Changed:
        now = self._now()
        return await self._pool.run(lambda connection: duties.time_out_runs(connection, limit, now))

    async def end_cancelled_runs(self, limit: int) -> Changed:
        now = self._now()
        return await self._pool.run(lambda connection: duties.end_cancelled_runs(connection, limit, now))

    async def cascade_ends(self, limit: int) -> list[CancelRun | TerminateRun]:
        return await self._pool.run(lambda connection: family.cascade_ends(connection, limit))

    async def set_runs_aside(self, offered: Sequence[Offer], stale: Span, limit: int) -> SetAside:
        if "workflow_runs_aside" in self._indexes.missing:
            return SetAside()
        now = self._now()
        return await self._pool.run(lambda connection: unserved.set_runs_aside(connection, offered, limit, stale, now))

    async def expire_workers(self, limit: int, after: Span) -> list[str]:
        now = self._now()
        return await self._pool.run(lambda connection: workers.expire_workers(connection, limit, after, now))

    async def fire_schedules(self, limit: int, new_run_id: Callable[[], str]) -> Fired:
        if not set(_SCHEDULE_INDEXES).isdisjoint(self._indexes.missing):
            return Fired(looked=0, runs=[], told=[])  # there are no schedules yet
        now = self._now()
        return await self._pool.run(lambda connection: schedules.fire_schedules(connection, limit, new_run_id, now))

    async def start_job(self, job: Job, most: int) -> Job | None:
        now = self._now()
        return await self._pool.run(lambda connection: jobs.insert_job(connection, job, most, now))

    async def get_job(self, namespace: str, job_id: str) -> Job | None:
        return await self._pool.run(lambda connection: jobs.get_job(connection, namespace, job_id))

    async def list_jobs(self, namespace: str, cursor: Cursor | None, limit: int) -> list[Job]:
        return await self._pool.run(lambda connection: jobs.list_jobs(connection, namespace, cursor, limit))

    async def cancel_job(self, namespace: str, job_id: str) -> None:
        now = self._now()
        await self._pool.run(lambda connection: jobs.cancel_job(connection, namespace, job_id, now))

    async def run_job(self, new_run_id: Callable[[], str]) -> JobTurn:
        now, missing = self._now(), self._indexes.missing
        return await self._pool.run(lambda connection: jobs.run_job(connection, new_run_id, now, missing))

    async def delete_run(self, namespace: str, run_id: str) -> bool:
        return await self._pool.run(lambda connection: jobs.delete_run(connection, namespace, run_id))

    async def prune_jobs(self, kept: Span, limit: int) -> None:
        now = self._now()
        await self._pool.run(lambda connection: jobs.prune_jobs(connection, kept, limit, now))

    async def fold_schedule_ends(self, limit: int) -> int:
        now = self._now()
        return await self._pool.run(lambda connection: schedules.fold_schedule_ends(connection, limit, now))

    async def prune_skips(self, limit: int) -> int:
        now = self._now()
        return await self._pool.run(lambda connection: schedules.prune_skips(connection, limit, now))

    async def prune_runs(self, limit: int, after: Cursor | None) -> tuple[int, Cursor | None]:
        now = self._now()
        return await self._pool.run(lambda connection: duties.prune_runs(connection, limit, after, now))

    async def prune_audit(self, limit: int) -> int:
        now = self._now()
        return await self._pool.run(lambda connection: keys.prune_audit(connection, limit, now))

    async def prune_workers(self, limit: int) -> int:
        now = self._now()
        deleted = await self._pool.run(lambda connection: workers.prune_workers(connection, limit, now))
        if (left := limit - deleted) <= 0:
            return deleted
        return deleted + await self._pool.run(lambda connection: versions.forget_types(connection, left, now))

    # Wake-ups.

    async def listen(
        self,
        on_work: Callable[[Queue], None],
        on_finished: Callable[[str, str], None],
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,
    ) -> None:
        listener = Listener(
            self._hearing,
            self._chance,
            lambda pid: pid == self._announcer.server_pid,
            on_work,
            on_finished,
            on_unknown,
            on_news,
        )
        task = asyncio.ensure_future(listener.listen())
        self._listeners.add(task)
        try:
            await task
        except asyncio.CancelledError:
            task.cancel()
            if not task.done() or (current := asyncio.current_task()) is None or current.cancelling():
                raise
        finally:
            self._listeners.discard(task)

    async def announce(
        self, work: Sequence[Queue], finished: Sequence[tuple[str, str]], news: Sequence[tuple[str, str]] = ()
    ) -> None:
        await self._announcer.announce(work, finished, news)


def _nothing() -> None:
    """No clock was passed in: the database's decides."""

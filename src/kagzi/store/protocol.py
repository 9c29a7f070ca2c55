"""What the engine asks of a database.

Every method is one transaction. Every write made under a lease matches the lease's token in the same statement, under
the run's row lock. Every instant is the database's: a store is built with an optional clock (`now`), which tests and
the simulation pass and production does not; PostgreSQL then uses clock_timestamp(), SQLite the host's clock, because
the file is on the host.

Ends. Everything that makes a run terminal draws the consequences for other runs in the same transaction; each store has
one routine for that, `ended` in its `ends.py`.

Locks. All runs touched by a transaction are locked in (namespace, run_id) order before anything else, parents of runs
that it may end among them; workers rows are locked only in transactions that lock no run afterwards. Duties skip locked
rows instead of waiting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from kagzi.api.admin import RunCount, WorkerFilter
from kagzi.api.keys import AuditFilter, LiveKeys
from kagzi.api.operations import (
    Answer,
    CancelAnswer,
    CancelRun,
    Chunk,
    Started,
    StartRun,
    TerminateRun,
    WakeAnswer,
    Write,
)
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.api.transactions import BeginTransaction
from kagzi.api.workers import Heartbeat, HeartbeatAnswer, Inbox, LeaseState, Poll, Polled, Registration
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
from kagzi.core.run import Run, RunStatus
from kagzi.core.run_value import RunValue
from kagzi.core.schedule import Schedule, Skip
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.core.versions import CheckedRun, Versions
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.errors import Conflict, InvalidRequest
from kagzi.store.migrate import Migration

Queue = tuple[str, str]  # (namespace, task queue)
RunKey = tuple[str, str]  # (namespace, run id)

MOST_SURVEYED = 100_000
MOST_LOADS = 1000  # queues, and namespaces, that a load tells of


class MovedPage(Struct, frozen=True, kw_only=True):
    """How many runs have another version now, where they wait, and how far was looked: None at the end."""

    moved: int
    queues: tuple[str, ...]
    last: tuple[str, int, str] | None


class Offer(Struct, frozen=True):
    """A workflow and a version of it, or every one, that a worker of a queue executes."""

    namespace: str
    task_queue: str
    workflow_type: str
    version: str | None


class SetAside(Struct, frozen=True, kw_only=True):
    """How many runs were set aside, and in which queues some were brought back (`store/unserved.py`). `left`: some are
    set aside now; `more`: another look will find more to do."""

    aside: int = 0
    back: tuple[Queue, ...] = ()
    left: bool = False
    more: bool = False


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


class Unheld(NamedTuple):
    """Runs that were held, and are not any more."""

    queues: list[Queue]  # in which there are any
    after: tuple[str, ...]  # the last line that was looked at, if there may be more behind it
    later: bool = False  # some come at a moment that is not there yet


class LimitChange(Struct, frozen=True, kw_only=True):
    """What is set of a limit. None: nothing is; -1 and '': it stays as it was."""

    concurrency: int | None = None
    key_concurrency: int | None = None
    rate: str | None = None  # as RateLimit.encode writes it
    key_rate: str | None = None


class Survey(Struct, frozen=True, kw_only=True):
    """How much there is of everything in all namespaces, for people."""

    now: Instant
    pending: int  # this and sleeping: of the first MOST_SURVEYED that wait
    sleeping: int
    running: int
    oldest_due_at: Instant | None  # since when the run that has waited longest could have been claimed
    workers_online: int
    workers_draining: int
    schema: int  # the newest migration this database has


class RunFacts(Struct, frozen=True, kw_only=True):
    """What a run is counted under."""

    namespace: str
    run_id: str
    workflow_type: str
    started_at: Instant | None
    finished_at: Instant | None


class Recovered(Struct, frozen=True, kw_only=True):
    """What a duty did to one run."""

    namespace: str
    run_id: str
    task_queue: str
    status: RunStatus
    available_at: Instant


class Told(Struct, frozen=True, kw_only=True):
    """A run that was told of the end of another: its inbox has grown, and if it waits for that it can be claimed. Or
    one that was started in the batch beside the runs it names."""

    namespace: str
    run_id: str
    task_queue: str
    status: RunStatus
    available_at: Instant
    inbox_seq: int
    workflow_type: str = ""  # of a run that was started now, as a child; it has heard of nothing yet


class Applied(Struct, frozen=True):
    """What came of a batch: an answer to each write, and which other runs were told."""

    answers: list[Answer]
    woken: list[Told]

    def add(self, other: Applied) -> None:
        """Adds what came of writes that were applied after these."""
        self.answers.extend(other.answers)
        self.woken.extend(other.woken)


class Changed(Struct, frozen=True):
    """What a duty did: to the runs that it was about, and which other runs were told of their ends."""

    runs: list[Recovered] = []
    woken: list[Told] = []


class Fired(Struct, frozen=True, kw_only=True):
    """What a turn of the schedules came to."""

    looked: int  # at so many schedules
    runs: list[Recovered]  # that were started
    told: list[tuple[str, CancelAnswer]]  # with their namespace: runs that were told to end for them
    late: Span | None = None  # how late the latest of them is; None if none is on time (see `core.schedule.ON_TIME`)
    errors: list[tuple[str, str, str]] = []  # namespace, schedule and why it could not fire
    woken: list[Told] = []  # runs that were told of their ends


class HeartbeatResult(Struct, frozen=True, kw_only=True):
    """The answer to one heartbeat, and what it changed."""

    answer: HeartbeatAnswer
    released: list[Recovered]  # claims whose answer was lost on the way
    shortest: Span | None  # of the leases renewed


class JobTurn(Struct, frozen=True, kw_only=True):
    """What came of a batch of a job: the job as it stands (None: none was due), and which runs are affected."""

    job: Job | None = None
    started: list[Recovered] = []
    told: list[tuple[str, CancelAnswer]] = []
    woken: list[Told] = []


class FoundRuns(Struct, frozen=True):
    """Runs that match a filter. `searched_until`: the last one that was looked at, if there may be more beyond it and
    these are fewer than were asked for."""

    runs: list[Run]
    searched_until: str | None = None


class Store(Protocol):
    lanes: int  # how many batches may be in flight at once

    @property
    def schema_version(self) -> int:
        """The number of the newest migration this version of Kagzi knows."""
        ...

    @property
    def page_secret(self) -> bytes:
        """What page tokens are signed with: of the database, and known once it is open."""
        ...

    def lane_of(self, write: Write) -> int:
        """Which lane a write belongs to: all writes of one run under a lease go to one lane, in order."""
        ...

    async def open(self) -> None:
        """Connect and migrate. Raises Unavailable, SchemaMismatch or InvalidRequest with what to do."""
        ...

    async def close(self) -> None: ...

    async def missing_migrations(self) -> tuple[Migration, ...]:
        """What `open` would apply. Changes nothing, and needs no open store."""
        ...

    async def missing_indexes(self) -> tuple[str, ...]:
        """The indexes of applied migrations that are still to be built beside the work, as those of large tables are.
        Changes nothing, and needs no open store."""
        ...

    async def build_indexes(self) -> None:
        """Builds them, or waits for the process that does. An open store does so by itself in the background."""
        ...

    def sibling(self) -> Store:
        """The same database with connections of its own, for another event loop in another thread."""
        ...

    # Writes.

    async def apply(self, writes: Sequence[Write]) -> Applied:
        """One transaction for the whole batch, one answer for each write, in order.

        Several chunks of one run may be in a batch; they apply in order. Conflicts come back as exceptions in the list;
        only an outage raises, and then nothing (or everything: the connection broke during COMMIT) was applied, and
        repeating the batch is safe.

        Whoever calls this sees it through. The batcher does, in a task of its own; the store may rely on not being
        cancelled.
        """
        ...

    async def claim(self, poll: Poll, lease: Span) -> Polled:
        """Lease up to poll.limit due runs, oldest claim key first, then read their history in a second statement.

        Runs that already carry this poll's token are returned again (a repeated poll).
        """
        ...

    async def read_lease(self, namespace: str, run_id: str, token: str, confirm: bool) -> LeaseState | None:
        """The run with this token and its history, read after `confirm` has renewed the lease and marked its claim as
        heard of; None if there is no run with this token."""
        ...

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
        """The first `limit` untaken signals of these names, in the order of arrival; None if the lease is gone. With
        `children` also the outcomes of children that were not taken yet; with `reconcile` first of all, children are
        looked for that have ended without telling."""
        ...

    # Reads.

    async def list_signals(self, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
        """In the order of arrival, those with a number above `after`; taken ones, too."""
        ...

    async def read_values(self, namespace: str, run_id: str, names: Sequence[str], after: str) -> list[RunValue]:
        """The values of a run in the order of their names, byte for byte, beyond `after`; only these if there are
        `names`."""
        ...

    async def get_run(self, namespace: str, run_id: str) -> Run | None: ...

    async def get_runs(self, runs: Sequence[tuple[str, str]]) -> list[Run]:
        """Those of these (namespace, run_id) that exist, in any order."""
        ...

    async def get_run_by_external_id(self, namespace: str, external_id: str) -> Run | None: ...

    async def list_runs(self, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
        """Newest first; beyond the cursor. Going backward: the `limit` nearest newer rows, nearest first. With a filter
        it looks at a bounded number of runs (`store/searching.py`)."""
        ...

    async def get_steps(
        self, namespace: str, run_id: str, payloads: bool = True, step_id: str | None = None
    ) -> list[Step]:
        """Every row of the run, or of one of its steps; events in order first, then the others by start. Without
        `payloads` their inputs and outputs are None."""
        ...

    async def wake_run(self, namespace: str, run_id: str) -> WakeAnswer | None:
        """Makes a run claimable that waits for a moment to come, with a note of what it stood at (`core.wake`) if it
        sleeps. Others stay as they are. None if there is no such run."""
        ...

    async def finished_of(self, runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Which of these (namespace, run_id) have finished or do not exist."""
        ...

    async def horizon(self, queues: Sequence[Queue]) -> Horizon: ...

    async def survey(self, stale: Span) -> Survey:
        """`stale` is, here and below, for how long a worker may be silent: one that was not heard of since is OFFLINE,
        whether `expire_workers` has come by or not."""
        ...

    async def load(self, stale: Span) -> Load:
        """What gauges show. Does not read what sleeps, and counts to MOST_SURVEYED in each of MOST_LOADS queues."""
        ...

    async def facts_of(self, runs: Sequence[tuple[str, str]]) -> list[RunFacts]:
        """Those of these (namespace, run_id) that exist, in any order."""
        ...

    # Namespaces and workers.

    async def ensure_namespace(self, namespace: str) -> None: ...

    async def create_namespace(self, namespace: str, display_name: str, description: str) -> Namespace | None:
        """None if there is one of this name."""
        ...

    async def get_namespace(self, namespace: str) -> Namespace | None: ...

    async def list_namespaces(self, after: str, limit: int) -> list[Namespace]:
        """By name, byte for byte; those after this one."""
        ...

    async def update_namespace(
        self,
        namespace: str,
        display_name: str | None,
        description: str | None,
        enabled: bool | None,
        handler: tuple[str, str | None] | None = None,
    ) -> Namespace | None:
        """What is None stays. `handler` is the workflow that handles failures and its queue; an empty one is none. None
        if there is no namespace of this name."""
        ...

    async def disabled_namespaces(self) -> list[str]: ...

    async def register(self, registration: Registration) -> None:
        """Also remembers the types and versions that the worker offers; that locks no run, and writes nothing that is
        known already."""
        ...

    async def heartbeats(self, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        """For each: renew the leases listed to now + their length, and give back what was lost on the way (see
        Heartbeat). Of two from one worker the later one counts as such.

        As few statements for all of them as for one. A worker may count as alive although its leases could not be
        renewed: then this raises, and repeating is safe."""
        ...

    async def deregister(self, worker_id: str, namespace: str | None = None) -> list[Recovered]:
        """Mark the worker OFFLINE and give its runs back, burning nothing. With a namespace, here and below: nothing
        happens if the worker is in another one."""
        ...

    async def list_workers(self, namespace: str) -> list[Worker]:
        """As their rows are."""
        ...

    async def get_worker(self, worker_id: str, namespace: str | None, stale: Span) -> Worker | None:
        """With how many runs it holds."""
        ...

    async def find_workers(self, filter: WorkerFilter, cursor: Cursor | None, limit: int, stale: Span) -> list[Worker]:
        """The newest first, beyond the cursor (see `core.worker.worker_position`), with how many runs each holds."""
        ...

    async def drain_worker(self, worker_id: str, namespace: str | None = None) -> bool:
        """An ONLINE worker becomes DRAINING, with an event of that name. Whether there was one."""
        ...

    async def count_workers(self, namespace: str | None, stale: Span) -> dict[WorkerStatus, int]:
        """None: in all namespaces."""
        ...

    async def count_runs(
        self,
        namespace: str | None,
        live: bool,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> list[RunCount]:
        """All runs or only live ones, by type, queue and status; of one namespace or of all. Reads no more rows than
        `store.counting` allows."""
        ...

    # Versions of workflows.

    async def resolve_version(self, namespace: str, workflow_type: str) -> str:
        """What a start gets that names no version: the default that was set, else the version first seen last, else
        FIRST_VERSION."""
        ...

    async def set_default_version(self, namespace: str, workflow_type: str, version: str | None, force: bool) -> bool:
        """None: nobody chooses any more. False if no worker has ever offered this version and it is not forced: then
        nothing has changed."""
        ...

    async def list_versions(self, namespace: str, workflow_type: str | None, limit: int, stale: Span) -> Versions:
        """Of one workflow or of all, at most `limit`, with who is online for each and which live runs it has. Reads no
        more runs than `store.counting` allows."""
        ...

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
        """Looks at `limit` runs that wait or sleep, in the order of claiming behind `after` (queue, claim key, run id),
        and gives those of this workflow and version the other one. Guarded by the status under the row's lock: one
        that is claimed meanwhile stays as it is."""
        ...

    async def move_checked_runs(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> MovedPage:
        """Gives those of these runs the other version that are of this workflow and version, wait or sleep, and have
        been claimed as often as each of `runs` says. Guarded by all of that under the row's lock."""
        ...

    # Pauses and limits. They are read in the very statements that claim runs or insert them under a lease: what begins
    # after a pause was acknowledged hands out nothing that it is about.

    async def list_limits(self, namespace: str) -> list[FlowLimit]:
        """By scope and name."""
        ...

    async def pause(self, namespace: str, scope: Scope, name: str, by: str, reason: str) -> FlowLimit:
        """What is paused already stays as it is."""
        ...

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit: ...

    async def set_limit(self, namespace: str, scope: Scope, name: str, change: LimitChange) -> FlowLimit:
        """Let so many runs, and so many of each key, run at once, and begin so often."""
        ...

    async def declare_limits(self, namespace: str) -> None:
        """Has the declared limits of the namespace be the smallest of its live workers."""
        ...

    async def limited_namespaces(self) -> list[str]:
        """Where anything is limited, or runs are held for what was."""
        ...

    async def unhold(self, namespace: str, after: tuple[str, ...]) -> Unheld:
        """Make runs claimable that were held and for which there is room now, of a bounded number of lines behind this
        one (`store/lines.py`)."""
        ...

    async def read_wait(self, namespace: str, run_id: str) -> SlotWait | None:
        """The limit that a run waits for, and how many of its line are held before it, up to MOST_BEFORE (or due before
        it, if nothing is held). None if it waits for none."""
        ...

    # Schedules. Whoever changes one locks its template first, so that nothing fires by what was there before once the
    # change is acknowledged.

    async def create_schedule(self, create: CreateSchedule) -> Schedule | Conflict:
        """Conflict if its id or name is taken; a repeat of the same is answered as the first."""
        ...

    async def get_schedule(self, namespace: str, schedule_id: str) -> Schedule | None: ...

    async def find_schedule(self, namespace: str, name: str) -> str | None:
        """The id of the schedule that has this name."""
        ...

    async def list_schedules(
        self, namespace: str, task_queue: str | None, cursor: Cursor | None, limit: int
    ) -> list[Schedule]:
        """Newest first; beyond the cursor. Going backward: the `limit` nearest newer ones, nearest first."""
        ...

    async def declare_schedule(self, declare: DeclareSchedule) -> Verdict:
        """Make what code declares so, if its word counts (see `core.declaration`). What is due by the same times stays
        due; with other times nothing that was due before is fired any more."""
        ...

    async def update_schedule(self, update: UpdateSchedule) -> Schedule | InvalidRequest | None:
        """None if there is none. InvalidRequest if it is to fire next at an instant that has fired."""
        ...

    async def delete_schedule(self, namespace: str, schedule_id: str) -> bool:
        """Whether there was one. Its runs stay."""
        ...

    async def trigger_schedule(self, namespace: str, schedule_id: str, run_id: str) -> Recovered | Conflict | None:
        """Insert a run by the template, whatever the schedule's state. None if there is none, Conflict if the run id is
        another run's. Harmless to repeat with the same run id."""
        ...

    async def backfill_schedule(
        self, schedule: Schedule, instants: Sequence[tuple[Instant, str]]
    ) -> list[Recovered] | None:
        """Insert a run for each instant, with this run id, unless it has one. None if the schedule is gone or fires at
        other times than this one by now."""
        ...

    async def list_schedule_runs(
        self, namespace: str, schedule_id: str, cursor: Cursor | None, limit: int
    ) -> list[Run]:
        """As `list_runs`."""
        ...

    async def list_skips(self, namespace: str, schedule_id: str, limit: int) -> list[Skip]:
        """The newest first."""
        ...

    # Keys and the audit log. Whoever changes keys leaves an entry in the same transaction.

    async def live_keys(self) -> LiveKeys: ...

    async def create_key(self, key: Key, expires_in: Span | None, entry: AuditEntry) -> Key:
        """The key as it was stored: made now, ending so much later."""
        ...

    async def get_key(self, key_id: str) -> Key | None:
        """Dead ones as well."""
        ...

    async def list_keys(self, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
        """The newest first, beyond the cursor (see `core.key.key_position`); None: of all namespaces."""
        ...

    async def rotate_key(self, key_id: str, overlap: Span, new_id: str, digest: bytes, entry: AuditEntry) -> Key | None:
        """A key like this one, which itself ends after the overlap, or when it would have ended anyway. None if there
        is no live one. What has an end gets a successor that lives as long."""
        ...

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> Key | None:
        """None if there is no such key. One that was revoked before stays as it is."""
        ...

    async def touch_keys(self, used: Mapping[str, Instant]) -> None:
        """When keys were last used, unless something later is stored."""
        ...

    async def append_audit(self, entries: Sequence[AuditEntry]) -> None: ...

    async def list_audit(self, filter: AuditFilter, cursor: Cursor | None, limit: int) -> list[AuditEntry]:
        """The newest first; before the entry whose id the cursor holds."""
        ...

    # Duties: each handles at most `limit` rows, skips locked ones, is safe in any number of processes.

    async def recover_runs(self, limit: int, max_crashes: int, backoff: Callable[[int], Span]) -> Changed:
        """Runs whose lease has ended: token cleared, crashes + 1, PENDING after backoff(crashes).

        `crashes` counts only crashes in a row without a new recorded event: the run remembers the highest
        completed_seq at its last crash, and starts over at 1 when there is a newer one. At max_crashes: FAILED.
        """
        ...

    async def time_out_steps(self, limit: int, grace: Span) -> Changed:
        """Steps RUNNING for longer than their timeout + grace: the attempt becomes FAILED with StepTimeout, the
        lease is revoked and the run is PENDING, in one transaction. The worker decides on replay whether the policy
        allows another attempt."""
        ...

    async def time_out_runs(self, limit: int) -> Changed:
        """Live runs past their deadline: TIMED_OUT, token cleared."""
        ...

    async def end_cancelled_runs(self, limit: int) -> Changed:
        """Live runs that were told to end and have used up their grace: CANCELLED, token cleared."""
        ...

    async def cascade_ends(self, limit: int) -> list[CancelRun | TerminateRun]:
        """What is to be asked for because runs with children have ended: at most so many of their live children, by
        their policies, that were not told yet. An end that nobody is left to be told of is forgotten."""
        ...

    async def set_runs_aside(self, offered: Sequence[Offer], stale: Span, limit: int) -> SetAside:
        """Sets aside what has been due for long and no worker of its queue executes, and brings back what one executes
        now (`store/unserved.py`). Looks at
        `limit` runs of each queue, and brings back as many. `offered` counts beside what workers have registered that
        were heard of within `stale`."""
        ...

    async def expire_workers(self, limit: int, after: Span) -> list[str]:
        """Workers without a heartbeat for `after`: OFFLINE, with a LOST event."""
        ...

    async def fire_schedules(self, limit: int, new_run_id: Callable[[], str]) -> Fired:
        """Insert the runs of due firings, or put on record that they were skipped, and move the watermark: one
        transaction (see `core.schedule.decide`). One that cannot fire keeps its state, and is looked at again later."""
        ...

    async def fold_schedule_ends(self, limit: int) -> int:
        """Add the ends of runs to the counters of at most `limit` schedules; where a firing waits for such an end, it
        is due. Returns how many schedules."""
        ...

    # Jobs over many runs; what a turn of one comes to is in `store/jobs.py`.

    async def start_job(self, job: Job, most: int) -> Job | None:
        """None if there is a job of this id, or as many as `most` of its namespace are under way."""
        ...

    async def get_job(self, namespace: str, job_id: str) -> Job | None: ...

    async def list_jobs(self, namespace: str, cursor: Cursor | None, limit: int) -> list[Job]:
        """Newest first, beyond the cursor."""
        ...

    async def cancel_job(self, namespace: str, job_id: str) -> None: ...

    async def run_job(self, new_run_id: Callable[[], str]) -> JobTurn:
        """One batch of the job that has waited longest and that nobody else works on."""
        ...

    async def delete_run(self, namespace: str, run_id: str) -> bool:
        """Whether there was a finished run of this id."""
        ...

    async def prune_jobs(self, kept: Span, limit: int) -> None:
        """Forget jobs that ended longer ago than that."""
        ...

    async def prune_skips(self, limit: int) -> int:
        """Delete records of skipped firings past their namespace's retention, looking at the oldest `limit` only;
        returns how many."""
        ...

    async def prune_runs(self, limit: int, after: Cursor | None) -> tuple[int, Cursor | None]:
        """Delete finished runs past their namespace's retention. Walks run ids from `after`, looking at no more than
        `limit` of them, and returns how many were deleted and where to go on (None: the end was reached)."""
        ...

    async def prune_workers(self, limit: int) -> int:
        """Delete workers that have been OFFLINE for longer than their namespace's retention, events of workers that
        old, and types that none of the workers left has offered for that long; returns how many rows, at most
        `limit`."""
        ...

    async def prune_audit(self, limit: int) -> int:
        """Delete entries of the audit log older than AUDIT_RETENTION, looking at the oldest `limit` only; returns how
        many."""
        ...

    # Wake-ups across processes. Hints only: everything works, more slowly, without them.

    async def listen(
        self,
        on_work: Callable[[Queue], None],
        on_finished: Callable[[str, str], None],
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,
    ) -> None:
        """Hear from other processes until the store is closed. `on_unknown` means: anything may have changed;
        `on_news`: something has arrived for a run that is being driven."""
        ...

    async def announce(
        self, work: Sequence[Queue], finished: Sequence[tuple[str, str]], news: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Tell other processes, outside any transaction that writes data."""
        ...


class StoreTransaction(Protocol):
    """See `api.transactions.StepTransaction`."""

    connection: Any

    async def prepare(self) -> None: ...

    async def commit(self, chunk: Chunk) -> Applied: ...

    async def interrupt(self) -> None: ...

    async def roll_back(self) -> None: ...


class Joinable(Protocol):
    """A store that can take part in a transaction of the caller's, and lend one to a step."""

    exclusive: bool  # while a step has a transaction nobody else can write

    async def start_in(self, connection: object, start: StartRun) -> Started:
        """Start a run, without a birth, in the transaction of this connection: it is there when the caller commits.
        Suspends only if the connection is an async one, so that blocking code can drive it. InvalidRequest if the
        connection is of no use, and then nothing was written."""
        ...

    async def begin(
        self, wanted: BeginTransaction, ready: Callable[[], Awaitable[None]], longest: Span
    ) -> StoreTransaction:
        """Begin the transaction of a step; see `api.transactions`. It may do nothing, or on SQLite be open, for so
        long."""
        ...

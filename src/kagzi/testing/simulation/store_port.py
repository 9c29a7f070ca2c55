"""The store as a process of the simulated world sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kagzi.api.admin import RunCount, WorkerFilter
from kagzi.api.keys import AuditFilter, LiveKeys
from kagzi.api.operations import CancelRun, TerminateRun, WakeAnswer, Write
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
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
from kagzi.errors import Conflict, InvalidRequest
from kagzi.store.migrate import Migration
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
    Store,
    Survey,
    Unheld,
)
from kagzi.store.sqlite.schema import known_migrations
from kagzi.testing.simulation.network import Network
from kagzi.testing.simulation.process import Process

if TYPE_CHECKING:
    pass


class StorePort:
    """The store as one process sees it, across the network. `store.protocol.Store`."""

    lanes = 1
    page_secret = b"simulated"

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def lane_of(self, write: Write) -> int:  # noqa: ARG002
        return 0

    async def open(self) -> None:
        await self._ask("horizon", ())

    async def close(self) -> None:
        """The database lives on."""

    @property
    def schema_version(self) -> int:
        return len(known_migrations())

    async def missing_migrations(self) -> tuple[Migration, ...]:
        return ()

    async def missing_indexes(self) -> tuple[str, ...]:
        return ()

    async def build_indexes(self) -> None: ...

    def sibling(self) -> Store:
        return StorePort(self._network, self._process)

    async def _ask(self, method: str, *args: Any) -> Any:
        return await self._network.ask(self._process, method, args)

    async def apply(self, writes: Sequence[Write]) -> Applied:
        applied: Applied = await self._ask("apply", tuple(writes))
        return applied

    async def claim(self, poll: Poll, lease: Span) -> Polled:
        polled: Polled = await self._ask("claim", poll, lease)
        return polled

    async def read_lease(self, namespace: str, run_id: str, token: str, confirm: bool) -> LeaseState | None:
        state: LeaseState | None = await self._ask("read_lease", namespace, run_id, token, confirm)
        return state

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
        asked = (namespace, run_id, token, tuple(names), limit, children, reconcile)
        inbox: Inbox | None = await self._ask("read_inbox", *asked)
        return inbox

    async def read_values(self, namespace: str, run_id: str, names: Sequence[str], after: str) -> list[RunValue]:
        values: list[RunValue] = await self._ask("read_values", namespace, run_id, tuple(names), after)
        return values

    async def list_signals(self, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
        signals: list[Signal] = await self._ask("list_signals", namespace, run_id, after, limit)
        return signals

    async def get_run(self, namespace: str, run_id: str) -> Run | None:
        run: Run | None = await self._ask("get_run", namespace, run_id)
        return run

    async def get_runs(self, runs: Sequence[tuple[str, str]]) -> list[Run]:
        found: list[Run] = await self._ask("get_runs", tuple(runs))
        return found

    async def get_run_by_external_id(self, namespace: str, external_id: str) -> Run | None:
        run: Run | None = await self._ask("get_run_by_external_id", namespace, external_id)
        return run

    async def list_runs(self, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
        found: FoundRuns = await self._ask("list_runs", filter, cursor, limit)
        return found

    async def get_steps(
        self, namespace: str, run_id: str, payloads: bool = True, step_id: str | None = None
    ) -> list[Step]:
        steps: list[Step] = await self._ask("get_steps", namespace, run_id, payloads, step_id)
        return steps

    async def wake_run(self, namespace: str, run_id: str) -> WakeAnswer | None:
        answer: WakeAnswer | None = await self._ask("wake_run", namespace, run_id)
        return answer

    async def finished_of(self, runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        finished: list[tuple[str, str]] = await self._ask("finished_of", tuple(runs))
        return finished

    async def horizon(self, queues: Sequence[Queue]) -> Horizon:
        horizon: Horizon = await self._ask("horizon", tuple(queues))
        return horizon

    async def survey(self, stale: Span) -> Survey:
        survey: Survey = await self._ask("survey", stale)
        return survey

    async def load(self, stale: Span) -> Load:
        load: Load = await self._ask("load", stale)
        return load

    async def facts_of(self, runs: Sequence[tuple[str, str]]) -> list[RunFacts]:
        facts: list[RunFacts] = await self._ask("facts_of", tuple(runs))
        return facts

    async def ensure_namespace(self, namespace: str) -> None:
        await self._ask("ensure_namespace", namespace)

    async def create_namespace(self, namespace: str, display_name: str, description: str) -> Namespace | None:
        made: Namespace | None = await self._ask("create_namespace", namespace, display_name, description)
        return made

    async def get_namespace(self, namespace: str) -> Namespace | None:
        found: Namespace | None = await self._ask("get_namespace", namespace)
        return found

    async def list_namespaces(self, after: str, limit: int) -> list[Namespace]:
        found: list[Namespace] = await self._ask("list_namespaces", after, limit)
        return found

    async def update_namespace(
        self,
        namespace: str,
        display_name: str | None,
        description: str | None,
        enabled: bool | None,
        handler: tuple[str, str | None] | None = None,
    ) -> Namespace | None:
        changed: Namespace | None = await self._ask(
            "update_namespace", namespace, display_name, description, enabled, handler
        )
        return changed

    async def disabled_namespaces(self) -> list[str]:
        found: list[str] = await self._ask("disabled_namespaces")
        return found

    async def live_keys(self) -> LiveKeys:
        live: LiveKeys = await self._ask("live_keys")
        return live

    async def create_key(self, key: Key, expires_in: Span | None, entry: AuditEntry) -> Key:
        made: Key = await self._ask("create_key", key, expires_in, entry)
        return made

    async def get_key(self, key_id: str) -> Key | None:
        key: Key | None = await self._ask("get_key", key_id)
        return key

    async def list_keys(self, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
        keys: list[Key] = await self._ask("list_keys", namespace, cursor, limit)
        return keys

    async def rotate_key(self, key_id: str, overlap: Span, new_id: str, digest: bytes, entry: AuditEntry) -> Key | None:
        key: Key | None = await self._ask("rotate_key", key_id, overlap, new_id, digest, entry)
        return key

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> Key | None:
        key: Key | None = await self._ask("revoke_key", key_id, entry)
        return key

    async def touch_keys(self, used: Mapping[str, Instant]) -> None:
        await self._ask("touch_keys", used)

    async def append_audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._ask("append_audit", tuple(entries))

    async def list_audit(self, filter: AuditFilter, cursor: Cursor | None, limit: int) -> list[AuditEntry]:
        entries: list[AuditEntry] = await self._ask("list_audit", filter, cursor, limit)
        return entries

    async def register(self, registration: Registration) -> None:
        await self._ask("register", registration)

    async def heartbeats(self, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        beaten: list[HeartbeatResult] = await self._ask("heartbeats", tuple(beats))
        return beaten

    async def deregister(self, worker_id: str, namespace: str | None = None) -> list[Recovered]:
        recovered: list[Recovered] = await self._ask("deregister", worker_id, namespace)
        return recovered

    async def get_worker(self, worker_id: str, namespace: str | None, stale: Span) -> Worker | None:
        worker: Worker | None = await self._ask("get_worker", worker_id, namespace, stale)
        return worker

    async def find_workers(self, filter: WorkerFilter, cursor: Cursor | None, limit: int, stale: Span) -> list[Worker]:
        workers: list[Worker] = await self._ask("find_workers", filter, cursor, limit, stale)
        return workers

    async def drain_worker(self, worker_id: str, namespace: str | None = None) -> bool:
        return bool(await self._ask("drain_worker", worker_id, namespace))

    async def count_workers(self, namespace: str | None, stale: Span) -> dict[WorkerStatus, int]:
        counts: dict[WorkerStatus, int] = await self._ask("count_workers", namespace, stale)
        return counts

    async def count_runs(
        self,
        namespace: str | None,
        live: bool,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> list[RunCount]:
        counts: list[RunCount] = await self._ask("count_runs", namespace, live, created_after, created_before)
        return counts

    async def resolve_version(self, namespace: str, workflow_type: str) -> str:
        version: str = await self._ask("resolve_version", namespace, workflow_type)
        return version

    async def set_default_version(self, namespace: str, workflow_type: str, version: str | None, force: bool) -> bool:
        done: bool = await self._ask("set_default_version", namespace, workflow_type, version, force)
        return done

    async def list_versions(self, namespace: str, workflow_type: str | None, limit: int, stale: Span) -> Versions:
        versions: Versions = await self._ask("list_versions", namespace, workflow_type, limit, stale)
        return versions

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
        page: MovedPage = await self._ask("move_runs", *asked)
        return page

    async def move_checked_runs(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> MovedPage:
        page: MovedPage = await self._ask("move_checked_runs", namespace, workflow_type, from_version, to_version, runs)
        return page

    async def list_limits(self, namespace: str) -> list[FlowLimit]:
        limits: list[FlowLimit] = await self._ask("list_limits", namespace)
        return limits

    async def pause(self, namespace: str, scope: Scope, name: str, by: str, reason: str) -> FlowLimit:
        limit: FlowLimit = await self._ask("pause", namespace, scope, name, by, reason)
        return limit

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        limit: FlowLimit = await self._ask("resume", namespace, scope, name)
        return limit

    async def set_limit(self, namespace: str, scope: Scope, name: str, change: LimitChange) -> FlowLimit:
        limit: FlowLimit = await self._ask("set_limit", namespace, scope, name, change)
        return limit

    async def declare_limits(self, namespace: str) -> None:
        await self._ask("declare_limits", namespace)

    async def limited_namespaces(self) -> list[str]:
        namespaces: list[str] = await self._ask("limited_namespaces")
        return namespaces

    async def unhold(self, namespace: str, after: tuple[str, ...]) -> Unheld:
        freed: Unheld = await self._ask("unhold", namespace, after)
        return freed

    async def read_wait(self, namespace: str, run_id: str) -> SlotWait | None:
        wait: SlotWait | None = await self._ask("read_wait", namespace, run_id)
        return wait

    async def list_workers(self, namespace: str) -> list[Worker]:
        workers: list[Worker] = await self._ask("list_workers", namespace)
        return workers

    async def recover_runs(self, limit: int, max_crashes: int, backoff: Callable[[int], Span]) -> Changed:
        changed: Changed = await self._ask("recover_runs", limit, max_crashes, backoff)
        return changed

    async def time_out_steps(self, limit: int, grace: Span) -> Changed:
        changed: Changed = await self._ask("time_out_steps", limit, grace)
        return changed

    async def time_out_runs(self, limit: int) -> Changed:
        changed: Changed = await self._ask("time_out_runs", limit)
        return changed

    async def end_cancelled_runs(self, limit: int) -> Changed:
        changed: Changed = await self._ask("end_cancelled_runs", limit)
        return changed

    async def cascade_ends(self, limit: int) -> list[CancelRun | TerminateRun]:
        requests: list[CancelRun | TerminateRun] = await self._ask("cascade_ends", limit)
        return requests

    async def set_runs_aside(self, offered: Sequence[Offer], stale: Span, limit: int) -> SetAside:
        done: SetAside = await self._ask("set_runs_aside", offered, stale, limit)
        return done

    async def expire_workers(self, limit: int, after: Span) -> list[str]:
        lost: list[str] = await self._ask("expire_workers", limit, after)
        return lost

    async def prune_runs(self, limit: int, after: Cursor | None) -> tuple[int, Cursor | None]:
        pruned: tuple[int, Cursor | None] = await self._ask("prune_runs", limit, after)
        return pruned

    # Schedules.

    async def create_schedule(self, create: CreateSchedule) -> Schedule | Conflict:
        made: Schedule | Conflict = await self._ask("create_schedule", create)
        return made

    async def get_schedule(self, namespace: str, schedule_id: str) -> Schedule | None:
        found: Schedule | None = await self._ask("get_schedule", namespace, schedule_id)
        return found

    async def find_schedule(self, namespace: str, name: str) -> str | None:
        found: str | None = await self._ask("find_schedule", namespace, name)
        return found

    async def list_schedules(
        self, namespace: str, task_queue: str | None, cursor: Cursor | None, limit: int
    ) -> list[Schedule]:
        found: list[Schedule] = await self._ask("list_schedules", namespace, task_queue, cursor, limit)
        return found

    async def declare_schedule(self, declare: DeclareSchedule) -> Verdict:
        verdict: Verdict = await self._ask("declare_schedule", declare)
        return verdict

    async def update_schedule(self, update: UpdateSchedule) -> Schedule | InvalidRequest | None:
        changed: Schedule | InvalidRequest | None = await self._ask("update_schedule", update)
        return changed

    async def delete_schedule(self, namespace: str, schedule_id: str) -> bool:
        deleted: bool = await self._ask("delete_schedule", namespace, schedule_id)
        return deleted

    async def trigger_schedule(self, namespace: str, schedule_id: str, run_id: str) -> Recovered | Conflict | None:
        started: Recovered | Conflict | None = await self._ask("trigger_schedule", namespace, schedule_id, run_id)
        return started

    async def backfill_schedule(
        self, schedule: Schedule, instants: Sequence[tuple[Instant, str]]
    ) -> list[Recovered] | None:
        started: list[Recovered] | None = await self._ask("backfill_schedule", schedule, instants)
        return started

    async def list_schedule_runs(
        self, namespace: str, schedule_id: str, cursor: Cursor | None, limit: int
    ) -> list[Run]:
        runs: list[Run] = await self._ask("list_schedule_runs", namespace, schedule_id, cursor, limit)
        return runs

    async def list_skips(self, namespace: str, schedule_id: str, limit: int) -> list[Skip]:
        skips: list[Skip] = await self._ask("list_skips", namespace, schedule_id, limit)
        return skips

    async def fire_schedules(self, limit: int, new_run_id: Callable[[], str]) -> Fired:
        fired: Fired = await self._ask("fire_schedules", limit, new_run_id)
        return fired

    async def start_job(self, job: Job, most: int) -> Job | None:
        made: Job | None = await self._ask("start_job", job, most)
        return made

    async def get_job(self, namespace: str, job_id: str) -> Job | None:
        found: Job | None = await self._ask("get_job", namespace, job_id)
        return found

    async def list_jobs(self, namespace: str, cursor: Cursor | None, limit: int) -> list[Job]:
        found: list[Job] = await self._ask("list_jobs", namespace, cursor, limit)
        return found

    async def cancel_job(self, namespace: str, job_id: str) -> None:
        await self._ask("cancel_job", namespace, job_id)

    async def run_job(self, new_run_id: Callable[[], str]) -> JobTurn:
        turn: JobTurn = await self._ask("run_job", new_run_id)
        return turn

    async def delete_run(self, namespace: str, run_id: str) -> bool:
        deleted: bool = await self._ask("delete_run", namespace, run_id)
        return deleted

    async def prune_jobs(self, kept: Span, limit: int) -> None:
        await self._ask("prune_jobs", kept, limit)

    async def fold_schedule_ends(self, limit: int) -> int:
        folded: int = await self._ask("fold_schedule_ends", limit)
        return folded

    async def prune_skips(self, limit: int) -> int:
        deleted: int = await self._ask("prune_skips", limit)
        return deleted

    async def prune_audit(self, limit: int) -> int:
        deleted: int = await self._ask("prune_audit", limit)
        return deleted

    async def prune_workers(self, limit: int) -> int:
        deleted: int = await self._ask("prune_workers", limit)
        return deleted

    async def listen(
        self,
        on_work: Callable[[Queue], None],
        on_finished: Callable[[str, str], None],
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,  # noqa: ARG002 (heartbeats tell the same)
    ) -> None:
        self._network.listen(self._process, on_work, on_finished, on_unknown)

    async def announce(
        self,
        work: Sequence[Queue],
        finished: Sequence[tuple[str, str]],
        news: Sequence[tuple[str, str]] = (),  # noqa: ARG002
    ) -> None:
        self._network.announce(self._process, work, finished)

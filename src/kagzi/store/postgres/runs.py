"""Runs: rows into records, claims, reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kagzi.api.admin import RunCount
from kagzi.api.workers import Claim, Poll, Polled
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import Instant, Span
from kagzi.core.run import Run, RunStatus
from kagzi.core.step import Step
from kagzi.core.tags import decode_tags
from kagzi.store import counting
from kagzi.store.postgres.handlers import read_failed_inputs
from kagzi.store.postgres.lines import claim_limited
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.steps import read_histories
from kagzi.store.protocol import Horizon, Queue
from kagzi.store.waits import read_waits

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_CLAIM_RUNS = STATEMENTS["claim_runs"]
_READ_INPUTS = STATEMENTS["read_inputs"]
_GET_RUN = STATEMENTS["get_run"]
_GET_RUNS = STATEMENTS["get_runs"]
_GET_RUN_BY_EXTERNAL_ID = STATEMENTS["get_run_by_external_id"]
_COUNT_LIVE_RUNS = STATEMENTS["count_live_runs"]
_COUNT_NEWEST_RUNS = STATEMENTS["count_newest_runs"]
_FINISHED_OF = STATEMENTS["finished_of"]
_HORIZON = STATEMENTS["horizon"]
_ENSURE_NAMESPACE = STATEMENTS["ensure_namespace"]

_STATUSES = {status.value: status for status in RunStatus}


async def claim_runs(connection: Connection, poll: Poll, lease: Span, now: Instant | None) -> Polled:
    rows = await connection.fetch(
        _CLAIM_RUNS,
        now,
        lease,
        poll.namespace,
        poll.worker_id,
        poll.token,
        poll.number,
        sorted(set(poll.queues)),
        poll.limit,
        [type.name for type in poll.types if type.version is None],
        # The length makes the pair unambiguous, whatever characters names and versions hold.
        [f"{len(type.name)}:{type.name}{type.version}" for type in poll.types if type.version is not None],
    )
    time: Instant = rows[0]["now"]
    candidates: int = rows[0]["candidates"]
    if rows[0]["run_id"] is None:
        rows = []
    more = held = False
    if candidates:
        # Who finds fewer than it may claim has seen everything that is due: nothing is behind what was held.
        whole = len(rows) + candidates >= poll.limit
        under_limits, more, held = await claim_limited(connection, poll, candidates, lease, now)
        more = more and whole
        rows = sorted([*rows, *under_limits], key=lambda row: (row["place"], row["run_id"]))
    if not rows:
        return Polled(now=time, claims=(), more=more, held=held)
    run_ids = [str(row["run_id"]) for row in rows]
    begun = [run_id for run_id, row in zip(run_ids, rows, strict=True) if not row["fresh"]]
    histories = await read_histories(connection, poll.namespace, begun) if begun else {}
    apart = [run_id for run_id, row in zip(run_ids, rows, strict=True) if row["input"] is None]
    inputs: dict[str, bytes] = {}
    if apart:
        found = await connection.fetch(_READ_INPUTS, poll.namespace, apart)
        inputs = {str(row["run_id"]): row["data"] for row in found}
    handling = [run_id for run_id, row in zip(run_ids, rows, strict=True) if row["handles_run_id"] is not None]
    failed = await read_failed_inputs(connection, poll.namespace, handling) if handling else {}
    claims = [
        claim_of(row, run_id, poll, inputs.get(run_id), histories.get(run_id, []), failed.get(run_id))
        for row, run_id in zip(rows, run_ids, strict=True)
    ]
    return Polled(now=time, claims=tuple(claims), more=more, held=held)


def claim_of(
    row: asyncpg.Record,
    run_id: str,
    poll: Poll,
    kept_apart: bytes | None,
    history: list[Step],
    failed_input: bytes | None,
) -> Claim:
    return Claim(
        namespace=poll.namespace,
        run_id=run_id,
        token=str(row["token"]),
        workflow_type=row["workflow_type"],
        version=row["version"],
        task_queue=row["task_queue"],
        external_id=row["external_id"],
        input=row["input"] if kept_apart is None else kept_apart,
        started_at=row["started_at"],
        lease=row["lease_length"],
        attempts=row["attempts"],
        executions=row["executions"],
        crashes=row["crashes"],
        inbox_seq=row["inbox_seq"],
        retry_policy=row["retry_policy"],
        history=tuple(history),
        cancel_requested=row["cancel_requested"],
        origin_run_id=None if row["origin_run_id"] is None else str(row["origin_run_id"]),
        trace_context=row["trace_context"],
        scheduled_for=row["scheduled_for"],
        family=row["family"],
        depth=row["depth"],
        handles_run_id=None if row["handles_run_id"] is None else str(row["handles_run_id"]),
        failed_input=failed_input,
        incarnation=row["incarnation"],
        executions_before=row["executions_before"],
        woken=row["woken"],
        limited=row["limited"],
    )


async def get_run(connection: Connection, namespace: str, run_id: str) -> Run | None:
    row = await connection.fetchrow(_GET_RUN, namespace, run_id)
    return None if row is None else run_of(row)


async def get_runs(connection: Connection, runs: Sequence[tuple[str, str]]) -> list[Run]:
    rows = await connection.fetch(_GET_RUNS, [namespace for namespace, _ in runs], [run_id for _, run_id in runs])
    return [run_of(row) for row in rows]


async def get_run_by_external_id(connection: Connection, namespace: str, external_id: str) -> Run | None:
    row = await connection.fetchrow(_GET_RUN_BY_EXTERNAL_ID, namespace, external_id)
    return None if row is None else run_of(row)


async def count_runs(
    connection: Connection,
    namespace: str | None,
    live: bool,
    created_after: Instant | None,
    created_before: Instant | None,
) -> list[RunCount]:
    unfinished = await count_live_runs(connection, namespace, created_after, created_before)
    if live:
        return counting.folded(unfinished)
    asked = (namespace, created_after, created_before, counting.NAMESPACES)
    newest = await connection.fetch(
        _COUNT_NEWEST_RUNS, *asked, counting.OF_A_NAMESPACE, counting.IN_ALL, counting.GROUPS
    )
    return counting.folded(unfinished, map(_seen, newest))


async def count_live_runs(
    connection: Connection,
    namespace: str | None,
    created_after: Instant | None = None,
    created_before: Instant | None = None,
) -> list[counting.Seen]:
    asked = (namespace, created_after, created_before, counting.NAMESPACES)
    limits = (counting.QUEUES, counting.OF_A_QUEUE, counting.IN_ALL, counting.GROUPS)
    return [_seen(row) for row in await connection.fetch(_COUNT_LIVE_RUNS, *asked, *limits)]


def _seen(row: asyncpg.Record) -> counting.Seen:
    namespace, workflow_type, task_queue, status, *more = row
    return counting.Seen(namespace, workflow_type, task_queue, _STATUSES[status], *more)


def run_of(row: asyncpg.Record) -> Run:
    worker_id = row["worker_id"]
    status = _STATUSES[row["status"]]
    return Run(
        namespace=row["namespace"],
        run_id=str(row["run_id"]),
        external_id=row["external_id"],
        task_queue=row["task_queue"],
        workflow_type=row["workflow_type"],
        version=row["version"],
        status=status,
        priority=row["priority"],
        attempts=row["attempts"],
        executions=row["executions"],
        crashes=row["crashes"],
        created_at=row["created_at"],
        available_at=row["available_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        deadline_at=row["deadline_at"],
        worker_id=None if worker_id is None else str(worker_id),
        input=row["input"],
        output=row["output"],
        error=row["error"],
        handles_run_id=None if row["handles_run_id"] is None else str(row["handles_run_id"]),
        on_failure=row["on_failure"],
        waiting_for=read_waits(row["waiting_for"], status),
        lease_expires_at=row["lease_expires_at"] if status is RunStatus.RUNNING else None,
        cancel_deadline=None if status.finished else row["cancel_deadline"],
        parent_run_id=None if row["parent_run_id"] is None else str(row["parent_run_id"]),
        parent_step_id=row["parent_step_id"],
        parent_policy=None if row["parent_policy"] is None else ParentPolicy(row["parent_policy"]),
        depth=row["depth"],
        tags=decode_tags(row["tags"]),
        superseded_by=None if row["superseded_by"] is None else str(row["superseded_by"]),
        former_id=row["former_id"],
        origin=None if row["origin"] is None else str(row["origin"]),
        incarnation=row["incarnation"],
        schedule_id=None if row["schedule_group_id"] is None else str(row["schedule_group_id"]),
        seed_run_id=None if row["seed_run_id"] is None else str(row["seed_run_id"]),
        scheduled_for=row["scheduled_for"],
        limit_key=row["limit_key"],
    )


async def finished_of(connection: Connection, runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    rows = await connection.fetch(_FINISHED_OF, [namespace for namespace, _ in runs], [run_id for _, run_id in runs])
    return [(row["namespace"], str(row["run_id"])) for row in rows]


async def read_horizon(connection: Connection, queues: Sequence[Queue], now: Instant | None) -> Horizon:
    rows = await connection.fetch(_HORIZON, now, [namespace for namespace, _ in queues], [queue for _, queue in queues])
    row = rows[0]
    due = zip(queues, row["due"], strict=True)
    return Horizon(
        now=row["now"],
        due={queue: instant for queue, instant in due if instant is not None},
        lease=row["lease"],
        step_timeout=row["step_timeout"],
        deadline=row["deadline"],
        cancel=row["cancel"],
        heartbeat=row["heartbeat"],
        schedule=row["schedule"],
        schedule_end=row["schedule_end"],
        cascade=row["cascade"],
        job=row["job"],
        limited=row["limited"],
    )


async def ensure_namespace(connection: Connection, namespace: str, retention_days: int, now: Instant | None) -> None:
    await connection.execute(_ENSURE_NAMESPACE, now, namespace, retention_days)


def is_id(text: str) -> bool:
    """Whether a run can have this id at all."""
    try:
        UUID(text)
    except ValueError:
        return False
    return True

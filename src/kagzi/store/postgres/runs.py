"""Runs: rows into records, claims, reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kagzi.api.admin import RunCount
from kagzi.api.workers import Claim, Poll, Polled
from kagzi.core.carried import TO_PEOPLE, TO_WORKER
from kagzi.core.family import policy_of
from kagzi.core.instant import Instant, Span
from kagzi.core.run import Run, RunStatus
from kagzi.store import counting
from kagzi.store.columns import SHOWN_RUN, reader
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


def _text(id: UUID | None) -> str | None:
    return None if id is None else str(id)


_claim_of = reader(
    Claim,
    """
    _ _ workflow_type version task_queue external_id _ started_at lease attempts executions crashes inbox_seq token
    cancel_requested origin_run_id scheduled_for family depth handles_run_id incarnation executions_before woken
    """,
    TO_WORKER,
    read={"token": str, "origin_run_id": _text, "handles_run_id": _text},
    given=("namespace", "run_id", "input", "history", "failed_input", "limited"),
)
_run_of = reader(
    Run,
    SHOWN_RUN,
    TO_PEOPLE,
    read={
        "run_id": str,
        "parent_policy": policy_of,
        **dict.fromkeys(("worker_id", "parent_run_id", "handles_run_id", "superseded_by"), _text),
        **dict.fromkeys(("origin", "schedule_id", "seed_run_id"), _text),
    },
    given=("status", "waiting_for", "lease_expires_at", "cancel_deadline"),
)


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
        _claim_of(
            row,
            poll.namespace,
            run_id,
            inputs.get(run_id) or row["input"],
            tuple(histories.get(run_id, ())),
            failed.get(run_id),
            row["limited"],
        )
        for row, run_id in zip(rows, run_ids, strict=True)
    ]
    return Polled(now=time, claims=tuple(claims), more=more, held=held)


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
    status = _STATUSES[row["status"]]
    return _run_of(
        row,
        status,
        read_waits(row["waiting_for"], status),
        row["lease_expires_at"] if status is RunStatus.RUNNING else None,
        None if status.finished else row["cancel_deadline"],
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

"""Workers: registering, heartbeats, leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.api.admin import WorkerFilter
from kagzi.api.workers import Heartbeat, HeartbeatAnswer, Registration
from kagzi.core.instant import NEVER, Instant, Span
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.core.worker import Worker, WorkerStatus, WorkflowType, read_worker_position
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol import Recovered
from kagzi.store.workers import decode_extras, encode_extras

if TYPE_CHECKING:
    from collections.abc import Iterable

    import asyncpg

    from kagzi.store.postgres.connection import Connection

_REGISTER_WORKER = STATEMENTS["register_worker"]
_RENEW_LEASES = STATEMENTS["renew_leases"]
_FIND_LET_GO = STATEMENTS["find_let_go"]
_FIND_CONFIRMED_LEASES = STATEMENTS["find_confirmed_leases"]
_BEAT = STATEMENTS["beat"]
_RELEASE_RUNS = STATEMENTS["release_runs"]
_DEREGISTER_WORKER = STATEMENTS["deregister_worker"]
_LIST_WORKERS = STATEMENTS["list_workers"]
_GET_WORKER = STATEMENTS["get_worker"]
_FIND_WORKERS = STATEMENTS["find_workers"]
_DRAIN_WORKER = STATEMENTS["drain_worker"]
_COUNT_WORKERS = STATEMENTS["count_workers"]
_EXPIRE_WORKERS = STATEMENTS["expire_workers"]
_PRUNE_WORKERS = STATEMENTS["prune_workers"]
_FORGET_STEP_TIMEOUTS = STATEMENTS["forget_step_timeouts"]

_LISTED = 1000


async def register_worker(connection: Connection, worker: Registration, now: Instant | None) -> None:
    await connection.execute(
        _REGISTER_WORKER,
        now,
        worker.worker_id,
        worker.namespace,
        worker.queues,
        [type.name for type in worker.types],
        [type.version or "" for type in worker.types],
        worker.hostname,
        worker.pid,
        worker.version,
        worker.concurrency,
        encode_extras(worker),
    )


async def heartbeat(
    connection: Connection, beat: Heartbeat, now: Instant | None
) -> tuple[HeartbeatAnswer, list[Recovered]]:
    held = beat.held
    if beat.confirmed:
        rows = await connection.fetch(_FIND_CONFIRMED_LEASES, beat.worker_id, beat.namespace)
        held = tuple([(str(row["run_id"]), str(row["token"])) for row in rows])
    rows = await connection.fetch(
        _RENEW_LEASES,
        now,
        beat.worker_id,
        [run_id for run_id, _ in held],
        [token for _, token in held],
        0 if beat.confirmed else beat.heard,
        beat.namespace,
    )
    renewed = {str(row["run_id"]): row for row in rows if row["status"] == RunStatus.RUNNING}
    released = [recovered_of(row) for row in rows if row["status"] != RunStatus.RUNNING]
    await forget_step_timeouts(connection, released)
    missing = [pair for pair in held if pair[0] not in renewed]
    if missing:
        run_ids, tokens = [run_id for run_id, _ in missing], [token for _, token in missing]
        rows = await connection.fetch(_FIND_LET_GO, beat.worker_id, run_ids, tokens, beat.namespace)
        let_go = {str(row["run_id"]) for row in rows}
        missing = [pair for pair in missing if pair[0] not in let_go]
    worker = await connection.fetchrow(_BEAT, now, beat.worker_id, beat.completed, beat.failed, beat.namespace)
    answer = HeartbeatAnswer(
        lost=tuple(run_id for run_id, _ in missing),
        news=tuple(run_id for run_id, row in renewed.items() if row["news"]),
        cancelled=tuple(run_id for run_id, row in renewed.items() if row["cancel_requested"]),
        drain=worker is not None and worker["status"] == WorkerStatus.DRAINING,
        known=worker is not None,
        now=0 if worker is None else worker["last_heartbeat_at"],
    )
    return answer, released


async def deregister_worker(
    connection: Connection, worker_id: str, namespace: str | None, now: Instant | None
) -> list[Recovered]:
    released = [recovered_of(row) for row in await connection.fetch(_RELEASE_RUNS, now, worker_id, namespace)]
    await forget_step_timeouts(connection, released)
    await connection.execute(_DEREGISTER_WORKER, now, worker_id, namespace)
    return released


async def forget_step_timeouts(connection: Connection, released: Iterable[Recovered]) -> None:
    keys = [(run.namespace, run.run_id) for run in released]
    if keys:
        await connection.execute(
            _FORGET_STEP_TIMEOUTS, [namespace for namespace, _ in keys], [run_id for _, run_id in keys]
        )


async def list_workers(connection: Connection, namespace: str) -> list[Worker]:
    return [worker_of(row) for row in await connection.fetch(_LIST_WORKERS, namespace, _LISTED)]


async def expire_workers(connection: Connection, limit: int, after: Span, now: Instant | None) -> list[str]:
    return [str(row["worker_id"]) for row in await connection.fetch(_EXPIRE_WORKERS, now, after, limit)]


async def get_worker(connection: Connection, worker_id: str, namespace: str | None) -> Worker | None:
    row = await connection.fetchrow(_GET_WORKER, worker_id, namespace)
    return None if row is None else worker_of(row, row["active"])


async def find_workers(connection: Connection, filter: WorkerFilter, cursor: Cursor | None, limit: int) -> list[Worker]:
    registered_at, worker_id = (NEVER, None) if cursor is None else read_worker_position(cursor.key)
    rows = await connection.fetch(
        _FIND_WORKERS, filter.namespace, filter.task_queue, filter.status, registered_at, worker_id, limit
    )
    return [worker_of(row, row["active"]) for row in rows]


async def drain_worker(connection: Connection, worker_id: str, namespace: str | None, now: Instant | None) -> bool:
    return await connection.fetchrow(_DRAIN_WORKER, now, worker_id, namespace) is not None


async def count_workers(connection: Connection, namespace: str | None) -> dict[WorkerStatus, int]:
    return {WorkerStatus(row["status"]): row["count"] for row in await connection.fetch(_COUNT_WORKERS, namespace)}


def worker_of(row: asyncpg.Record, active: int = 0) -> Worker:
    types = zip(row["types"], row["versions"], strict=True)
    return decode_extras(
        Worker(
            worker_id=str(row["worker_id"]),
            namespace=row["namespace"],
            queues=tuple(row["queues"]),
            types=tuple(WorkflowType(name, version or None) for name, version in types),
            hostname=row["hostname"],
            pid=row["pid"],
            version=row["version"],
            concurrency=row["concurrency"],
            status=WorkerStatus(row["status"]),
            registered_at=row["registered_at"],
            last_heartbeat_at=row["last_heartbeat_at"],
            completed=row["completed"],
            failed=row["failed"],
            active=active,
        ),
        row["labels"],
    )


def recovered_of(row: asyncpg.Record) -> Recovered:
    return Recovered(
        namespace=row["namespace"],
        run_id=str(row["run_id"]),
        task_queue=row["task_queue"],
        status=RunStatus(row["status"]),
        available_at=row["available_at"] or 0,
    )


async def prune_workers(connection: Connection, limit: int, now: Instant | None) -> int:
    rows = await connection.fetch(_PRUNE_WORKERS, now, limit)
    deleted: int = rows[0]["deleted"]
    return deleted

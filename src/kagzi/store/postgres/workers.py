"""Workers: registering, heartbeats, leaving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.admin import WorkerFilter
from kagzi.api.workers import Heartbeat, HeartbeatAnswer, Registration
from kagzi.core.instant import NEVER, Instant, Span
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.core.worker import Worker, WorkerStatus, WorkflowType, read_worker_position
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.run_rows import columns_of, is_id
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.versions import forget_types, remember_types
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.workers import HeartbeatResult
from kagzi.store.workers import decode_extras, encode_extras

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import asyncpg

    from kagzi.store.postgres.connection import Connection

_REGISTER_WORKER = STATEMENTS["register_worker"]
_RENEW_LEASES = STATEMENTS["renew_leases"]
_FIND_LET_GO = STATEMENTS["find_let_go"]
_BEAT = STATEMENTS["beat"]
_FIND_BEATING = STATEMENTS["find_beating"]
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


class Workers(Noun):
    """See `store.protocol.workers.Workers`."""

    @asks
    async def register(self, connection: Connection, registration: Registration) -> None:
        now = self.now()
        await _register(connection, registration, now)
        await remember_types(connection, registration, now)

    @asks
    async def heartbeats(self, connection: Connection, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        """In as many rounds as the busiest worker has heartbeats here, which is hardly ever more than one."""
        now = self.now()
        answers: dict[int, HeartbeatResult] = {}
        left = list(enumerate(beats))
        while left:
            taken: dict[str, tuple[int, Heartbeat]] = {}
            left = [each for each in left if taken.setdefault(each[1].worker_id.lower(), each) is not each]
            beaten = await _beat({worker_id: beat for worker_id, (_, beat) in taken.items()}, connection, now)
            for worker_id, (index, _) in taken.items():
                answers[index] = beaten[worker_id]
        return [answers[index] for index in range(len(beats))]

    @asks
    async def deregister(self, connection: Connection, worker_id: str, namespace: str | None = None) -> list[Recovered]:
        now = self.now()
        released = [recovered_of(row) for row in await connection.fetch(_RELEASE_RUNS, now, worker_id, namespace)]
        await forget_step_timeouts(connection, released)
        await connection.execute(_DEREGISTER_WORKER, now, worker_id, namespace)
        return released

    @asks
    async def rows(self, connection: Connection, namespace: str) -> list[Worker]:
        return [worker_of(row) for row in await connection.fetch(_LIST_WORKERS, namespace, _LISTED)]

    async def get(self, worker_id: str, namespace: str | None, stale: Span) -> Worker | None:
        if not is_id(worker_id):
            return None
        now = self.now()
        return await self.pool.run(lambda connection: _get(connection, worker_id, namespace, now, stale))

    @asks
    async def page(
        self, connection: Connection, filter: WorkerFilter, cursor: Cursor | None, limit: int, stale: Span
    ) -> list[Worker]:
        registered_at, worker_id = (NEVER, None) if cursor is None else read_worker_position(cursor.key)
        position = (registered_at, worker_id)
        rows = await connection.fetch(
            _FIND_WORKERS, filter.namespace, filter.task_queue, filter.status, *position, limit, self.now(), stale
        )
        return [worker_of(row, row["active"]) for row in rows]

    @asks
    async def drain(self, connection: Connection, worker_id: str, namespace: str | None = None) -> bool:
        return await connection.fetchrow(_DRAIN_WORKER, self.now(), worker_id, namespace) is not None

    @asks
    async def count(self, connection: Connection, namespace: str | None, stale: Span) -> dict[WorkerStatus, int]:
        rows = await connection.fetch(_COUNT_WORKERS, namespace, self.now(), stale)
        return {WorkerStatus(row["status"]): row["count"] for row in rows}

    @asks
    async def expire(self, connection: Connection, limit: int, after: Span) -> list[str]:
        now = self.now()
        return [str(row["worker_id"]) for row in await connection.fetch(_EXPIRE_WORKERS, now, after, limit)]

    async def prune(self, limit: int) -> int:
        now = self.now()
        deleted = await self.pool.run(lambda connection: _prune(connection, limit, now))
        if (left := limit - deleted) <= 0:
            return deleted
        return deleted + await self.pool.run(lambda connection: forget_types(connection, left, now))


async def _register(connection: Connection, worker: Registration, now: Instant | None) -> None:
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


async def _beat(beats: dict[str, Heartbeat], connection: Connection, now: Instant | None) -> dict[str, HeartbeatResult]:
    """One heartbeat of each of these workers.

    Most workers hold nothing, so their rows come first and say whether there is more to do. Each statement is a
    transaction of its own: nobody waits for runs while it holds workers.
    """
    rows = await connection.fetch(
        _BEAT,
        now,
        *_columns(beats),
        [beat.completed for beat in beats.values()],
        [beat.failed for beat in beats.values()],
    )
    workers = {str(row["worker_id"]): row for row in rows}
    if len(workers) < len(beats):
        silent = {worker_id: beat for worker_id, beat in beats.items() if worker_id not in workers}
        workers |= {str(row["worker_id"]): row for row in await connection.fetch(_FIND_BEATING, now, *_columns(silent))}
    busy = {
        worker_id: beat
        for worker_id, beat in beats.items()
        # Of a worker we do not know, nobody has looked.
        if beat.held or worker_id not in workers or workers[worker_id]["holds"]
    }
    kept, released = await _renew(busy, connection, now) if busy else ({}, {})
    lost, unrenewed = await _find_lost(beats, kept, connection)
    return {
        worker_id: HeartbeatResult(
            answer=_answer(
                workers.get(worker_id), kept.get(worker_id, []), lost.get(worker_id, []), unrenewed.get(worker_id, [])
            ),
            released=released.get(worker_id, []),
            shortest=min((row["lease_length"] for row in kept.get(worker_id, ())), default=None),
        )
        for worker_id in beats
    }


async def _renew(
    beats: dict[str, Heartbeat], connection: Connection, now: Instant | None
) -> tuple[dict[str, list[asyncpg.Record]], dict[str, list[Recovered]]]:
    """Renews leases; returns, by worker, the runs whose leases were renewed and those that went back."""
    kept: dict[str, list[asyncpg.Record]] = {}
    released: dict[str, list[Recovered]] = {}
    held = [(worker_id, *pair) for worker_id, beat in beats.items() for pair in _held(beat)]
    columns = (list(column) for column in zip(*held, strict=True)) if held else ([], [], [])
    for row in await connection.fetch(_RENEW_LEASES, now, *_columns(beats), *columns):
        holder = str(row["holder"])
        if row["status"] == RunStatus.RUNNING:
            kept.setdefault(holder, []).append(row)
        else:
            released.setdefault(holder, []).append(recovered_of(row))
    await forget_step_timeouts(connection, [run for runs in released.values() for run in runs])
    return kept, released


async def _find_lost(
    beats: dict[str, Heartbeat], kept: dict[str, list[asyncpg.Record]], connection: Connection
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Returns, by worker, the runs it lists that are no longer its own, and those that are and were not renewed. One
    that it let go of meanwhile is neither."""
    missing: list[tuple[str, str | None, str, str]] = []
    for worker_id, beat in beats.items():
        renewed = {str(row["run_id"]) for row in kept.get(worker_id, ())}
        missing += [
            (worker_id, beat.namespace, run_id, token) for run_id, token in _held(beat) if run_id not in renewed
        ]
    lost: dict[str, list[str]] = {}
    unrenewed: dict[str, list[str]] = {}
    if missing:
        rows = await connection.fetch(_FIND_LET_GO, *(list(column) for column in zip(*missing, strict=True)))
        own = {(str(row["worker_id"]), str(row["run_id"])): row["locked"] for row in rows}
        for worker_id, _, run_id, _ in missing:
            locked = own.get((worker_id, run_id))
            if locked is None:
                lost.setdefault(worker_id, []).append(run_id)
            elif locked:
                unrenewed.setdefault(worker_id, []).append(run_id)
    return lost, unrenewed


def _columns(beats: dict[str, Heartbeat]) -> tuple[list[str], list[str | None], list[int], list[bool]]:
    return (
        list(beats),
        [beat.namespace for beat in beats.values()],
        [0 if beat.confirmed else beat.heard for beat in beats.values()],
        [beat.confirmed for beat in beats.values()],
    )


def _held(beat: Heartbeat) -> tuple[tuple[str, str], ...]:
    return () if beat.confirmed else beat.held


def _answer(
    worker: asyncpg.Record | None, kept: list[asyncpg.Record], lost: list[str], unrenewed: list[str]
) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        lost=tuple(lost),
        unrenewed=tuple(unrenewed),
        news=tuple((str(row["run_id"]), row["inbox_seq"]) for row in kept if row["inbox_seq"]),
        cancelled=tuple(str(row["run_id"]) for row in kept if row["cancel_requested"]),
        drain=worker is not None and worker["status"] == WorkerStatus.DRAINING,
        known=worker is not None,
        now=0 if worker is None else worker["last_heartbeat_at"],
    )


async def forget_step_timeouts(connection: Connection, released: Iterable[Recovered]) -> None:
    keys = [(run.namespace, run.run_id) for run in released]
    if keys:
        await connection.execute(_FORGET_STEP_TIMEOUTS, *columns_of(keys))


async def _get(
    connection: Connection, worker_id: str, namespace: str | None, now: Instant | None, stale: Span
) -> Worker | None:
    row = await connection.fetchrow(_GET_WORKER, worker_id, namespace, now, stale)
    return None if row is None else worker_of(row, row["active"])


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
        workflow_type=row.get("workflow_type", ""),
    )


async def _prune(connection: Connection, limit: int, now: Instant | None) -> int:
    rows = await connection.fetch(_PRUNE_WORKERS, now, limit)
    deleted: int = rows[0]["deleted"]
    return deleted

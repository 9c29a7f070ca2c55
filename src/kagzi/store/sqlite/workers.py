"""Workers: who is there, which leases they keep, and which go back."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kagzi.api.admin import WorkerFilter
from kagzi.api.workers import Heartbeat, HeartbeatAnswer, Registration
from kagzi.core.instant import NEVER, Instant, Span
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.core.worker import Worker, WorkerEvent, WorkerStatus, WorkflowType, read_worker_position
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.workers import HeartbeatResult
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.run_rows import claim_key
from kagzi.store.sqlite.statements import execute
from kagzi.store.sqlite.versions import find_unseen_types, forget_types, remember_types
from kagzi.store.workers import decode_extras, encode_extras

EVERY_VERSION: Final = ""


class Workers(Noun):
    """See `store.protocol.workers.Workers`."""

    @writes
    def register(self, connection: sqlite3.Connection, registration: Registration) -> None:
        now = self.now()
        _register(connection, registration, now)
        remember_types(connection, registration, now)

    @writes
    def heartbeats(self, connection: sqlite3.Connection, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        return [_beat(connection, beat, self.now()) for beat in beats]

    @writes
    def deregister(
        self, connection: sqlite3.Connection, worker_id: str, namespace: str | None = None
    ) -> list[Recovered]:
        now = self.now()
        for (home,) in execute(connection, "leave_worker", (worker_id, now, namespace)).fetchall():
            _record(connection, home, worker_id, WorkerEvent.STOPPED, now)
        leases = execute(connection, "find_leases_of_worker", (worker_id, namespace)).fetchall()
        return [
            revoke(connection, (home, run_id, task_queue, priority), now)
            for home, run_id, _, task_queue, priority, *_ in leases
        ]

    @reads
    def rows(self, connection: sqlite3.Connection, namespace: str) -> list[Worker]:
        return [_worker_of(row) for row in execute(connection, "list_workers", (namespace,)).fetchall()]

    @reads
    def get(self, connection: sqlite3.Connection, worker_id: str, namespace: str | None, stale: Span) -> Worker | None:
        row = execute(connection, "get_worker", (worker_id, namespace, self.now() - stale)).fetchone()
        return None if row is None else _worker_of(row)

    @reads
    def page(
        self, connection: sqlite3.Connection, filter: WorkerFilter, cursor: Cursor | None, limit: int, stale: Span
    ) -> list[Worker]:
        registered_at, worker_id = (NEVER, "") if cursor is None else read_worker_position(cursor.key)
        place = (registered_at, worker_id, limit, self.now() - stale)
        values = (filter.namespace, filter.task_queue, filter.status, *place)
        return [_worker_of(row) for row in execute(connection, "find_workers", values).fetchall()]

    @writes
    def drain(self, connection: sqlite3.Connection, worker_id: str, namespace: str | None = None) -> bool:
        found = execute(connection, "drain_worker", (worker_id, namespace)).fetchall()
        for (home,) in found:
            _record(connection, home, worker_id, WorkerEvent.DRAINING, self.now())
        return bool(found)

    @reads
    def count(self, connection: sqlite3.Connection, namespace: str | None, stale: Span) -> dict[WorkerStatus, int]:
        rows = execute(connection, "count_workers", (namespace, self.now() - stale)).fetchall()
        return {WorkerStatus(status): count for status, count in rows}

    @writes
    def expire(self, connection: sqlite3.Connection, limit: int, after: Span) -> list[str]:
        now = self.now()
        silent = execute(connection, "find_silent_workers", (now - after, limit)).fetchall()
        for worker_id, namespace in silent:
            execute(connection, "leave_worker", (worker_id, now, None)).fetchall()
            _record(connection, namespace, worker_id, WorkerEvent.LOST, now)
        return [worker_id for worker_id, _ in silent]

    async def prune(self, limit: int) -> int:
        now = self.now
        # Looking needs no write lock, and there is seldom anything to delete.
        gone, old = await self.database.read(lambda connection: _find_gone(connection, limit, now()))
        deleted = 0
        if gone or old:
            deleted += await self.database.write(lambda connection: _delete(connection, gone, old))
        left = limit - deleted
        unseen = await self.database.read(lambda connection: find_unseen_types(connection, left, now()))
        if unseen:
            deleted += await self.database.write(lambda connection: forget_types(connection, unseen))
        return deleted


def _register(connection: sqlite3.Connection, registration: Registration, now: Instant) -> None:
    registered = execute(
        connection,
        "register_worker",
        (
            registration.worker_id,
            registration.namespace,
            _json(registration.queues),
            _json([each.name for each in registration.types]),
            _json([each.version or EVERY_VERSION for each in registration.types]),
            registration.hostname,
            registration.pid,
            registration.version,
            registration.concurrency,
            now,
            encode_extras(registration),
        ),
    )
    if registered.rowcount:  # else the id belongs to another namespace
        _record(connection, registration.namespace, registration.worker_id, WorkerEvent.STARTED, now)


def _beat(connection: sqlite3.Connection, heartbeat: Heartbeat, now: Instant) -> HeartbeatResult:
    worker_id = heartbeat.worker_id
    execute(connection, "beat_worker", (worker_id, now, heartbeat.completed, heartbeat.failed, heartbeat.namespace))
    worker = execute(connection, "find_worker", (worker_id, heartbeat.namespace)).fetchone()
    held = () if heartbeat.confirmed else heartbeat.held
    listed = set(held)
    heard = 0 if heartbeat.confirmed else heartbeat.heard
    kept: set[str] = set()
    news: list[tuple[str, int]] = []
    cancelled: list[str] = []
    unheard: list[tuple[str, str, str, int]] = []
    shortest: Span | None = None
    leases = execute(connection, "find_leases_of_worker", (worker_id, heartbeat.namespace)).fetchall()
    for namespace, run_id, token, task_queue, priority, poll, inbox_seq, cancel_requested, length in leases:
        if (run_id, token) in listed or (heartbeat.confirmed and poll is None):
            kept.add(run_id)
            shortest = length if shortest is None else min(shortest, length)
            if inbox_seq:
                news.append((run_id, inbox_seq))
            if cancel_requested:
                cancelled.append(run_id)
        elif poll is not None and poll <= heard:
            # Not listed under this token: listing an older lease of the run says nothing about this one.
            unheard.append((namespace, run_id, task_queue, priority))
    if kept:
        execute(connection, "renew_leases", (worker_id, _json(sorted(kept)), now))
    missing = [(run_id, token) for run_id, token in held if run_id not in kept]
    lost = _lost(connection, None if worker is None else worker[0], worker_id, missing)
    answer = HeartbeatAnswer(
        lost=lost,
        news=tuple(news),
        cancelled=tuple(cancelled),
        drain=worker is not None and worker[1] == WorkerStatus.DRAINING,
        known=worker is not None and worker[1] != WorkerStatus.OFFLINE,
        now=now,
    )
    released = [revoke(connection, run, now) for run in unheard]
    return HeartbeatResult(answer=answer, released=released, shortest=shortest)


def _lost(
    connection: sqlite3.Connection, namespace: str | None, worker_id: str, missing: list[tuple[str, str]]
) -> tuple[str, ...]:
    """Returns the runs listed that carry another token now, or are another worker's. One that the worker itself let go
    of meanwhile carries the same."""
    if not missing:
        return ()
    tokens: dict[str, str | None] = {}
    if namespace is not None:
        run_ids = _json([run_id for run_id, _ in missing])
        (text,) = execute(connection, "read_tokens", (namespace, run_ids, worker_id)).fetchone()
        tokens = dict(msgspec.json.decode(text, type=list[tuple[str, str | None]]))
    return tuple(run_id for run_id, token in missing if tokens.get(run_id) != token)


def revoke(connection: sqlite3.Connection, run: tuple[str, str, str, int], now: Instant) -> Recovered:
    """Takes (namespace, run_id, task_queue, priority) from its holder and makes it claimable at once."""
    namespace, run_id, task_queue, priority = run
    execute(connection, "revoke_lease", (namespace, run_id, now, claim_key(now, priority, now)))
    execute(connection, "forget_step_timeouts", (namespace, run_id))
    return Recovered(
        namespace=namespace,
        run_id=run_id,
        task_queue=task_queue,
        status=RunStatus.PENDING,
        available_at=now,
    )


def _worker_of(row: tuple[Any, ...]) -> Worker:
    worker = Worker(
        worker_id=row[0],
        namespace=row[1],
        queues=msgspec.json.decode(row[2], type=tuple[str, ...]),
        types=_types(row[3], row[4]),
        hostname=row[5],
        pid=row[6],
        version=row[7],
        concurrency=row[8],
        status=WorkerStatus(row[9]),
        registered_at=row[10],
        last_heartbeat_at=row[11],
        completed=row[12],
        failed=row[13],
        active=row[15] if len(row) > 15 else 0,
    )
    return decode_extras(worker, row[14])


def _types(names: str, versions: str) -> tuple[WorkflowType, ...]:
    pairs = zip(msgspec.json.decode(names, type=list[str]), msgspec.json.decode(versions, type=list[str]), strict=True)
    return tuple(WorkflowType(name, version or None) for name, version in pairs)


def _record(connection: sqlite3.Connection, namespace: str, worker_id: str, event: WorkerEvent, now: Instant) -> None:
    execute(connection, "record_worker_event", (namespace, worker_id, event.value, now))


def _json(value: Sequence[str]) -> str:
    return msgspec.json.encode(value).decode()


def _find_gone(connection: sqlite3.Connection, limit: int, now: Instant) -> tuple[list[tuple[str]], list[tuple[int]]]:
    """Returns workers and events that may be deleted, no more than `limit` together."""
    workers = execute(connection, "find_gone_workers", (now, limit)).fetchall()
    events = execute(connection, "find_old_worker_events", (now, limit - len(workers))).fetchall()
    return workers, events


def _delete(connection: sqlite3.Connection, workers: list[tuple[str]], events: list[tuple[int]]) -> int:
    deleted = 0
    for worker in workers:
        deleted += execute(connection, "delete_worker", worker).rowcount
    for event in events:
        deleted += execute(connection, "delete_worker_event", event).rowcount
    return deleted

"""Versions of workflows: what workers have offered, and what starts by name get."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from kagzi.api.workers import Registration
from kagzi.core import versions
from kagzi.core.instant import Instant, Span
from kagzi.core.versions import CheckedRun, Resolved, WorkflowInterface, WorkflowVersion
from kagzi.store.protocol.versions import MovedPage
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.runs import count_live_runs
from kagzi.store.sqlite.statements import execute
from kagzi.store.versions import (
    EVERY_VERSION,
    MOST_QUEUES,
    MOST_WORKERS,
    NOTHING_TOLD,
    SEEN_AGAIN,
    assemble,
    interface_of,
    interfaces_of,
    resolved_of,
)


class Versions(Noun):
    """See `store.protocol.versions.Versions`."""

    @reads
    def resolve(
        self, connection: sqlite3.Connection, namespace: str, workflow_type: str, version: str | None = None
    ) -> Resolved:
        version = version or resolve_version(connection, namespace, workflow_type)
        told = execute(connection, "read_interface", (namespace, workflow_type, version)).fetchone()
        return Resolved(version) if told is None else resolved_of(version, told[1], told[3], told[4])

    @writes
    def set_default(
        self, connection: sqlite3.Connection, namespace: str, workflow_type: str, version: str | None, force: bool
    ) -> bool:
        if version is None:
            execute(connection, "forget_default_version", (namespace, workflow_type))
            return True
        values = (namespace, workflow_type, version, self.now(), force)
        return bool(execute(connection, "set_default_version", values).rowcount)

    @reads
    def read(
        self, connection: sqlite3.Connection, namespace: str, workflow_type: str | None, limit: int, stale: Span
    ) -> versions.Versions:
        rows = execute(connection, "list_versions", (namespace, workflow_type, limit + 1)).fetchall()
        offers = execute(connection, "online_offers", (namespace, self.now() - stale, MOST_WORKERS)).fetchall()
        return assemble(
            [
                WorkflowVersion(
                    workflow_type=name,
                    version=version or None,
                    chosen=bool(chosen),
                    queues=_names(queues),
                    first_seen_at=first_seen_at,
                    last_seen_at=last_seen_at,
                    summary=summary or "",
                )
                for name, version, queues, first_seen_at, last_seen_at, chosen, summary in rows
            ],
            {name: resolve_version(connection, namespace, name) for name in {row[0] for row in rows}},
            [(_names(types), _names(versions)) for types, versions in offers],
            count_live_runs(connection, namespace),
            workflow_type=workflow_type,
            limit=limit,
        )

    @reads
    def read_interface(
        self, connection: sqlite3.Connection, namespace: str, workflow_type: str, version: str
    ) -> WorkflowInterface | None:
        row = execute(connection, "read_interface", (namespace, workflow_type, version)).fetchone()
        if row is None:
            return None
        name, found, *told = row
        return interface_of(name, found, (told[0], told[1], told[2]))

    @writes
    def move_runs(
        self,
        connection: sqlite3.Connection,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        after: tuple[str, int, str],
        limit: int,
        dry_run: bool,
    ) -> MovedPage:
        asked = (namespace, workflow_type, from_version, *after, limit)
        page = execute(connection, "waiting_page", asked).fetchall()
        found = [(queue, run_id) for queue, _, run_id, ours in page if ours]
        if not dry_run:
            for _, run_id in found:
                execute(connection, "move_run", (namespace, run_id, to_version))
        last = (page[-1][0], page[-1][1], page[-1][2]) if len(page) == limit else None
        return MovedPage(moved=len(found), queues=tuple(sorted({queue for queue, _ in found})), last=last)

    @writes
    def move_checked_runs(
        self,
        connection: sqlite3.Connection,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        runs: Sequence[CheckedRun],
    ) -> MovedPage:
        queues: list[str] = []
        for run in runs:
            values = (namespace, run.run_id, to_version, workflow_type, from_version, run.executions)
            queues += [queue for (queue,) in execute(connection, "move_checked_run", values).fetchall()]
        return MovedPage(moved=len(queues), queues=tuple(sorted(set(queues))), last=None)


def remember_types(connection: sqlite3.Connection, worker: Registration, now: Instant) -> None:
    names = msgspec.json.encode([offered.name for offered in worker.types]).decode()
    rows = execute(connection, "read_types", (worker.namespace, names)).fetchall()
    known = {(name, version): (_names(queues), *others) for name, version, queues, *others in rows}
    described = interfaces_of(worker)
    for offered in sorted(set(worker.types), key=lambda each: (each.name, each.version or EVERY_VERSION)):
        key = (offered.name, offered.version or EVERY_VERSION)
        before, seen_at, *told = known.get(key, ((), None, *NOTHING_TOLD))
        queues = [offered.queue] if offered.queue is not None else sorted({*before, *worker.queues})[:MOST_QUEUES]
        tells = described.get(key, told)  # a worker that tells nothing leaves what others have told
        if seen_at is None or seen_at <= now - SEEN_AGAIN or set(queues) != set(before) or list(tells) != told:
            values = (worker.namespace, *key, msgspec.json.encode(queues).decode(), now, *tells)
            execute(connection, "remember_type", values)


def resolve_version(connection: sqlite3.Connection, namespace: str, workflow_type: str) -> str:
    (version,) = execute(connection, "resolve_version", (namespace, workflow_type)).fetchone()
    return str(version)


def find_unseen_types(connection: sqlite3.Connection, limit: int, now: Instant) -> list[tuple[str, str, str, int]]:
    return execute(connection, "find_unseen_types", (now, limit)).fetchall()


def forget_types(connection: sqlite3.Connection, unseen: list[tuple[str, str, str, int]]) -> int:
    return sum(execute(connection, "forget_type", each).rowcount for each in unseen)


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else msgspec.json.decode(text, type=tuple[str, ...])

"""Versions of workflows: what workers have offered, and what starts by name get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.workers import Registration
from kagzi.core import versions
from kagzi.core.instant import Instant, Span
from kagzi.core.versions import CheckedRun, Resolved, WorkflowInterface, WorkflowVersion
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.runs import count_live_runs
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.versions import MovedPage
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

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_REMEMBER_TYPES = STATEMENTS["remember_types"]
_RESOLVE_VERSION = STATEMENTS["resolve_version"]
_SET_DEFAULT_VERSION = STATEMENTS["set_default_version"]
_FORGET_DEFAULT_VERSION = STATEMENTS["forget_default_version"]
_LIST_VERSIONS = STATEMENTS["list_versions"]
_ONLINE_OFFERS = STATEMENTS["online_offers"]
_FORGET_TYPES = STATEMENTS["forget_types"]
_WAITING_PAGE = STATEMENTS["waiting_page"]
_MOVE_RUNS = STATEMENTS["move_runs"]
_READ_INTERFACE = STATEMENTS["read_interface"]
_MOVE_CHECKED_RUNS = STATEMENTS["move_checked_runs"]


class Versions(Noun):
    """See `store.protocol.versions.Versions`."""

    @asks
    async def resolve(
        self, connection: Connection, namespace: str, workflow_type: str, version: str | None = None
    ) -> Resolved:
        [found] = await connection.fetch(_RESOLVE_VERSION, namespace, workflow_type, version)
        return resolved_of(*found)

    @asks
    async def set_default(
        self, connection: Connection, namespace: str, workflow_type: str, version: str | None, force: bool
    ) -> bool:
        if version is None:
            await connection.execute(_FORGET_DEFAULT_VERSION, namespace, workflow_type)
            return True
        return bool(await connection.fetch(_SET_DEFAULT_VERSION, self.now(), namespace, workflow_type, version, force))

    @asks
    async def read(
        self, connection: Connection, namespace: str, workflow_type: str | None, limit: int, stale: Span
    ) -> versions.Versions:
        rows = await connection.fetch(_LIST_VERSIONS, namespace, workflow_type, limit + 1)
        offers = await connection.fetch(_ONLINE_OFFERS, namespace, self.now(), stale, MOST_WORKERS)
        return assemble(
            [
                WorkflowVersion(
                    workflow_type=row["workflow_type"],
                    version=row["version"] or None,
                    chosen=row["chosen"],
                    queues=tuple(row["queues"] or ()),
                    first_seen_at=row["first_seen_at"],
                    last_seen_at=row["last_seen_at"],
                    summary=row["summary"] or "",
                )
                for row in rows
            ],
            {row["workflow_type"]: row["resolved"] for row in rows},
            [(row["types"], row["versions"]) for row in offers],
            await count_live_runs(connection, namespace),
            workflow_type=workflow_type,
            limit=limit,
        )

    @asks
    async def read_interface(
        self, connection: Connection, namespace: str, workflow_type: str, version: str
    ) -> WorkflowInterface | None:
        for row in await connection.fetch(_READ_INTERFACE, namespace, workflow_type, version):
            name, found, *told = row
            return interface_of(name, found, (told[0], told[1], told[2]))
        return None

    @asks
    async def move_runs(
        self,
        connection: Connection,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        after: tuple[str, int, str],
        limit: int,
        dry_run: bool,
    ) -> MovedPage:
        page = await connection.fetch(_WAITING_PAGE, namespace, workflow_type, from_version, *after, limit)
        queues = [row["task_queue"] for row in page if row["asked"]]
        if queues and not dry_run:
            run_ids = [row["run_id"] for row in page if row["asked"]]
            moved = await connection.fetch(_MOVE_RUNS, namespace, run_ids, from_version, to_version)
            queues = [row["task_queue"] for row in moved]
        last = None
        if len(page) == limit:
            last = (page[-1]["task_queue"], page[-1]["claim_key"], str(page[-1]["run_id"]))
        return MovedPage(moved=len(queues), queues=tuple(sorted(set(queues))), last=last)

    @asks
    async def move_checked_runs(
        self,
        connection: Connection,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        runs: Sequence[CheckedRun],
    ) -> MovedPage:
        moved = await connection.fetch(
            _MOVE_CHECKED_RUNS,
            namespace,
            [run.run_id for run in runs],
            [run.executions for run in runs],
            workflow_type,
            from_version,
            to_version,
        )
        return MovedPage(moved=len(moved), queues=tuple(sorted({row["task_queue"] for row in moved})), last=None)


async def remember_types(connection: Connection, worker: Registration, now: Instant | None) -> None:
    if worker.types:
        described = interfaces_of(worker)
        tells = [described.get((each.name, each.version or EVERY_VERSION), NOTHING_TOLD) for each in worker.types]
        await connection.execute(
            _REMEMBER_TYPES,
            now,
            worker.namespace,
            [offered.name for offered in worker.types],
            [offered.version or EVERY_VERSION for offered in worker.types],
            [offered.queue for offered in worker.types],
            sorted(worker.queues),
            SEEN_AGAIN,
            [offered.name for offered in worker.types if offered.queue is not None],
            MOST_QUEUES,
            *([told[column] for told in tells] for column in range(len(NOTHING_TOLD))),
        )


async def forget_types(connection: Connection, limit: int, now: Instant | None) -> int:
    return len(await connection.fetch(_FORGET_TYPES, now, limit))

"""Versions of workflows: what both databases have found about them, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from kagzi.api.workers import Registration
from kagzi.core.instant import SECOND, Span
from kagzi.core.run import RunStatus
from kagzi.core.versions import (
    FIRST_VERSION,
    NO_DEFAULTS,
    Resolved,
    StartDefaults,
    Versions,
    WorkflowInterface,
    WorkflowVersion,
)
from kagzi.store.counting import Seen, cut_short

SEEN_AGAIN: Final[Span] = 3600 * SECOND  # workers that come and go all day write once an hour that a type was seen
MOST_QUEUES: Final = 100  # of a type
MOST_WORKERS: Final = 10_000  # looked at for who is online
EVERY_VERSION: Final = ""


Told = tuple[str | None, str | None, str | None]  # the columns that tell of a type: summary, schema, defaults
NOTHING_TOLD: Final[Told] = (None, None, None)


def interfaces_of(worker: Registration) -> dict[tuple[str, str], Told]:
    """Returns what the worker tells of its types, by workflow and version."""
    return {
        (each.workflow_type, each.version or EVERY_VERSION): (
            each.summary,
            each.input_schema,
            msgspec.json.encode(each.defaults).decode(),
        )
        for each in worker.interfaces
    }


def interface_of(name: str, version: str, told: Told) -> WorkflowInterface:
    summary, input_schema, defaults = told
    return WorkflowInterface(
        workflow_type=name,
        version=version or None,
        summary=summary or "",
        input_schema=input_schema,
        defaults=_defaults(defaults),
    )


def resolved_of(version: str, found: str | None, input_schema: str | None, defaults: str | None) -> Resolved:
    """Returns what a start gets by the version of it and what is told of that: `found` is the version that the worker
    told it of, None if none did."""
    return Resolved(version, found is not None, input_schema, _defaults(defaults))


def _defaults(told: str | None) -> StartDefaults:
    return NO_DEFAULTS if told is None else msgspec.json.decode(told, type=StartDefaults)


def assemble(
    known: Iterable[WorkflowVersion],
    resolved: Mapping[str, str],
    offers: Iterable[tuple[Iterable[str], Iterable[str]]],
    live: list[Seen],
    *,
    workflow_type: str | None,
    limit: int,
) -> Versions:
    """Puts versions together: `known` are those that were offered or chosen, the newest of each workflow first;
    `resolved` what starts by name get of each workflow among them. Versions that only runs know of come after them."""
    found = {(record.workflow_type, record.version): record for record in known}
    short = cut_short(live)
    for seen in live:
        key = (seen.workflow_type, seen.version)
        if workflow_type in (None, seen.workflow_type) and (key in found or len(found) <= limit):
            found[key] = _with(found.get(key) or WorkflowVersion(workflow_type=key[0], version=key[1]), seen)
    online: Counter[tuple[str, str | None]] = Counter()
    for types, versions in offers:
        online.update({(name, version or None) for name, version in zip(types, versions, strict=True)})
    records = [
        replace(
            record,
            default=record.version == resolved.get(record.workflow_type, FIRST_VERSION),
            workers=online[key] + (online[key[0], None] if key[1] is not None else 0),
            at_least=short,
        )
        for key, record in found.items()
    ]
    records.sort(key=lambda record: record.workflow_type)  # stable: the newest of each stay first
    return Versions(tuple(records[:limit]), more=len(records) > limit)


def _with(record: WorkflowVersion, seen: Seen) -> WorkflowVersion:
    oldest = seen.oldest_at if record.oldest_run_at is None else min(record.oldest_run_at, seen.oldest_at)
    match seen.status:
        case RunStatus.PENDING:
            return replace(record, pending=record.pending + seen.rows, oldest_run_at=oldest)
        case RunStatus.RUNNING:
            return replace(record, running=record.running + seen.rows, oldest_run_at=oldest)
        case RunStatus.SLEEPING:
            return replace(record, sleeping=record.sleeping + seen.rows, oldest_run_at=oldest)
        case other:
            raise AssertionError(f"a run that is {other} was counted among the live ones")

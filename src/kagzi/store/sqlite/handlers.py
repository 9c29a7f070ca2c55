"""Failure handlers: runs that are inserted in the transaction that fails another, so that each failure has its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from kagzi.core.failed_run import FAILURE_HANDLER, FailedRow, document, handlers_of
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.ids import derived_run_id
from kagzi.store.protocol.changes import RunKey, Told
from kagzi.store.sqlite.run_rows import INLINE_BYTES, claim_key
from kagzi.store.sqlite.statements import execute, execute_rows
from kagzi.store.sqlite.versions import resolve_version


def start_handlers(connection: sqlite3.Connection, runs: Sequence[RunKey], now: Instant) -> list[Told]:
    """Starts what handles the failures among runs that this transaction has ended."""
    told: list[Told] = []
    for run in runs:
        row = execute(connection, "read_failed_run", run).fetchone()
        if row is not None:
            told += _start(connection, _failed(connection, row), now)
    return told


def _start(connection: sqlite3.Connection, failed: FailedRow, now: Instant) -> list[Told]:
    told: list[Told] = []
    for handler in handlers_of(failed):
        run_id = derived_run_id(failed.finished_at, failed.run_id, handler.workflow_type)
        input = document(failed)
        inline = len(input) <= INLINE_BYTES
        execute(
            connection,
            "start_handler",
            (
                failed.namespace,
                failed.run_id,
                run_id,
                handler.task_queue,
                handler.workflow_type,
                resolve_version(connection, failed.namespace, handler.workflow_type),
                claim_key(failed.finished_at, failed.priority, now),
                input if inline else None,
            ),
        )
        if not inline:
            execute_rows(connection, "insert_payloads", [(failed.namespace, run_id, "input", input)])
        execute(connection, "keep_failed_input", (failed.namespace, failed.run_id, run_id))
        told.append(
            Told(
                namespace=failed.namespace,
                run_id=run_id,
                task_queue=handler.task_queue,
                status=RunStatus.PENDING,
                available_at=failed.finished_at,
                inbox_seq=0,
                workflow_type=handler.workflow_type,
            )
        )
    return told


def _failed(connection: sqlite3.Connection, row: tuple[object, ...]) -> FailedRow:
    values = dict(zip(FailedRow.__struct_fields__, row, strict=True))
    if values["registered_queue"] is not None:
        values["registered_queue"] = _registered_queue(connection, str(values["namespace"]))
    return FailedRow(**values)  # type: ignore[arg-type]


def _registered_queue(connection: sqlite3.Connection, namespace: str) -> str:
    """Where the handler of all failures waits, in the version that is started."""
    rows = execute(connection, "read_types", (namespace, msgspec.json.encode([FAILURE_HANDLER]).decode())).fetchall()
    queues = {version: msgspec.json.decode(text, type=list[str])[0] for _, version, text, *_ in rows}
    version = resolve_version(connection, namespace, FAILURE_HANDLER)
    return queues.get(version) or next(iter(queues.values()))

"""Failure handlers: runs that are inserted in the transaction that fails another, so that each failure has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kagzi.core.failed_run import FailedRow, Handler, document, handlers_of
from kagzi.core.run import RunStatus
from kagzi.ids import derived_run_id
from kagzi.store.postgres.run_rows import columns_of
from kagzi.store.postgres.single import INLINE_BYTES
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import RunKey, Told

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_READ_FAILED_RUNS = STATEMENTS["read_failed_runs"]
_START_HANDLERS = STATEMENTS["start_handlers"]
_KEEP_FAILED_INPUTS = STATEMENTS["keep_failed_inputs"]
_READ_FAILED_INPUTS = STATEMENTS["read_failed_inputs"]
_STORE_INPUTS = STATEMENTS["store_inputs"]


async def start_handlers(connection: Connection, runs: Sequence[RunKey]) -> list[Told]:
    """Starts what handles the failures among runs that this transaction has ended; one question if nothing does."""
    rows = await connection.fetch(_READ_FAILED_RUNS, *columns_of(runs))
    called = [(row, handler) for row in map(_failed, map(dict, rows)) for handler in handlers_of(row)]
    if not called:
        return []
    namespaces = [row.namespace for row, _ in called]
    ids = [handler_id(row, handler) for row, handler in called]
    inputs = [document(row) for row, _ in called]
    started = await connection.fetch(
        _START_HANDLERS,
        namespaces,
        [row.run_id for row, _ in called],
        ids,
        [handler.task_queue for _, handler in called],
        [handler.workflow_type for _, handler in called],
        [input if len(input) <= INLINE_BYTES else None for input in inputs],
    )
    large = [place for place, input in enumerate(inputs) if len(input) > INLINE_BYTES]
    if large:
        columns = ([column[place] for place in large] for column in (namespaces, ids, inputs))
        await connection.execute(_STORE_INPUTS, *columns)
    await connection.execute(_KEEP_FAILED_INPUTS, namespaces, [row.run_id for row, _ in called], ids)
    return [
        Told(
            namespace=row["namespace"],
            run_id=str(row["run_id"]),
            task_queue=row["task_queue"],
            status=RunStatus(row["status"]),
            available_at=row["available_at"],
            inbox_seq=0,
            workflow_type=row["workflow_type"],
        )
        for row in started
    ]


async def read_failed_inputs(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, bytes]:
    rows = await connection.fetch(_READ_FAILED_INPUTS, namespace, run_ids)
    return {str(row["run_id"]): row["value"] for row in rows}


def handler_id(row: FailedRow, handler: Handler) -> str:
    return derived_run_id(row.finished_at, row.run_id, handler.workflow_type)


def _failed(row: dict[str, object]) -> FailedRow:
    return FailedRow(**{name: str(value) if isinstance(value, UUID) else value for name, value in row.items()})  # type: ignore[arg-type]

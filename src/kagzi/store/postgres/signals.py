"""Signals: sending, taking and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.operations import (
    Answer,
    SendSignal,
    SignalAnswer,
)
from kagzi.api.workers import INBOX_BYTES, INBOX_READ, Inbox
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.signal import MOST_UNTAKEN, Signal
from kagzi.errors import InvalidRequest
from kagzi.store.postgres.children import read_outcomes
from kagzi.store.postgres.children import reconcile as tell_late
from kagzi.store.postgres.nouns import Noun
from kagzi.store.postgres.run_rows import is_id
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Applied
from kagzi.store.signals import unsent

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_SEND_SIGNALS = STATEMENTS["send_signals"]
_FIND_SIGNALS = STATEMENTS["find_signals"]
_TAKE_SIGNALS = STATEMENTS["take_signals"]
_READ_INBOX = STATEMENTS["read_inbox"]
_READ_INBOXES = STATEMENTS["read_inboxes"]
_LIST_SIGNALS = STATEMENTS["list_signals"]
Taken = tuple[str, str, str, int]  # namespace, run id, key, number of the event


class Signals(Noun):
    """See `store.protocol.signals.Signals`."""

    async def read_inbox(
        self,
        namespace: str,
        run_id: str,
        token: str,
        names: Sequence[str],
        limit: int,
        children: bool = False,
        reconcile: bool = False,
    ) -> Inbox | None:
        if not (is_id(run_id) and is_id(token)):
            return None
        if reconcile:
            now = self.now()
            await self.pool.run(lambda connection: tell_late(connection, namespace, run_id, now))
        return await self.pool.run(
            lambda connection: _read_inbox(connection, namespace, run_id, token, names, limit, children)
        )

    async def page(self, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
        if not is_id(run_id):
            return []
        return await self.pool.run(lambda connection: _page(connection, namespace, run_id, after, limit))


async def apply_signals(connection: Connection, signals: Sequence[SendSignal], now: Instant | None) -> Applied:
    rows = await connection.fetch(
        _SEND_SIGNALS,
        now,
        *_columns(signals),
        [signal.name for signal in signals],
        [signal.value for signal in signals],
        MOST_UNTAKEN,
    )
    stored = {row["place"]: row for row in rows}
    left = [(place, signal) for place, signal in enumerate(signals, 1) if place not in stored]
    refused: dict[int, Answer] = {}
    if left:
        found = await connection.fetch(_FIND_SIGNALS, *_columns([signal for _, signal in left]))
        refused = {left[row["place"] - 1][0]: _unsent(left[row["place"] - 1][1], row) for row in found}
    answers = [
        refused[place] if place in refused else _sent(signal, stored[place]) for place, signal in enumerate(signals, 1)
    ]
    return Applied(answers, [])


async def take_signals(connection: Connection, taken: Sequence[Taken]) -> None:
    """Marks signals as taken; InvalidRequest, and nothing is to be kept, if one of them is not there to be taken."""
    status = await connection.execute(_TAKE_SIGNALS, *(list(column) for column in zip(*taken, strict=True)))
    if int(status.rpartition(" ")[2]) != len(taken):
        raise InvalidRequest("a signal was taken that is not in the run's inbox")


async def read_inboxes(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, tuple[Signal, ...]]:
    """Reads the signals that these runs have not taken. Runs with too many or too large ones are left out."""
    rows = await connection.fetch(_READ_INBOXES, namespace, run_ids, INBOX_READ, INBOX_BYTES)
    inboxes: dict[str, tuple[Signal, ...]] = {}
    for row in rows:
        run_id = str(row["run_id"])
        inboxes[run_id] = inboxes.get(run_id, ()) + (() if row["key"] is None else (_signal_of(row),))
    return inboxes


async def _read_inbox(
    connection: Connection,
    namespace: str,
    run_id: str,
    token: str,
    names: Sequence[str],
    limit: int,
    children: bool,
) -> Inbox | None:
    if children and not names:
        return await read_outcomes(connection, namespace, run_id, token)
    rows = await connection.fetch(_READ_INBOX, namespace, run_id, token, list(names), limit)
    if not rows:
        return None
    # Read after the number, so that what comes in between is looked for once more.
    outcomes = await read_outcomes(connection, namespace, run_id, token) if children else None
    return Inbox(
        inbox_seq=rows[0]["inbox_seq"],
        cancel_requested=rows[0]["cancel_requested"],
        signals=tuple(_signal_of(row) for row in rows if row["key"] is not None),
        outcomes=() if outcomes is None else outcomes.outcomes,
    )


async def _page(connection: Connection, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
    rows = await connection.fetch(_LIST_SIGNALS, namespace, run_id, after, limit)
    return [_signal_of(row, row["taken_seq"]) for row in rows]


def _columns(signals: Sequence[SendSignal]) -> tuple[list[str], list[str], list[str]]:
    return (
        [signal.namespace for signal in signals],
        [signal.run_id for signal in signals],
        [signal.key for signal in signals],
    )


def _sent(signal: SendSignal, row: asyncpg.Record) -> SignalAnswer:
    return SignalAnswer(
        run_id=signal.run_id,
        seq=row["seq"],
        status=RunStatus(row["status"]),
        task_queue=row["task_queue"],
        available_at=row["available_at"] or 0,
    )


def _unsent(signal: SendSignal, row: asyncpg.Record) -> Answer:
    status = None if row["status"] is None else RunStatus(row["status"])
    known = None if row["seq"] is None else (row["seq"], row["name"])
    return unsent(signal, status, row["task_queue"] or "", row["available_at"] or 0, known)


def _signal_of(row: asyncpg.Record, taken_seq: int | None = None) -> Signal:
    return Signal(
        key=row["key"],
        seq=row["seq"],
        name=row["name"],
        value=row["value"],
        sent_at=row["sent_at"],
        taken_seq=taken_seq,
    )

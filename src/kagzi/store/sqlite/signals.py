"""Signals: sending, taking and reading them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from kagzi.api.operations import Answer, SendSignal, SignalAnswer
from kagzi.api.workers import INBOX_BYTES, INBOX_READ, Inbox
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.signal import MOST_UNTAKEN, Signal, awaits_signal
from kagzi.store.signals import unsent
from kagzi.store.sqlite.children import has_untold, read_outcomes
from kagzi.store.sqlite.children import reconcile as tell_late
from kagzi.store.sqlite.inboxes import raise_inbox
from kagzi.store.sqlite.nouns import Noun, reads
from kagzi.store.sqlite.statements import Row, execute

_ANY = awaits_signal("*")


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
        run, now = (namespace, run_id), self.now
        if reconcile and await self.database.read(lambda connection: has_untold(connection, run)):
            await self.database.write(lambda connection: tell_late(connection, run, now()))
        return await self.database.read(
            lambda connection: _read_inbox(connection, namespace, run_id, token, names, limit, children)
        )

    @reads
    def page(self, connection: sqlite3.Connection, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
        return [_signal_of(*row) for row in execute(connection, "list_signals", (namespace, run_id, after, limit))]


def send_signal(connection: sqlite3.Connection, signal: SendSignal, now: Instant) -> Answer:
    run = (signal.namespace, signal.run_id)
    row = execute(connection, "find_run_to_signal", (*run, signal.key)).fetchone()
    if row is None:
        return unsent(signal, None, "", 0, None)
    found, task_queue, available_at, inbox_seq, known_seq, known_name = row
    status = RunStatus(found)
    known = None if known_seq is None else (known_seq, known_name)
    full = known is None and execute(connection, "inbox_is_full", (*run, MOST_UNTAKEN - 1)).fetchone()[0]
    if known is not None or status.finished or full:
        return unsent(signal, status, task_queue, available_at or 0, known)
    execute(connection, "insert_signal", (*run, signal.key, inbox_seq + 1, signal.name, signal.value, now))
    told = raise_inbox(connection, run, (awaits_signal(signal.name), _ANY), now)
    return SignalAnswer(
        run_id=signal.run_id,
        seq=told.inbox_seq,
        status=status,
        task_queue=task_queue,
        available_at=told.available_at,
    )


def take_signal(connection: sqlite3.Connection, taken: Row) -> None:
    """Marks a signal as taken; ValueError, and nothing is to be kept, if it is not there to be taken."""
    if execute(connection, "take_signal", taken).rowcount != 1:
        raise ValueError("a signal was taken that is not in the run's inbox")


def read_all(connection: sqlite3.Connection, run: tuple[str, str]) -> tuple[Signal, ...] | None:
    """Reads the signals that the run has not taken; None if they are too many or too large for a claim."""
    rows = execute(connection, "read_untaken", (*run, INBOX_READ + 1)).fetchall()
    if len(rows) > INBOX_READ or sum(size for *_, size in rows) > INBOX_BYTES:
        return None
    return tuple(_signal_of(*row) for *row, _ in rows)


def _read_inbox(
    connection: sqlite3.Connection,
    namespace: str,
    run_id: str,
    token: str,
    names: Sequence[str],
    limit: int,
    children: bool,
) -> Inbox | None:
    found = execute(connection, "find_inbox", (namespace, run_id, token)).fetchone()
    if found is None:
        return None
    listed = msgspec.json.encode(names).decode()
    rows = execute(connection, "read_inbox", (namespace, run_id, listed, limit)).fetchall()
    return Inbox(
        inbox_seq=found[0],
        cancel_requested=bool(found[1]),
        signals=tuple(_signal_of(*row) for row in rows),
        outcomes=read_outcomes(connection, (namespace, run_id)) if children else (),
    )


def _signal_of(key: str, seq: int, name: str, value: bytes, sent_at: Instant, taken_seq: int | None = None) -> Signal:
    return Signal(key=key, seq=seq, name=name, value=value, sent_at=sent_at, taken_seq=taken_seq)

"""Work: batches of writes, each in one transaction; claims, and leases."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, assert_never

from kagzi.api.operations import (
    Answer,
    CancelRun,
    Chunk,
    ChunkAnswer,
    RepeatRun,
    SendSignal,
    StartRun,
    TerminateRun,
    WakeAnswer,
    Write,
)
from kagzi.api.workers import LeaseState, Poll, Polled
from kagzi.core.instant import Instant, Span
from kagzi.errors import InvalidRequest, KagziError
from kagzi.store.protocol.changes import Applied, RunKey, Told
from kagzi.store.sqlite.cancels import cancel, repeat, wake_run
from kagzi.store.sqlite.chunks import apply_chunks
from kagzi.store.sqlite.claims import claim_runs
from kagzi.store.sqlite.connection import begin
from kagzi.store.sqlite.debounce import start_debounced
from kagzi.store.sqlite.leases import confirm_lease, read_lease
from kagzi.store.sqlite.nouns import Noun, writes
from kagzi.store.sqlite.signal_starts import start_with_signal
from kagzi.store.sqlite.signals import send_signal
from kagzi.store.sqlite.starts import start_runs

# What a value that no column takes raises, from Python or from SQLite.
_BAD_VALUES: Final = (
    OverflowError,
    UnicodeError,
    TypeError,
    ValueError,
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)


class Work(Noun):
    """See `store.protocol.work.Work`."""

    lanes = 1

    @writes
    def apply(self, connection: sqlite3.Connection, writes: Sequence[Write]) -> Applied:
        now = self.now()
        try:
            return _apply(connection, writes, now)
        except _BAD_VALUES:
            connection.execute("ROLLBACK")
            begin(connection)
            return _apply_one_by_one(connection, writes, now)

    apply_patiently = apply  # there are no locks of rows

    @writes
    def claim(self, connection: sqlite3.Connection, poll: Poll, lease: Span) -> Polled:
        return claim_runs(connection, poll, lease, self.now())

    @writes
    def wake(self, connection: sqlite3.Connection, namespace: str, run_id: str) -> WakeAnswer | None:
        return wake_run(connection, namespace, run_id, self.now())

    async def read_lease(self, namespace: str, run_id: str, token: str, confirm: bool) -> LeaseState | None:
        lease, now = (namespace, run_id, token), self.now
        state = await self.database.read(lambda connection: read_lease(connection, *lease, now()))
        if state is None or state.confirmed or not confirm:
            return state
        await self.database.write(lambda connection: confirm_lease(connection, *lease, now()))
        return await self.read_lease(namespace, run_id, token, False)

    def lane_of(self, write: Write) -> int:  # noqa: ARG002 (there is one)
        return 0


def _apply(connection: sqlite3.Connection, writes: Sequence[Write], now: Instant) -> Applied:
    answers: list[Answer] = [ChunkAnswer.DONE] * len(writes)
    woken: list[Told] = []
    starts = [(position, write) for position, write in enumerate(writes) if type(write) is StartRun]
    plain = [each for each in starts if each[1].signal is None and each[1].debounce is None]
    if plain:
        start_runs(connection, plain, answers, now)
    if len(plain) < len(starts):
        for position, start in starts:
            if start.signal is not None:
                answers[position] = start_with_signal(connection, start, now)
            elif start.debounce is not None:
                answers[position] = start_debounced(connection, start, now)
    if len(starts) < len(writes):
        chunks = [(position, write) for position, write in enumerate(writes) if isinstance(write, Chunk)]
        if chunks:
            woken += apply_chunks(connection, chunks, answers, now)
        if len(starts) + len(chunks) < len(writes):
            _apply_requests(connection, writes, answers, woken, now)
    return Applied(answers, woken)


def _apply_requests(
    connection: sqlite3.Connection, writes: Sequence[Write], answers: list[Answer], woken: list[Told], now: Instant
) -> None:
    """Applies what is asked for outside of a lease."""
    for position, write in enumerate(writes):
        match write:
            case SendSignal():
                answers[position] = send_signal(connection, write, now)
            case CancelRun() | TerminateRun():
                answers[position] = cancel(connection, write, woken, now)
            case RepeatRun():
                answers[position] = repeat(connection, write, now)
            case StartRun() | Chunk():
                pass
            case _:
                assert_never(write)


def _apply_one_by_one(connection: sqlite3.Connection, writes: Sequence[Write], now: Instant) -> Applied:
    """Something in the batch cannot be stored: find it, and let the others pass."""
    applied = Applied([], [])
    refused: dict[RunKey, KagziError] = {}
    for write in writes:
        run = (write.namespace, write.run_id)
        if run in refused:
            applied.answers.append(refused[run])  # nothing of a run is applied after a refused operation
            continue
        connection.execute("SAVEPOINT single")
        try:
            applied.add(_apply(connection, [write], now))
        except _BAD_VALUES as error:
            connection.execute("ROLLBACK TO single")
            refused[run] = InvalidRequest(f"the database cannot store this: {error}")
            applied.answers.append(refused[run])
        connection.execute("RELEASE single")
    return applied

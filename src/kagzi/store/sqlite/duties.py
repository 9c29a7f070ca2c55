"""Background duties. Each takes the write lock, so any number of processes may have them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from kagzi.api.operations import CancelRun, TerminateRun
from kagzi.core.cancel import cancelled_unclean
from kagzi.core.failure import Failure
from kagzi.core.instant import Instant, Span
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.errors import StepTimeout, WorkflowFailed, WorkflowTimedOut
from kagzi.store.protocol.changes import Changed, Recovered
from kagzi.store.protocol.duties import Offer, SetAside
from kagzi.store.sqlite.children import cascade_ends
from kagzi.store.sqlite.ends import end_run, ended
from kagzi.store.sqlite.nouns import Noun, writes
from kagzi.store.sqlite.run_rows import claim_key
from kagzi.store.sqlite.statements import execute
from kagzi.store.sqlite.unserved import set_runs_aside
from kagzi.store.sqlite.workers import revoke


class Duties(Noun):
    """See `store.protocol.duties.Duties`."""

    @writes
    def recover_runs(
        self, connection: sqlite3.Connection, limit: int, max_crashes: int, backoff: Callable[[int], Span]
    ) -> Changed:
        now = self.now()
        changed = Changed()
        for row in execute(connection, "find_dead_leases", (now, limit)).fetchall():
            namespace, run_id, task_queue, priority, crashes, crashed_seq, newest_seq = row
            progress = crashed_seq is None or newest_seq > crashed_seq
            crashes = 1 if progress else crashes + 1
            if crashes >= max_crashes:
                status, at = RunStatus.FAILED, now
                error = _poisoned(crashes)
                execute(connection, "fail_crashed_run", (namespace, run_id, crashes, newest_seq, error, now))
                changed.woken.extend(ended(connection, [(namespace, run_id)], now))
            else:
                status, at = RunStatus.PENDING, now + backoff(crashes)
                key = claim_key(at, priority, now)
                execute(connection, "recover_run", (namespace, run_id, crashes, newest_seq, at, key))
            execute(connection, "forget_step_timeouts", (namespace, run_id))
            changed.runs.append(
                Recovered(namespace=namespace, run_id=run_id, task_queue=task_queue, status=status, available_at=at)
            )
        return changed

    @writes
    def time_out_steps(self, connection: sqlite3.Connection, limit: int, grace: Span) -> Changed:
        now = self.now()
        message = "the step ran longer than its timeout and its worker did not stop it"
        error = Failure.of(StepTimeout, message).encode()
        revoked: dict[tuple[str, str], Recovered] = {}
        for row in execute(connection, "find_overdue_steps", (now - grace, limit)).fetchall():
            namespace, run_id, step_id, attempt, task_queue, priority, running = row
            if not running:
                # It has to leave the index of timeouts all the same, or this duty would meet it for ever.
                execute(connection, "forget_step_timeout", (namespace, run_id, step_id, attempt))
                continue
            execute(connection, "time_out_step", (namespace, run_id, step_id, attempt, now, error))
            if (namespace, run_id) not in revoked:
                revoked[namespace, run_id] = revoke(connection, (namespace, run_id, task_queue, priority), now)
        return Changed(list(revoked.values()))

    @writes
    def time_out_runs(self, connection: sqlite3.Connection, limit: int) -> Changed:
        error = Failure.of(WorkflowTimedOut, "the run passed its deadline").encode()
        return _end_overdue(connection, "find_overdue_runs", limit, RunStatus.TIMED_OUT, error, self.now())

    @writes
    def end_cancelled_runs(self, connection: sqlite3.Connection, limit: int) -> Changed:
        execute(connection, "prolong_cancels", (self.now(),))
        return _end_overdue(
            connection, "find_overdue_cancels", limit, RunStatus.CANCELLED, cancelled_unclean(), self.now()
        )

    @writes
    def cascade_ends(self, connection: sqlite3.Connection, limit: int) -> list[CancelRun | TerminateRun]:
        return cascade_ends(connection, limit)

    @writes
    def set_runs_aside(
        self, connection: sqlite3.Connection, offered: Sequence[Offer], stale: Span, limit: int
    ) -> SetAside:
        now = self.now()
        return set_runs_aside(connection, offered, limit, now - stale, now)

    async def prune_runs(self, limit: int, after: Cursor | None) -> tuple[int, Cursor | None]:
        now = self.now
        # Looking needs no write lock, and there is seldom anything to delete. Finished runs do not change in between.
        expired, cursor = await self.database.read(lambda connection: _find_expired(connection, limit, after, now()))
        if not expired:
            return 0, cursor
        return await self.database.write(lambda connection: delete_runs(connection, expired)), cursor


def _poisoned(crashes: int) -> bytes:
    message = f"the worker driving this run died {crashes} times in a row without recording anything new"
    return Failure.of(WorkflowFailed, message).encode()


def _end_overdue(
    connection: sqlite3.Connection, find: str, limit: int, status: RunStatus, error: bytes, now: Instant
) -> Changed:
    """Ends the live runs that a statement finds."""
    changed = Changed()
    for namespace, run_id, task_queue, at in execute(connection, find, (now, limit)).fetchall():
        changed.woken.extend(end_run(connection, (namespace, run_id), status, error, now))
        changed.runs.append(
            Recovered(namespace=namespace, run_id=run_id, task_queue=task_queue, status=status, available_at=at)
        )
    return changed


def _find_expired(
    connection: sqlite3.Connection, limit: int, after: Cursor | None, now: Instant
) -> tuple[list[tuple[str, str]], Cursor | None]:
    """Walk on from a cursor: which runs may go, and where the next walk begins (None: at the end)."""
    namespace, _, run_id = ("", "", "") if after is None else after.key.rpartition("/")
    rows = execute(connection, "walk_runs", (namespace, run_id, now, limit)).fetchall()
    expired = [(row[0], row[1]) for row in rows if row[2]]
    return expired, Cursor(f"{rows[-1][0]}/{rows[-1][1]}") if len(rows) == limit else None


def delete_runs(connection: sqlite3.Connection, runs: list[tuple[str, str]]) -> int:
    deleted = 0
    for run in runs:
        # Another process may have been here since the walk.
        if execute(connection, "delete_run", run).rowcount:
            deleted += 1
            execute(connection, "delete_steps", run)
            execute(connection, "delete_payloads", run)
            execute(connection, "delete_signals", run)
            execute(connection, "delete_values", run)
    return deleted

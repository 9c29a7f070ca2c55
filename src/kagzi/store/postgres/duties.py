"""Background duties: what has to be done for runs that no worker takes care of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kagzi.api.operations import CancelRun, TerminateRun
from kagzi.core.cancel import cancelled_unclean
from kagzi.core.failure import Failure
from kagzi.core.instant import Instant, Span
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.errors import StepTimeout, WorkflowFailed, WorkflowTimedOut
from kagzi.store.postgres.children import cascade_ends, lock_parents
from kagzi.store.postgres.ends import end_runs, ended, keys_of
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.unserved import set_runs_aside
from kagzi.store.postgres.workers import forget_step_timeouts, recovered_of
from kagzi.store.protocol.changes import Changed
from kagzi.store.protocol.duties import Offer, SetAside

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_FIND_DEAD_LEASES = STATEMENTS["find_dead_leases"]
_LAST_EVENTS = STATEMENTS["last_events"]
_RECOVER_RUNS = STATEMENTS["recover_runs"]
_TIME_OUT_STEPS = STATEMENTS["time_out_steps"]
_FIND_OVERDUE_RUNS = STATEMENTS["find_overdue_runs"]
_PROLONG_CANCELS = STATEMENTS["prolong_cancels"]
_FIND_OVERDUE_CANCELS = STATEMENTS["find_overdue_cancels"]
_PRUNE_RUNS = STATEMENTS["prune_runs"]
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class Duties(Noun):
    """See `store.protocol.duties.Duties`."""

    @asks
    async def recover_runs(
        self, connection: Connection, limit: int, max_crashes: int, backoff: Callable[[int], Span]
    ) -> Changed:
        now = self.now()
        async with connection.transaction():
            dead = await connection.fetch(_FIND_DEAD_LEASES, now, limit)
            # A run whose parent somebody holds is left for the next time: it may have to be told.
            free = await lock_parents(connection, keys_of(dead)) if dead else []
            dead = [row for row, held in zip(dead, free, strict=True) if held]
            if not dead:
                return Changed()
            namespaces = [row["namespace"] for row in dead]
            run_ids = [row["run_id"] for row in dead]
            events = await connection.fetch(_LAST_EVENTS, namespaces, run_ids)
            instant: Instant = dead[0]["now"]
            crashes: list[int] = []
            sequences: list[int] = []
            available: list[Instant] = []
            errors: list[bytes | None] = []
            for row, event in zip(dead, events, strict=True):
                sequence = event["completed_seq"] or 0
                stuck = row["crashed_seq"] is not None and sequence <= row["crashed_seq"]
                count = row["crashes"] + 1 if stuck else 1
                poison = count >= max_crashes
                crashes.append(count)
                sequences.append(sequence)
                available.append(instant if poison else instant + backoff(count))
                errors.append(_poison(count) if poison else None)
            rows = await connection.fetch(
                _RECOVER_RUNS, instant, namespaces, run_ids, crashes, sequences, available, errors
            )
            recovered = [recovered_of(row) for row in rows]
            await forget_step_timeouts(connection, [run for run in recovered if run.status is RunStatus.PENDING])
            poisoned = [(run.namespace, run.run_id) for run in recovered if run.status.finished]
            return Changed(recovered, await ended(connection, poisoned, poisoned))

    @asks
    async def time_out_steps(self, connection: Connection, limit: int, grace: Span) -> Changed:
        error = Failure.of(StepTimeout, "the step ran longer than its timeout and its worker did not stop it")
        async with connection.transaction():
            rows = await connection.fetch(_TIME_OUT_STEPS, self.now(), grace, limit, error.encode())
            recovered = [recovered_of(row) for row in rows]
            await forget_step_timeouts(connection, recovered)
            return Changed(recovered)

    @asks
    async def time_out_runs(self, connection: Connection, limit: int) -> Changed:
        error = Failure.of(WorkflowTimedOut, "the run passed its deadline").encode()
        return await _end_overdue(connection, _FIND_OVERDUE_RUNS, limit, RunStatus.TIMED_OUT, error, self.now())

    @asks
    async def end_cancelled_runs(self, connection: Connection, limit: int) -> Changed:
        error = cancelled_unclean()
        await connection.execute(_PROLONG_CANCELS, self.now(), limit)
        return await _end_overdue(connection, _FIND_OVERDUE_CANCELS, limit, RunStatus.CANCELLED, error, self.now())

    @asks
    async def cascade_ends(self, connection: Connection, limit: int) -> list[CancelRun | TerminateRun]:
        return await cascade_ends(connection, limit)

    @asks
    async def set_runs_aside(
        self, connection: Connection, offered: Sequence[Offer], stale: Span, limit: int
    ) -> SetAside:
        if "workflow_runs_aside" in self.indexes.missing:
            return SetAside()
        return await set_runs_aside(connection, offered, limit, stale, self.now())

    @asks
    async def prune_runs(self, connection: Connection, limit: int, after: Cursor | None) -> tuple[int, Cursor | None]:
        # The primary key is (namespace, run_id), so the cursor names both; an id has a fixed length.
        run_id, namespace = (_FIRST_ID, "") if after is None else (after.key[:36], after.key[36:])
        rows = await connection.fetch(_PRUNE_RUNS, self.now(), namespace, run_id, limit)
        row = rows[0]
        at_the_end = row["looked"] < limit
        return row["deleted"], None if at_the_end else Cursor(f"{row['run_id']}{row['namespace']}")


async def _end_overdue(
    connection: Connection, find: str, limit: int, status: RunStatus, error: bytes, now: Instant | None
) -> Changed:
    """Ends the live runs that a statement finds and locks."""
    async with connection.transaction():
        late = await connection.fetch(find, now, limit)
        if not late:
            return Changed()
        runs = keys_of(late)
        # A run whose parent somebody holds is left for the next time.
        free = [run for run, held in zip(runs, await lock_parents(connection, runs), strict=True) if held]
        return await end_runs(connection, free, status, error, late[0]["now"]) if free else Changed()


def _poison(crashes: int) -> bytes:
    return Failure.of(
        WorkflowFailed,
        f"the worker driving this run died {crashes} times in a row without recording anything new",
    ).encode()

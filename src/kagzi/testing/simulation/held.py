"""Rows of runs that somebody outside has locked, in a few worlds: a person with a database console, a long transaction.

What needs such a row is answered with `Locked` and changes nothing, its lease is not renewed, and nobody takes it over
when that has ended, as PostgreSQL has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kagzi.api.operations import RepeatRun, StartRun, Write
from kagzi.api.workers import Heartbeat
from kagzi.core.instant import NEVER, SECOND
from kagzi.core.run import RunStatus
from kagzi.errors import Locked
from kagzi.store.protocol.changes import Applied
from kagzi.store.protocol.workers import HeartbeatResult
from kagzi.testing.simulation.faults import Fault

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World

Apply = Callable[[Sequence[Write]], Awaitable[Applied]]
_LEASES = "SELECT run_id, token, poll, lease_expires_at FROM workflow_runs WHERE status = 'RUNNING'"
_PUT_BACK = "UPDATE workflow_runs SET poll = ?, lease_expires_at = ? WHERE run_id = ?"


def has_held_rows(seed: int) -> bool:
    """A world of eighteen: the others are as they were."""
    return seed % 18 == 12


class HeldRows:
    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._over = False
        self._runs: set[str] = set()

    def begin(self) -> None:
        self._world.host.call_later(self._random.uniform(0.5, 3.0), self._lock)

    def heal(self) -> None:
        self._over = True
        self._runs.clear()

    async def apply(self, apply: Apply, writes: Sequence[Write]) -> Applied:
        """Applies what is free."""
        if not self._runs:
            return await apply(writes)
        locked = [_row(write) in self._runs for write in writes]
        free = [write for write, waits in zip(writes, locked, strict=True) if not waits]
        for write, waits in zip(writes, locked, strict=True):
            if waits:
                self._world.happened(Fault.HELD_WRITE, type(write).__name__, _row(write))
        applied = await apply(free) if free else Applied([], [])
        answers = iter(applied.answers)
        return Applied([Locked("held by the world") if waits else next(answers) for waits in locked], applied.woken)

    async def heartbeats(
        self, send: Callable[[Sequence[Heartbeat]], Awaitable[list[HeartbeatResult]]], beats: Sequence[Heartbeat]
    ) -> list[HeartbeatResult]:
        """Renews what is free."""
        if not self._runs:
            return await send(beats)
        connection = self._world.connection
        before = [row for row in connection.execute(_LEASES).fetchall() if row[0] in self._runs]
        beaten = await send(beats)
        tokens = {run_id: token for run_id, token, _, _ in before}
        self._put_back(before)
        return [
            replace(each, answer=replace(each.answer, unrenewed=self._unrenewed(beat, tokens)))
            for beat, each in zip(beats, beaten, strict=True)
        ]

    async def recover(self, recover: Callable[[], Awaitable[Any]]) -> Any:
        """Takes over what is free."""
        if not self._runs:
            return await recover()
        connection = self._world.connection
        before = [row for row in connection.execute(_LEASES).fetchall() if row[0] in self._runs]
        for run_id, _, poll, _ in before:
            connection.execute(_PUT_BACK, (poll, NEVER, run_id))
        recovered = await recover()
        self._put_back(before)
        return recovered

    def _put_back(self, before: list[tuple[str, Any, Any, Any]]) -> None:
        """Makes leases what they were, as if nothing had touched them."""
        connection = self._world.connection
        now = {row[0]: row for row in connection.execute(_LEASES).fetchall()}
        for run_id, token, poll, until in before:
            if (row := now.get(run_id)) is not None and row[1] == token and row[2:] != (poll, until):
                connection.execute(_PUT_BACK, (poll, until, run_id))
                connection.execute("DELETE FROM temp.touched WHERE run_id = ?", (run_id,))

    def _unrenewed(self, beat: Heartbeat, tokens: dict[str, Any]) -> tuple[str, ...]:
        found = tuple(run_id for run_id, token in beat.held if tokens.get(run_id) == token)
        for run_id in found:
            self._world.happened(Fault.HELD_LEASE, run_id)
        return found

    def _lock(self) -> None:
        if self._over:
            return
        self._world.host.call_later(self._random.uniform(0.5, 4.0), self._lock)
        live = sorted(run.run_id for run in self._world.checker.runs.values() if run.status is RunStatus.RUNNING)
        if not live:
            return
        run_id = self._random.choice(live)
        seconds = self._world.settings.lease / SECOND * self._random.uniform(0.05, 2.5)
        self._world.happened(Fault.HELD_ROW, f"{run_id} for {seconds:.3f} s")
        self._runs.add(run_id)
        self._world.host.call_later(seconds, self._runs.discard, run_id)


def _row(write: Write) -> str | None:
    """Returns the run whose row a write needs; that of a start is not there yet."""
    if isinstance(write, StartRun):
        return None
    return write.of_run_id if isinstance(write, RepeatRun) else write.run_id

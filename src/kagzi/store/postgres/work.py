"""Work: batches of writes, each kind together; claims, and leases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kagzi.api.operations import Chunk, SendSignal, StartRun, WakeAnswer, Write
from kagzi.api.workers import LeaseState, Poll, Polled
from kagzi.core.instant import Instant, Span
from kagzi.errors import InvalidRequest
from kagzi.store.postgres.cancels import Request, apply_requests, lock_runs, wake_run
from kagzi.store.postgres.chunks import apply_chunks
from kagzi.store.postgres.claims import claim_runs
from kagzi.store.postgres.leases import read_lease
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.online import IndexBuilds, not_built
from kagzi.store.postgres.pool import Line, Pool
from kagzi.store.postgres.run_rows import is_id
from kagzi.store.postgres.signals import apply_signals
from kagzi.store.postgres.starts import apply_starts
from kagzi.store.protocol.changes import Applied

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

T = TypeVar("T", StartRun, Chunk, SendSignal, Request)
Apply = Callable[["Connection", Sequence[T], Instant | None], Awaitable[Applied]]

_DEBOUNCED = "workflow_runs_debounced"


class Work(Noun):
    """See `store.protocol.work.Work`. Lane 0 is for starts, the others for everything else, sharded by run id."""

    def __init__(
        self, pool: Pool, now: Callable[[], Instant | None], indexes: IndexBuilds, lanes: Sequence[Line]
    ) -> None:
        super().__init__(pool, now, indexes)
        self.lanes = len(lanes)
        self._lanes = lanes
        self._limited: set[str] = set()  # namespaces; see `claim_runs`

    def lane_of(self, write: Write) -> int:
        if type(write) is StartRun:
            return 0
        # The last character of a run id is random; its code is as good a hash as any.
        return 1 + ord(write.run_id[-1]) % (self.lanes - 1)

    async def apply(self, writes: Sequence[Write]) -> Applied:
        if not writes:
            return Applied([], [])
        chunks = [write for write in writes if type(write) is Chunk]
        if len(chunks) == len(writes):
            return await self._apply(self.lane_of(chunks[0]), apply_chunks, chunks)
        starts = [write for write in writes if type(write) is StartRun]
        if len(starts) == len(writes):
            return await self._apply_starts(starts)
        sent = [write for write in writes if type(write) is SendSignal]
        requests = [write for write in writes if not isinstance(write, StartRun | Chunk | SendSignal)]
        nothing = Applied([], [])
        started = await self._apply_starts(starts) if starts else nothing
        done = await self._apply(self.lane_of(chunks[0]), apply_chunks, chunks) if chunks else nothing
        told = await self._apply(self.lane_of(sent[0]), apply_signals, sent) if sent else nothing
        asked = await self._apply(self.lane_of(requests[0]), apply_requests, requests) if requests else nothing
        answers = {StartRun: iter(started.answers), Chunk: iter(done.answers), SendSignal: iter(told.answers)}
        others = iter(asked.answers)
        return Applied([next(answers.get(type(write), others)) for write in writes], done.woken + asked.woken)

    async def _apply_starts(self, starts: list[StartRun]) -> Applied:
        """Applies starts. Debounced ones are refused while the index is missing that keeps a key to one run: each would
        make one."""
        if _DEBOUNCED not in self.indexes.missing or all(start.debounce is None for start in starts):
            return await self._apply(0, apply_starts, starts)
        others = [start for start in starts if start.debounce is None]
        answers = iter((await self._apply(0, apply_starts, others)).answers if others else ())
        return Applied([next(answers) if start.debounce is None else not_built(_DEBOUNCED) for start in starts], [])

    async def _apply(self, lane: int, apply: Apply[T], writes: Sequence[T]) -> Applied:
        now = self.now()
        try:
            return await self._lanes[lane].do(lambda connection: apply(connection, writes, now))
        except InvalidRequest as error:
            # Somewhere in the batch is a value that cannot be stored. It must not fail the others.
            if len(writes) == 1:
                return Applied([error], [])
        middle = len(writes) // 2
        applied = await self._apply(lane, apply, writes[:middle])
        # Nothing of a run is applied after a refused operation: its chunks stay in order.
        refused = {
            (write.namespace, write.run_id): answer
            for write, answer in zip(writes[:middle], applied.answers, strict=True)
            if isinstance(answer, InvalidRequest)
        }
        rest = [write for write in writes[middle:] if (write.namespace, write.run_id) not in refused]
        later = await self._apply(lane, apply, rest) if rest else Applied([], [])
        answers = iter(later.answers)
        applied.answers.extend(
            refused.get((write.namespace, write.run_id)) or next(answers) for write in writes[middle:]
        )
        applied.woken.extend(later.woken)
        return applied

    @asks
    async def claim(self, connection: Connection, poll: Poll, lease: Span) -> Polled:
        return await claim_runs(connection, poll, lease, self.now(), self._limited)

    async def wake(self, namespace: str, run_id: str) -> WakeAnswer | None:
        if not is_id(run_id):
            return None
        now = self.now()

        async def locked(connection: Connection) -> WakeAnswer | None:
            async with connection.transaction():
                await lock_runs(connection, [(namespace, run_id)])
                return await wake_run(connection, namespace, run_id, now)

        return await self.pool.run(locked)

    async def read_lease(self, namespace: str, run_id: str, token: str, confirm: bool) -> LeaseState | None:
        if not (is_id(run_id) and is_id(token)):
            return None
        now = self.now()
        return await self.pool.run(lambda connection: read_lease(connection, namespace, run_id, token, confirm, now))

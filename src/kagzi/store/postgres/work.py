"""Work: batches of writes, each kind together; claims, and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kagzi.api.operations import Chunk, SendSignal, StartRun, WakeAnswer, Write
from kagzi.api.workers import LeaseState, Poll, Polled
from kagzi.core.instant import Instant, Span
from kagzi.errors import InvalidRequest, Locked
from kagzi.store.postgres.cancels import Request, apply_requests, lock_runs, wake_run
from kagzi.store.postgres.chunks import apply_chunks
from kagzi.store.postgres.claims import claim_runs
from kagzi.store.postgres.leases import read_lease
from kagzi.store.postgres.locks import apply_apart, patiently, sift
from kagzi.store.postgres.nouns import Noun
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
Run = Callable[[Apply[Any], Sequence[Any]], Awaitable[Applied]]

_DEBOUNCED = "workflow_runs_debounced"
_LIMITS_LOCKED = 1.0  # seconds for which nobody else tries


class Work(Noun):
    """See `store.protocol.work.Work`. Lane 0 is for starts, the others for everything else, sharded by run id."""

    def __init__(
        self,
        pool: Pool,
        now: Callable[[], Instant | None],
        indexes: IndexBuilds,
        lanes: Sequence[Line],
        patient: int,
    ) -> None:
        super().__init__(pool, now, indexes)
        self.lanes = len(lanes)
        self._lanes = lanes
        self._patient = asyncio.Semaphore(patient)  # so that reads and claims find a connection beside those that wait
        self._locked_limits: dict[str, float] = {}  # by namespace, until when they are not waited for
        self._limited: set[str] = set()  # namespaces; see `claim_runs`

    def lane_of(self, write: Write) -> int:
        if type(write) is StartRun:
            return 0
        # The last character of a run id is random; its code is as good a hash as any.
        return 1 + ord(write.run_id[-1]) % (self.lanes - 1)

    def apply(self, writes: Sequence[Write]) -> Coroutine[Any, Any, Applied]:
        return self._apply_kinds(writes, self._apply)

    async def apply_patiently(self, writes: Sequence[Write]) -> Applied:
        async with self._patient:
            return await self._apply_kinds(writes, self._apply_patiently)

    async def _apply_kinds(self, writes: Sequence[Write], run: Run) -> Applied:
        """Applies writes, those of each kind together."""
        if not writes:
            return Applied([], [])
        chunks = [write for write in writes if type(write) is Chunk]
        if len(chunks) == len(writes):
            return await run(apply_chunks, chunks)
        starts = [write for write in writes if type(write) is StartRun]
        if len(starts) == len(writes):
            return await self._apply_starts(starts, run)
        sent = [write for write in writes if type(write) is SendSignal]
        requests = [write for write in writes if not isinstance(write, StartRun | Chunk | SendSignal)]
        nothing = Applied([], [])
        started = await self._apply_starts(starts, run) if starts else nothing
        done = await run(apply_chunks, chunks) if chunks else nothing
        told = await run(apply_signals, sent) if sent else nothing
        asked = await run(apply_requests, requests) if requests else nothing
        answers = {StartRun: iter(started.answers), Chunk: iter(done.answers), SendSignal: iter(told.answers)}
        others = iter(asked.answers)
        return Applied([next(answers.get(type(write), others)) for write in writes], done.woken + asked.woken)

    async def _apply_starts(self, starts: list[StartRun], run: Run) -> Applied:
        """Applies starts. Debounced ones are refused while the index is missing that keeps a key to one run: each would
        make one."""
        if _DEBOUNCED not in self.indexes.missing or all(start.debounce is None for start in starts):
            return await run(apply_starts, starts)
        others = [start for start in starts if start.debounce is None]
        answers = iter((await run(apply_starts, others)).answers if others else ())
        return Applied([next(answers) if start.debounce is None else not_built(_DEBOUNCED) for start in starts], [])

    async def _apply(self, apply: Apply[Any], writes: Sequence[Any]) -> Applied:
        line, now = self._lanes[self.lane_of(writes[0])], self.now()
        try:
            return await line.do(lambda connection: apply(connection, writes, now))
        except (InvalidRequest, Locked) as error:
            reason = error
        return await self._apply_the_others(line, apply, writes, now, reason)

    async def _apply_the_others(
        self, line: Line, apply: Apply[Any], writes: Sequence[Any], now: Instant | None, reason: InvalidRequest | Locked
    ) -> Applied:
        """Applies those of a batch that can be: somewhere in it is a value that cannot be stored, or a locked row."""
        if isinstance(reason, Locked):
            return await line.do(
                lambda connection: sift(connection, lambda some: apply(connection, some, now), writes, reason)
            )

        async def together(some: Sequence[Any]) -> Applied:
            return await line.do(lambda connection: apply(connection, some, now))

        return await apply_apart(together, writes, reason)

    async def _apply_patiently(self, apply: Apply[Any], writes: Sequence[Any]) -> Applied:
        now = self.now()

        async def together(some: Sequence[Any]) -> Applied:
            return await patiently(self.pool, lambda connection: apply(connection, some, now))

        try:
            return await together(writes)
        except InvalidRequest as error:
            return await apply_apart(together, writes, error)
        except Locked as error:
            return Applied([error] * len(writes), [])

    async def claim(self, poll: Poll, lease: Span) -> Polled:
        """While the limits of a namespace are locked, one of its polls at a time waits for them, and the others are
        refused: they would take all connections of the pool."""
        namespace, time = poll.namespace, asyncio.get_running_loop().time
        if namespace in self._locked_limits:
            if time() < self._locked_limits[namespace]:
                raise Locked(f"the limits of namespace {namespace} are locked by another transaction")
            self._locked_limits[namespace] = time() + 2 * _LIMITS_LOCKED
        now = self.now()
        try:
            polled = await self.pool.run(lambda connection: claim_runs(connection, poll, lease, now, self._limited))
        except Locked:
            self._locked_limits[namespace] = time() + _LIMITS_LOCKED
            raise
        self._locked_limits.pop(namespace, None)
        return polled

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

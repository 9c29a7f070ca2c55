"""Steps with a transaction of their own: what the body writes and its recorded result are committed together.

The body is run by `in_transaction`, as a body like any other. When it has returned, its transaction stays open, and
its result goes the way of every result: the event is numbered, the workflow goes on, `CompleteStep` is submitted. Only
the chunk that holds it takes another way: not through the batcher, but on the body's connection, which is then
committed. So such a step costs one commit, as every step does, and the end of the run, if it follows, is in the same.

The workflow is ahead of that commit by then, as it is of every commit. If it fails, the execution is dropped: the
failed attempt is recorded in place of the result, and the run handed back, whose next execution replays what is true.

Where nobody else can write while the transaction is open (SQLite), the run's other chunks wait for its end: one that
was sent would wait for the transaction, whose end would wait for the chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.operations import Chunk, ChunkAnswer, CompleteStep, FailStep, Operation, SetValue
from kagzi.api.transactions import BeginTransaction, StepTransaction
from kagzi.api.transactions import Transactions as Home
from kagzi.core.exceptions import failure_of
from kagzi.core.instant import SECOND
from kagzi.core.retry import next_attempt
from kagzi.errors import InvalidRequest, StepTimeout, Unavailable
from kagzi.sdk.replay.loop import place_of_call
from kagzi.sdk.replay.waits import StepCall
from kagzi.sdk.worker import forks
from kagzi.sdk.worker.bodies import StepInfo, current_step
from kagzi.sdk.worker.threads import Threads

if TYPE_CHECKING:
    from kagzi.sdk.worker.attempt import Attempt

logger = logging.getLogger("kagzi.worker")

# Less than the worker waits for a cancelled body: a `def` body that does not stop loses its statement first.
_GRACE_SECONDS: Final = 2.0
_MOST_THREADS: Final = 64  # for `def` bodies; those of other steps may all be taken while a transaction is open

_current: ContextVar[Any] = ContextVar("kagzi_connection")
_threads: Threads | None = None
_Key = tuple[str, int]  # a step and its attempt


def connection() -> Any:
    """In a step with `transaction=True`: the connection on which its writes commit together with its result.

    On PostgreSQL one of asyncpg, in a `def` step one of psycopg; on SQLite one of sqlite3, to the app's own file. If
    the app was given an engine of SQLAlchemy, a session of it. Kagzi commits, when the step has returned.
    """
    found = _current.get(None)
    if found is None:
        raise InvalidRequest(
            "kagzi.connection() is for steps with @app.step(transaction=True) that a workflow has called "
            f"(at {place_of_call()})"
        )
    return found


def in_transaction(fn: Callable[..., Any], name: str, engine: Callable[[], Any]) -> Callable[..., Any]:
    """Makes the body of a step that has a transaction. `engine` gives that of SQLAlchemy, if the app has one."""
    blocking = not inspect.iscoroutinefunction(fn)

    @functools.wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        info = current_step.get()
        attempt = info.held_by() if info.held_by is not None else None
        if attempt is None:
            raise InvalidRequest(f"the step {name} has a transaction and was called outside of a worker")
        wanted = BeginTransaction(
            step=info.step_id,
            mark=f"{attempt.token}/{info.step_id}/{info.attempt}",
            blocking=blocking,
            engine=engine(),
        )
        return await attempt.transactions().run(info, wanted, functools.partial(fn, *args, **kwargs))

    return run


class _Open(Struct, eq=False):
    """The state of a transaction, from before it begins until it has ended."""

    key: _Key
    transaction: StepTransaction = None  # type: ignore[assignment]  # until it has begun
    holds: bool = False  # nobody else can write
    call: StepCall | None = None  # once the body has returned, and its result is to be recorded
    under_way: bool = False  # it is being committed


class Transactions:
    """The transactions of one attempt."""

    def __init__(self, attempt: Attempt, home: Home | None) -> None:
        self._attempt = attempt
        self._home = home
        self._redact = None if attempt.execution is None else attempt.execution.redact
        self._held: dict[_Key, _Open] = {}  # their bodies have returned
        self._holding = 0
        self._quiet: asyncio.Future[None] | None = None  # done when a chunk is answered
        self._tasks: set[asyncio.Task[Any]] = set()

    # The body.

    async def run(self, info: StepInfo, wanted: BeginTransaction, body: Callable[[], Any]) -> Any:
        home = self._home
        if home is None:
            raise InvalidRequest(
                f"the step {info.step_id} has a transaction, which needs the database itself, and this worker uses a "
                "server: run it with the URL of the database"
            )
        opened = _Open((info.step_id, info.attempt))
        try:
            opened.transaction = await home.begin(wanted, functools.partial(self._make_ready, home, opened))
        except BaseException:
            self._let_others_write(opened)
            raise
        try:
            _current.set(opened.transaction.connection)
            async with _no_longer_than(home, info):
                value = await (self._in_thread(info, body, opened) if wanted.blocking else body())
            await opened.transaction.prepare()
        except BaseException:
            await asyncio.shield(self._roll_back(opened))
            raise
        task, opened.call = asyncio.current_task(), self._attempt.call_of(info)
        if opened.call is None or task is None:  # nobody waits for it any more
            await asyncio.shield(self._roll_back(opened))
            return value
        self._held[opened.key] = opened
        # After its end has been told (see `Bodies._run`): by then its result is submitted, or dropped.
        task.add_done_callback(lambda _: self._drop_unless_submitted(opened))
        return value

    async def _make_ready(self, home: Home, opened: _Open) -> None:
        """Prepares for a transaction that is about to begin: if nobody can write beside it, commits under way are
        waited for first."""
        if not home.exclusive:
            return
        opened.holds = True
        self._holding += 1
        while self._attempt.unanswered:
            self._quiet = self._quiet or self._attempt.loop.create_future()
            await asyncio.shield(self._quiet)

    async def _in_thread(self, info: StepInfo, body: Callable[[], Any], opened: _Open) -> Any:
        cancelled = threading.Event()
        context = copy_context()
        context.run(current_step.set, replace(info, cancelled=cancelled))

        around = self._attempt.around_def

        def run() -> Any:
            try:
                with around():
                    result = context.run(body)
            except BaseException as problem:
                if forks.in_child:
                    forks.leave(problem)
                raise
            if forks.in_child:
                forks.leave(None)
            if inspect.isawaitable(result):
                raise TypeError(
                    f"step {info.step_id} is a plain function that returned an awaitable; make it `async def`"
                )
            return result

        thread = asyncio.wrap_future(_pool().submit(run))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            cancelled.set()
            thread.add_done_callback(_retrieve)
            # A body may be cancelled more than once, and its thread must have left the connection before that is used
            # for something else.
            stopping = self._attempt.loop.create_task(_stop(thread, opened))
            while not stopping.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(stopping)
            raise

    def _roll_back(self, opened: _Open) -> asyncio.Task[None]:
        task = self._attempt.loop.create_task(_roll_back(opened.transaction))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._rolled_back, opened))
        return task

    def _rolled_back(self, opened: _Open, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._let_others_write(opened)

    def _drop_unless_submitted(self, opened: _Open) -> None:
        if opened.key in self._held and not opened.under_way and not self._attempt.is_submitted(*opened.key):
            self._drop(opened)

    def _drop(self, opened: _Open) -> None:
        del self._held[opened.key]
        self._roll_back(opened)

    def abandon(self) -> None:
        """Gives up all transactions that are still to be committed."""
        for opened in [each for each in self._held.values() if not each.under_way]:
            self._drop(opened)

    # The chunks of the run.

    def acknowledged(self) -> None:
        """Notes that a chunk was answered."""
        quiet, self._quiet = self._quiet, None
        if quiet is not None and not quiet.done():
            quiet.set_result(None)

    def next_chunk(self, outbox: Sequence[Operation]) -> tuple[int, _Open | None] | None:
        """Returns how many of these are sent next, and the transaction in which they are, one at most; None if all have
        to wait."""
        found: _Open | None = None
        for place, operation in enumerate(outbox):
            held = self._held.get((operation.step_id, operation.attempt)) if type(operation) is CompleteStep else None
            if held is not None:
                if found is not None:
                    return place, found
                found = held
        return None if found is None and self._holding else (len(outbox), found)

    def commit(self, opened: _Open, chunk: Chunk, operations: Sequence[Operation]) -> None:
        """`operations` are those of the chunk, before errors were encoded for the engine."""
        opened.under_way = True
        task = self._attempt.loop.create_task(opened.transaction.commit(chunk))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._committed, opened, operations))

    def _committed(self, opened: _Open, operations: Sequence[Operation], task: asyncio.Task[ChunkAnswer]) -> None:
        self._tasks.discard(task)
        del self._held[opened.key]
        self._let_others_write(opened)
        if task.cancelled():
            problem: BaseException | None = Unavailable("the worker was stopped while a step was being committed")
        else:
            problem = task.exception()
        if problem is None:
            self._attempt.committed(task.result())
        elif isinstance(problem, Exception):
            self._attempt.not_committed(self._instead(opened, operations, problem))

    def _instead(self, opened: _Open, operations: Sequence[Operation], problem: Exception) -> list[Operation]:
        """Returns what is recorded in place of a chunk that was not committed."""
        kept: list[Operation] = []
        for operation in operations:
            if type(operation) is CompleteStep and (operation.step_id, operation.attempt) == opened.key:
                kept += self._failed(operation, opened.call, problem)
                break
            if type(operation) is not SetValue:  # what was said is said again
                kept.append(operation)
        return kept

    def _failed(self, completed: CompleteStep, call: StepCall | None, problem: Exception) -> list[Operation]:
        attempt = self._attempt
        failure = failure_of(problem, redact=self._redact)
        about = attempt.about() | {"step_id": completed.step_id, "attempt": completed.attempt}
        words = "step %s of run %s could not be committed in attempt %d: %.1000s"
        logger.warning(words, completed.step_id, attempt.run_id, completed.attempt, failure, extra=about)
        if isinstance(problem, Unavailable) or call is None:
            return []  # it may have been committed all the same: the next execution sees
        delay = next_attempt(call.policy, problem, completed.attempt, attempt.jitter())
        finished_at = completed.finished_at or attempt.now()
        failed = FailStep(
            step_id=completed.step_id,
            attempt=completed.attempt,
            completed_seq=completed.completed_seq if delay is None else None,
            started_at=completed.started_at,
            finished_at=finished_at,
            retry_at=None if delay is None else finished_at + delay,
            input=completed.input,
            input_hash=completed.input_hash,
            error=failure.encode(),
        )
        return [failed]

    def _let_others_write(self, opened: _Open) -> None:
        if opened.holds:
            opened.holds = False
            self._holding -= 1
            self._attempt.loop.call_soon(self._attempt.flush_held_back)


class _no_longer_than:
    """Cancels a body whose transaction is open for too long, and says why."""

    def __init__(self, home: Home, info: StepInfo) -> None:
        self._longest = home.longest
        self._step = info.step_id
        self._timeout = asyncio.timeout(None if self._longest is None else self._longest / SECOND)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *problem: Any) -> None:
        try:
            await self._timeout.__aexit__(*problem)
        except TimeoutError as error:
            if not self._timeout.expired() or self._longest is None:
                raise
            raise StepTimeout(
                f"the transaction of step {self._step} was open for longer than {self._longest / SECOND:g} s, in which "
                "nobody else can write to the SQLite file: do what takes time before it, in another step"
            ) from error


async def _stop(thread: asyncio.Future[Any], opened: _Open) -> None:
    """Stops a body that ignores its cancellation: nothing ends a thread from outside, but its statement can be ended,
    and on SQLite its transaction."""
    await asyncio.wait((thread,), timeout=_GRACE_SECONDS)
    if not thread.done():
        await opened.transaction.interrupt()
        if not opened.holds:  # else it is over, and the thread finds its connection closed
            await asyncio.wait((thread,))


def _retrieve(thread: asyncio.Future[Any]) -> None:
    """Takes the error of a task that nobody awaits, so that asyncio does not log it."""
    if not thread.cancelled():
        thread.exception()


async def _roll_back(transaction: StepTransaction) -> None:
    try:
        await transaction.roll_back()
    except Exception:
        # Its connection ends with it, and what was written on it.
        logger.warning("the transaction of a step could not be rolled back", exc_info=True)


def _pool() -> Threads:
    global _threads
    if _threads is None:
        _threads = Threads(_MOST_THREADS)
    return _threads

"""Transactions of steps: what a body writes and what is recorded of it become durable together, or not at all.

They are no part of the `Engine` contract, because no server can offer them: a transaction needs access to the database
itself. A worker gets `Transactions` beside its engine if that one is in its own process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import Struct

from kagzi.api.operations import Chunk, ChunkAnswer
from kagzi.core.instant import Span
from kagzi.errors import InvalidRequest


class BeginTransaction(Struct, frozen=True, kw_only=True):
    """Asks for the transaction of a step."""

    step: str  # for messages
    mark: str  # of the attempt: its transaction carries it, so that one which the body ended itself is noticed
    blocking: bool  # the body is a `def` function, on a thread
    engine: Any = None  # of SQLAlchemy, if the app was given one


class StepTransaction(Protocol):
    """One attempt's transaction. It ends with `commit` or `roll_back`; to roll back what has ended does nothing."""

    connection: Any  # what the body writes on

    async def prepare(self) -> None:
        """Checks, once the body has returned, that its writes can be committed. An error raised here is the body's
        failure."""
        ...

    async def commit(self, chunk: Chunk) -> ChunkAnswer:
        """Apply a chunk under its lease and commit; if the lease was lost, roll back. Unavailable: nobody knows what
        became of it. Whatever else is raised: it was rolled back, and why."""
        ...

    async def interrupt(self) -> None:
        """Ends the statement that the body is in, because it was told to stop and does not. On SQLite ends the
        transaction, too."""
        ...

    async def roll_back(self) -> None: ...


class Transactions(Protocol):
    @property
    def exclusive(self) -> bool:
        """Whether an open transaction keeps everybody else, the engine included, from writing to the database."""
        ...

    @property
    def longest(self) -> Span | None:
        """The length of time that a transaction may be open; None: as long as its step may take."""
        ...

    async def begin(self, wanted: BeginTransaction, ready: Callable[[], Awaitable[None]]) -> StepTransaction:
        """Begin a transaction. `ready` is awaited when it is this one's turn, just before it begins."""
        ...


def check_engine(engine: Any) -> Any:
    """An engine of SQLAlchemy, as an app is given it; InvalidRequest if it is something else."""
    packages = {kind.__module__.partition(".")[0] for kind in type(engine).__mro__}
    if "sqlalchemy" not in packages or not hasattr(engine, "dialect") or not hasattr(engine, "connect"):
        raise InvalidRequest(
            "engine must be one of SQLAlchemy 2, as made by create_engine() or create_async_engine(), not "
            f"{type(engine).__module__}.{type(engine).__qualname__}"
        )
    return engine


def is_async_engine(engine: Any) -> bool:
    return hasattr(engine, "sync_engine")


def check_body(engine: Any, *, blocking: bool, step: str) -> None:
    """InvalidRequest if a body of this kind cannot use sessions of this engine."""
    if is_async_engine(engine) and blocking:
        raise InvalidRequest(
            f"the step {step} is a `def` function, and engine= of the app an async one: make the step `async def`, or "
            "give the app an engine made by create_engine()"
        )
    if not is_async_engine(engine) and not blocking:
        raise InvalidRequest(
            f"the step {step} is an `async def` function, and engine= of the app a blocking one: make the step `def`, "
            "or give the app an engine made by create_async_engine()"
        )

"""What the nouns of this store have in common: connections, a clock, and the indexes that are built beside the work.

A method is written as what happens on its connection. `asks` gives it one: whoever calls it passes everything but the
connection, and awaits the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from kagzi.core.instant import Instant
from kagzi.store.postgres.online import IndexBuilds
from kagzi.store.postgres.pool import Pool

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

P = ParamSpec("P")
R = TypeVar("R")
N = TypeVar("N", bound="Noun")


class Noun:
    """One noun of `store.protocol`. `now` returns None unless a clock was passed in: then the database's decides."""

    def __init__(self, pool: Pool, now: Callable[[], Instant | None], indexes: IndexBuilds) -> None:
        self.pool = pool
        self.now = now
        self.indexes = indexes


def asks(
    method: Callable[Concatenate[N, Connection, P], Awaitable[R]],
) -> Callable[Concatenate[N, P], Coroutine[Any, Any, R]]:
    """Runs a method on a connection of the pool, to its end even if the caller goes away, and again if the connection
    breaks (see `pool`)."""

    @wraps(method)
    def call(noun: N, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return noun.pool.run(lambda connection: method(noun, connection, *args, **kwargs))

    return call

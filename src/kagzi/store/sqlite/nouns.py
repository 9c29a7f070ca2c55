"""What the nouns of this store have in common: a database, a clock, and one transaction for each method.

A method is written as what happens within its transaction. `reads` and `writes` give it one: whoever calls it passes
everything but the connection, and awaits the answer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from kagzi.core.instant import Instant
from kagzi.store.sqlite.connection import Database

P = ParamSpec("P")
R = TypeVar("R")
N = TypeVar("N", bound="Noun")


class Noun:
    """One noun of `store.protocol`. `now` is read within transactions: instants rise in the order of commits."""

    def __init__(self, database: Database, now: Callable[[], Instant]) -> None:
        self.database = database
        self.now = now


def reads(
    method: Callable[Concatenate[N, sqlite3.Connection, P], R],
) -> Callable[Concatenate[N, P], Coroutine[Any, Any, R]]:
    """Runs a method on a connection that reads."""

    @wraps(method)
    def call(noun: N, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return noun.database.read(lambda connection: method(noun, connection, *args, **kwargs))

    return call


def writes(
    method: Callable[Concatenate[N, sqlite3.Connection, P], R],
) -> Callable[Concatenate[N, P], Coroutine[Any, Any, R]]:
    """Runs a method in a transaction of the one writer."""

    @wraps(method)
    def call(noun: N, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return noun.database.write(lambda connection: method(noun, connection, *args, **kwargs))

    return call

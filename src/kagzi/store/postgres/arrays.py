"""Makes asyncpg encode arrays faster, by telling it what it need not ask.

Of every element it asks whether that is a container itself, by abstract base classes: fifty calls of Python functions
for a run of one step, a tenth of the time that its process takes for it. Of the elements that our statements have the
answer is known without them. Here the questions begin with the classes of those; whatever is of another class, a set or
an array of a library, is asked after as ever. So nothing changes but the time, for whoever shares the driver with us.

And on each new connection it asks the server what arrays of text, uuid and bigint are, several times, with a query that
takes both of them longer than most statements do. `AskingOnce` asks once in a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from asyncpg.protocol import protocol

if TYPE_CHECKING:
    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

# Asked in this order: what is iterable, has a length, is neither text nor bytes, and maps nothing is an array. Numbers
# and None are none in the end, because they count as mappings; the other two answers they only have at once.
_ASKED: Final[dict[str, tuple[type, tuple[type, ...]]]] = {
    "IterableABC": (Iterable, (str, int, bytes, type(None), list, tuple)),
    "SizedABC": (Sized, (str, int, bytes, type(None), list, tuple)),
    "MappingABC": (Mapping, (int, type(None))),
}


def ask_quickly() -> None:
    """Puts the classes of our elements before the base classes that asyncpg asks by, from now on, in this process."""
    if any(getattr(protocol, name, None) is not base for name, (base, _) in _ASKED.items()):
        return  # done before, or a version that asks in another way
    for name, (base, known) in _ASKED.items():
        setattr(protocol, name, (*known, base))


# PostgreSQL assigns numbers below this one by hand: such a type is the same in every database of every version.
_OF_PEOPLE: Final = 10_000
_described: Final[dict[frozenset[int], Any]] = {}


class AskingOnce(_Connection):
    """A connection that asks nothing about types that another one of this process has asked about."""

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float) -> Any:
        # A version of asyncpg that asks in another way does not call this, and is slower.
        asked = frozenset(typeoids)
        if asked in _described:
            return _described[asked], _Answered
        types, statement = await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
        if max(asked) < _OF_PEOPLE:
            _described[asked] = types
        return types, statement


class _Answered:
    name = "answered"  # unlike the query, it has not taken the place of the unnamed statement

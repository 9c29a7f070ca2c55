"""How much of a server one key and one namespace may use at a time, so that none of them starves the others.

`Shares` refuses what is too much, and `Turns` lets it wait: one who is told to come again soon costs more than one who
waits, unless the wait is long. Where no keys are asked for nobody can be told apart, and all share the whole.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

from kagzi.access.caller import Caller
from kagzi.errors import LimitExceeded

H = TypeVar("H")
Holder = tuple[str, str]  # ("key" or "namespace", which one)


class Shares:
    """Lets at most `per_key` things of one key be under way, and twice as many of all keys of one namespace."""

    def __init__(self, per_key: int, things: str) -> None:
        self._per_key = per_key
        self._things = things
        self._of_keys: Counter[str] = Counter()
        self._of_namespaces: Counter[str] = Counter()

    def take(self, caller: Caller) -> None:
        """Takes one for the block; LimitExceeded if the caller has as many as it may have."""
        if caller.key_id is None:
            return
        if self._of_keys[caller.key_id] >= self._per_key:
            raise self._too_many(self._per_key, "key")
        if caller.namespace is not None:
            if self._of_namespaces[caller.namespace] >= 2 * self._per_key:
                raise self._too_many(2 * self._per_key, "namespace")
            self._of_namespaces[caller.namespace] += 1
        self._of_keys[caller.key_id] += 1

    def give(self, caller: Caller) -> None:
        if caller.key_id is not None:
            _less(self._of_keys, caller.key_id, 1)
            if caller.namespace is not None:
                _less(self._of_namespaces, caller.namespace, 1)

    @contextmanager
    def held(self, caller: Caller) -> Iterator[None]:
        self.take(caller)
        try:
            yield
        finally:
            self.give(caller)

    def _too_many(self, most: int, holder: str) -> LimitExceeded:
        return LimitExceeded(
            f"more than {most:,} {self._things} are under way with this {holder}; trying again later is safe"
        )


class Turns:
    """Gives out turns at something scarce: of `most` in all, at most `per_key` for one key at a time and twice as many
    for all keys of one namespace. The others wait, and keys take turns however many calls each of them has.

    A turn has a weight. One that weighs more than its bounds is let in when nothing else is under way within them.
    """

    def __init__(self, most: int, per_key: int) -> None:
        self._most = most
        self._per_key = per_key
        self._taken = 0
        self._held: Counter[Holder] = Counter()
        self._waiting: dict[str, deque[_Waiting]] = {}  # by key; who comes next stands first

    async def take(self, caller: Caller, weight: int = 1) -> None:
        """Waits until it is the caller's turn. `give` ends it."""
        if not self._waiting and self._fits(caller, weight) and self._room(weight):
            self._count(caller, weight)
            return
        turn = _Waiting(caller, weight)
        self._waiting.setdefault(caller.key_id or "", deque()).append(turn)
        self._next()
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn.granted.done() and not turn.granted.cancelled():
                self.give(caller, weight)
            else:
                self._leave(turn)
            raise

    @asynccontextmanager
    async def turn(self, caller: Caller, weight: int = 1) -> AsyncIterator[None]:
        await self.take(caller, weight)
        try:
            yield
        finally:
            self.give(caller, weight)

    def add(self, caller: Caller, weight: int) -> None:
        """Makes a turn heavier that was taken."""
        self._count(caller, weight)

    def give(self, caller: Caller, weight: int = 1) -> None:
        """Ends a turn, or gives back this much of it."""
        self._taken -= weight
        for holder, _ in _bounds(caller, self._per_key):
            _less(self._held, holder, weight)
        if self._waiting:
            self._next()

    def _count(self, caller: Caller, weight: int) -> None:
        self._taken += weight
        for holder, _ in _bounds(caller, self._per_key):
            self._held[holder] += weight

    def _fits(self, caller: Caller, weight: int) -> bool:
        """Returns whether the caller's own shares have room."""
        return all(
            not (held := self._held[holder]) or held + weight <= most for holder, most in _bounds(caller, self._per_key)
        )

    def _room(self, weight: int) -> bool:
        return not self._taken or self._taken + weight <= self._most

    def _next(self) -> None:
        """Lets in those who may, one of each key at a time."""
        while self._round():
            pass

    def _round(self) -> bool:
        """Returns whether a caller was let in. A key whose share is used up is passed over; one for which there is no
        room in all is not, since a heavy turn would otherwise wait behind light ones for ever."""
        found = False
        for key in list(self._waiting):
            turns = self._waiting[key]
            turn = turns[0]
            if not self._fits(turn.caller, turn.weight):
                continue
            if not self._room(turn.weight):
                return False
            self._count(turn.caller, turn.weight)
            turns.popleft()
            del self._waiting[key]
            if turns:
                self._waiting[key] = turns  # behind the others
            turn.granted.set_result(None)
            found = True
        return found

    def _leave(self, turn: _Waiting) -> None:
        key = turn.caller.key_id or ""
        turns = self._waiting[key]
        turns.remove(turn)
        if not turns:
            del self._waiting[key]
        self._next()  # it may have stood before others


class Room:
    """The room that the bytes of one caller's requests take."""

    __slots__ = ("_arriving", "_caller", "_turns")

    def __init__(self, turns: Turns, arriving: Shares, caller: Caller) -> None:
        self._turns = turns
        self._arriving = arriving
        self._caller = caller

    def arriving(self) -> AbstractContextManager[None]:
        """Surrounds the arrival of a request: LimitExceeded if too many of the caller's are on their way."""
        return self._arriving.held(self._caller)

    async def take(self, size: int) -> None:
        """Waits until there is room for so many bytes. `give` frees it, as a whole or part by part."""
        await self._turns.take(self._caller, size)

    def add(self, size: int) -> None:
        """Takes room for bytes that are there already: nobody waits for it now, and those who come wait longer."""
        self._turns.add(self._caller, size)

    def give(self, size: int) -> None:
        self._turns.give(self._caller, size)


class _Waiting:
    __slots__ = ("caller", "granted", "weight")

    def __init__(self, caller: Caller, weight: int) -> None:
        self.caller = caller
        self.weight = weight
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def _bounds(caller: Caller, per_key: int) -> tuple[tuple[Holder, int], ...]:
    if caller.key_id is None:
        return ()
    of_key = (("key", caller.key_id), per_key)
    return (of_key,) if caller.namespace is None else (of_key, (("namespace", caller.namespace), 2 * per_key))


def _less(held: Counter[H], holder: H, by: int) -> None:
    held[holder] -= by
    if not held[holder]:
        del held[holder]

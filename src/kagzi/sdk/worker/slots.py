"""Slots: how many runs a worker drives at once.

A run takes a slot when it is claimed or adopted and gives it back when the worker lets go of it. A run that waits a
moment in memory lends its slot and takes one back when its time has come, before any new run gets one; the number of
runs that may wait so is bounded, the others park.

A run whose code has come to its end needs no slot while its last words are being stored. Where more is due than there
are slots, others are claimed meanwhile: there is `room` for them, up to once more as many as there are slots, lest what
is stored slowly pile up here. Otherwise a slot is `free` only when the end is durable: whoever starts a run then finds
it so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

WAITING_PER_SLOT = 10


class Resumable(Protocol):
    gone: bool

    def resume(self) -> None:
        """Goes on, soon: not within this call, since going on may end the run, which gives its slot to the next."""
        ...


class Slots:
    def __init__(self, concurrency: int, on_free: Callable[[], None]) -> None:
        self.concurrency = concurrency
        self.reserved = 0  # promised to runs that are being started in this process
        self.claiming = 0  # held back for a claim under way
        self._taken = 0
        self._ending: set[Resumable] = set()
        self._lent: set[Resumable] = set()
        self._queue: deque[Resumable] = deque()
        self.awaited = False  # somebody waits for room
        self._on_free = on_free  # called when there is room that is waited for

    @property
    def free(self) -> int:
        return self.concurrency - self._taken - len(self._ending) - self.reserved - self.claiming

    @property
    def ending(self) -> int:
        """Slots of finished runs that other runs may have before these ends are durable."""
        return min(len(self._ending), self.concurrency)

    @property
    def room(self) -> int:
        # `free` and `ending` together, which is asked at the end of every run.
        concurrency, ending = self.concurrency, len(self._ending)
        room = concurrency - self._taken - self.reserved - self.claiming
        return room if ending <= concurrency else room - ending + concurrency

    @property
    def taken(self) -> int:
        return self._taken

    def take(self) -> None:
        self._taken += 1

    def end(self, attempt: Resumable) -> None:
        """Frees the slot of a run whose code runs no more. A second call changes nothing."""
        if attempt not in self._ending:
            self._let_go(attempt)
            self._ending.add(attempt)
            self._freed()

    def release(self, attempt: Resumable) -> None:
        if attempt in self._ending:
            self._ending.discard(attempt)
        else:
            self._let_go(attempt)
        self._freed()

    def _let_go(self, attempt: Resumable) -> None:
        if attempt in self._lent:
            self._lent.discard(attempt)
        else:
            self._taken -= 1

    def lend(self, attempt: Resumable) -> bool:
        """Gives the slot up for a short wait; returns False if too many wait already."""
        if attempt in self._lent:
            return True
        if len(self._lent) >= WAITING_PER_SLOT * self.concurrency:
            return False
        self._lent.add(attempt)
        self._taken -= 1
        self._freed()
        return True

    def is_lent(self, attempt: Resumable) -> bool:
        return attempt in self._lent

    def take_back(self, attempt: Resumable) -> None:
        """Resumes the attempt as soon as there is a slot."""
        self._queue.append(attempt)
        if self._taken < self.concurrency:
            self._serve()

    def _freed(self) -> None:
        if self._queue:
            self._serve()
        if self.awaited and self.room > 0:
            self._on_free()

    def _serve(self) -> None:
        while self._queue and self._taken < self.concurrency:
            attempt = self._queue.popleft()
            if attempt.gone or attempt not in self._lent:
                continue
            self._lent.discard(attempt)
            self._taken += 1
            attempt.resume()

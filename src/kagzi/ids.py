"""Ids and chance. The only place that reads entropy; everything else in Kagzi is given them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol
from weakref import WeakSet

from kagzi.core.instant import Instant


def entropy(length: int) -> bytes:
    """Returns so many bytes that nobody can guess, for what is never made again from a seed: ciphertext."""
    return os.urandom(length)


class IdSource(Protocol):
    def run_id(self) -> str:
        """Returns a UUIDv7: ids of one source sort in the order they were made."""
        ...

    def token(self) -> str:
        """Returns 128 bits that cannot be guessed, in the form of a UUID."""
        ...

    def jitter(self) -> float:
        """Returns a number in [0, 1)."""
        ...


class RandomIds:
    """Ids from the operating system's entropy and a clock."""

    def __init__(self, now: Callable[[], Instant], *, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._now = now
        self._entropy = entropy
        self._last = 0
        self.forget()
        _sources.add(self)

    def forget(self) -> None:
        """Draws anew: of two processes with the same past each needs a chance of its own."""
        self._pool: list[str] = []
        self._random = random.Random(self._entropy(16))

    def run_id(self) -> str:
        # 48 bits of milliseconds, then 12 bits of the millisecond's fraction, so that ids made in one process rise
        # even within a millisecond (RFC 9562, method 3); a clock that stands still or goes back is stepped over.
        tick = max(self._last + 1, (self._now() << 12) // 1000)
        self._last = tick
        time, chance = f"{tick:015x}", self._digits()
        return f"{time[:8]}-{time[8:12]}-7{time[12:]}-{_VARIANT[chance[0]]}{chance[1:4]}-{chance[4:16]}"

    def token(self) -> str:
        chance = self._digits()
        return f"{chance[:8]}-{chance[8:12]}-4{chance[13:16]}-{_VARIANT[chance[16]]}{chance[17:20]}-{chance[20:]}"

    def jitter(self) -> float:
        return self._random.random()

    def _digits(self) -> str:
        """Returns 128 bits of chance as 32 hexadecimal digits."""
        # One system call for 256 ids instead of one each. Threads may take at the same time: each gets another.
        try:
            return self._pool.pop()
        except IndexError:
            digits = self._entropy(4096).hex()
            self._pool = [digits[at : at + 32] for at in range(0, len(digits), 32)]
            return self._pool.pop()


_sources: WeakSet[RandomIds] = WeakSet()


def _forget_all() -> None:
    for source in _sources:
        source.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)

# The digit that holds the two bits of the variant (RFC 9562) and two of chance.
_VARIANT = {f"{digit:x}": f"{0b1000 | digit & 0b11:x}" for digit in range(16)}


def derived_run_id(at: Instant, *parts: str) -> str:
    """Returns the id of a run that follows from what is recorded: the same whenever it is made of the same. A UUIDv7 of
    that moment, so that it sorts among the others."""
    time = f"{(at << 12) // 1000:015x}"
    chance = blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
    return f"{time[:8]}-{time[8:12]}-7{time[12:]}-{_VARIANT[chance[0]]}{chance[1:4]}-{chance[4:]}"


def seeded_random(run_id: str) -> random.Random:
    """Returns the chance of one workflow run: the same numbers on each replay."""
    return random.Random(run_id)


def fresh_random() -> random.Random:
    return random.Random(os.urandom(16))


def fresh_secret(length: int) -> bytes:
    """Returns so many bytes that nobody can guess."""
    return os.urandom(length)

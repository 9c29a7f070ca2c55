"""Ids and chance, as everything in Kagzi is given them. The only place that reads entropy."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Protocol

from kagzi.core.instant import Instant


class IdSource(Protocol):
    def run_id(self) -> str:
        """A UUIDv7: ids of one source sort in the order they were made."""
        ...

    def token(self) -> str:
        """128 bits nobody can guess, in the form of a UUID."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...


class RandomIds:
    """Ids from the operating system's entropy and a clock."""

    def __init__(self, now: Callable[[], Instant], *, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._now = now
        self._entropy = entropy
        self._last = 0
        self._pool = b""
        self._at = 0
        self._random = random.Random(entropy(16))

    def run_id(self) -> str:
        # 48 bits of milliseconds, then 12 bits of the millisecond's fraction, so that ids made in one process rise
        # even within a millisecond (RFC 9562, method 3); a clock that stands still or goes back is stepped over.
        tick = max(self._last + 1, (self._now() << 12) // 1000)
        self._last = tick
        return _format((tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0x2 << 62 | self._bits() >> 66)

    def token(self) -> str:
        return _format(self._bits() & ~(0xF << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62)

    def jitter(self) -> float:
        return self._random.random()

    def _bits(self) -> int:
        # One system call for 256 ids instead of one each.
        if self._at >= len(self._pool):
            self._pool, self._at = self._entropy(4096), 0
        self._at += 16
        return int.from_bytes(self._pool[self._at - 16 : self._at], "big")


def _format(value: int) -> str:
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def seeded_random(run_id: str) -> random.Random:
    """The chance of one workflow run: the same numbers on each replay."""
    return random.Random(run_id)


def fresh_random() -> random.Random:
    return random.Random(os.urandom(16))


def fresh_secret(length: int) -> bytes:
    """So many bytes nobody can guess."""
    return os.urandom(length)

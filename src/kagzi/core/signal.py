"""Signals: what a run is told from outside, by name, with a value."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.limits import check_name
from kagzi.errors import InvalidRequest

MOST_UNTAKEN: Final = 10_000  # signals that may wait in the inbox of one run
# How long the key of a taken signal is remembered when its run begins anew. The SDK repeats its own for minutes.
MADE_KEY_KEPT: Final[Span] = 3600 * SECOND
GIVEN_KEY_KEPT: Final[Span] = 30 * 24 * 3600 * SECOND
MADE_KEY: Final = "~"  # what keys begin with that the SDK makes for senders who give none


def check_key(key: str | None, made: str) -> str:
    """Returns the key of a signal: the sender's, or one that no other signal has."""
    if key is None:
        return MADE_KEY + made
    if check_name(key, "signal key").startswith(MADE_KEY):
        raise InvalidRequest(f"a signal key must not begin with {MADE_KEY!r}: such keys are made by Kagzi")
    return key


class Signal(Struct, frozen=True, kw_only=True):
    """One signal of a run. `seq` orders the inbox; `taken_seq` is the number of the event that took it."""

    key: str
    seq: int
    name: str
    value: bytes
    sent_at: Instant
    taken_seq: int | None = None


def awaits_signal(name: str) -> str:
    """Returns what `ParkRun.waiting_for` says of a wait for a signal of this name."""
    return f"s:{name}"

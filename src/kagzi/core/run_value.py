"""Values: what a run says about itself, by name, for people and programs that look at it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant

MOST_VALUES: Final = 100  # of one run, the engine's own not counted
VALUE_BYTES: Final = 64 * 1024
OURS: Final = "@"  # what names begin with that are the engine's own
PROGRESS: Final = "@progress"


class RunValue(Struct, frozen=True, kw_only=True):
    """One value of a run as it was last set, and when that was stored."""

    name: str
    value: bytes
    at: Instant


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a run has come: from 0 to 1, and what it is at."""

    fraction: float
    message: str = ""

"""Names like one that is not there: what somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 64  # characters: comparing takes their square
_MOST: Final = 100
_APART: Final = 3  # how much longer or shorter one may be


def alike(name: str, names: Iterable[str]) -> str | None:
    """Returns the name that is most like this one. Looks at few and short ones, so it may be called anywhere."""
    if len(name) > _LONGEST:
        return None
    near = sorted({each for each in names if len(each) <= _LONGEST and abs(len(each) - len(name)) <= _APART})[:_MOST]
    return next(iter(difflib.get_close_matches(name, near, n=1)), None)

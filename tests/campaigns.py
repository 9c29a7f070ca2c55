"""How far a campaign goes: a test that tries many cases of one kind, chosen by chance or from a long list.

In the suite each tries a part of them, so that an answer does not take long. `make campaigns` tries them all.
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

LONG: Final = os.environ.get("KAGZI_TEST_CAMPAIGNS") == "long"


def length(in_the_suite: T, in_a_campaign: T) -> T:
    return in_a_campaign if LONG else in_the_suite

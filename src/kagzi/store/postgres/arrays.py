"""How asyncpg encodes arrays, in a process that is all ours.

Of every element it asks whether that is a container itself, by abstract base classes: eighteen calls of Python
functions for one recorded step, a third of all calls that a server makes for it and a tenth of its time. The arrays of
our statements are flat lists, and whether something is a list can be seen without asking.

In programs of others asyncpg stays as it is: there, somebody may hand it a set or an array of another library.
"""

from __future__ import annotations

from typing import Final

from asyncpg.protocol import protocol

_ASKED_BY: Final = ("IterableABC", "SizedABC")


def expect_lists() -> None:
    """From now on, in this process, what is given for an array is a list or a tuple."""
    if all(hasattr(protocol, name) for name in _ASKED_BY):  # else a version that asks in another way
        for name in _ASKED_BY:
            setattr(protocol, name, (list, tuple))

"""One of several worker processes: which one this is, whether its parent lives, and what it tells the parent."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Final

from kagzi.errors import InvalidRequest

VARIABLE: Final = "KAGZI_WORKER_CHILD"
# What a process tells its parent before it ends, one byte each: that the next one would end like it.
UNUSABLE: Final = b"u"  # usage or settings
REFUSED: Final = b"r"  # by the server, for its key


class Member:
    """This process, the `number`th of `count` that one parent has started."""

    def __init__(self, number: int, count: int, group: str, channel: socket.socket) -> None:
        self.labels = {"group": group, "process": f"{number}/{count}"}
        self.channel = channel  # its end is the parent's: nobody writes to us

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tells the parent of errors that starting again does not mend."""
        try:
            yield
        except InvalidRequest:
            self._tell(UNUSABLE)
            raise

    def tell_refused(self) -> None:
        self._tell(REFUSED)

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # the parent is gone
            self.channel.send(word)


def written(number: int, count: int, group: str, descriptor: int) -> str:
    """Returns what the environment of a process says that a parent starts."""
    return f"{number}/{count}:{group}:{descriptor}"


def member() -> Member | None:
    """Returns what this process is of a group, None if it was started by itself.

    The environment is read once and the variable taken out of it: programs that this one starts are no workers of the
    group, and do not inherit the channel.
    """
    global _known
    text = os.environ.pop(VARIABLE, None)
    if text is not None:
        _known = _read(text)
    return _known


_known: Member | None = None


def _read(text: str) -> Member:
    try:
        place, group, descriptor = text.split(":")
        number, count = map(int, place.split("/"))
        os.set_inheritable(int(descriptor), False)
        channel = socket.socket(fileno=int(descriptor))
    except (ValueError, OSError):
        raise InvalidRequest(
            f"{VARIABLE} is what `kagzi worker --processes` says to the processes that it starts; remove it"
        ) from None
    return Member(number, count, group, channel)

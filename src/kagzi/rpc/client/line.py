"""The line to a server: calls that are repeated while it is out of reach, and checks of what goes into them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from google.protobuf.message import Message

from kagzi.core.limits import check_unicode
from kagzi.errors import InvalidRequest, LimitExceeded, Locked, Unavailable
from kagzi.rpc.client.channel import Channel

M = TypeVar("M", bound=Message)
A = TypeVar("A")
W = TypeVar("W")

READ_SECONDS: Final = 15.0  # one call
WRITE_SECONDS: Final = 10.0  # one call; a third of a lease, so that another server can still store what it carries
MARGIN_SECONDS: Final = 5.0  # for a waiting call to answer after its wait
_PATIENCE: Final = 30.0  # with a server that is out of reach
_PATIENCE_WITH_LOCKS: Final = 8.0  # with what a server says is locked: it has waited itself
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 2.0


class Line:
    def __init__(self, channel: Channel, jitter: Callable[[], float]) -> None:
        self.channel = channel
        self.patience = _PATIENCE
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()

    async def call(
        self,
        service: str,
        rpc: str,
        request: Message,
        answer: type[M],
        *,
        seconds: float,
        patience: float | None = None,
    ) -> M:
        """Makes a call and repeats it for `patience` seconds. 0 is a single try; the default suits what must arrive."""
        since = self._loop.time()
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self.channel.call(service, rpc, request, answer, seconds)
            except Unavailable as error:
                if isinstance(error, LimitExceeded) and not error.passing:
                    raise
                most = self.patience if patience is None else patience
                if self._loop.time() - since >= (min(most, _PATIENCE_WITH_LOCKS) if type(error) is Locked else most):
                    raise
            await asyncio.sleep(pause * (0.5 + self._jitter()))
            pause = min(pause * 2, _LONGEST_PAUSE)


def converted(convert: Callable[[W], A], record: W) -> A:
    """Converts a record to its message. A value that no message can hold raises InvalidRequest."""
    try:
        return convert(record)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise InvalidRequest(f"that cannot be sent to a server: {error}") from None


def text(value: object, field: str) -> str:
    """Checks a text that becomes a field of a message. One that no message can hold raises InvalidRequest by the name
    of its field, as an engine in the process does."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be text, not {type(value).__name__}")
    check_unicode(value, field)
    return value

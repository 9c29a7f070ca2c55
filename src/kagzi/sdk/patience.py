"""Calls of an app that wait out an outage of its database or server.

Starts and results do so in the engine and in the handle, and changes of schedules in the engine, which knows what is
left of one that was cut. What else an app asks is repeated here, as it is: requests have the ids and keys that their
callers made, so a repeat of one that was carried out changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar, cast

from kagzi.errors import LimitExceeded, Unavailable

T = TypeVar("T")

PATIENCE_SECONDS: Final = 30.0  # as long as an engine tries to write
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


def patient(service: Callable[[], T], *, but: Collection[str] = ()) -> T:
    """Returns a service whose calls are repeated while it is out of reach. `service` returns it, and raises when the
    app is closed. Calls in `but` are passed on."""
    return cast("T", _Patient(service, but))


class _Patient:
    __slots__ = ("_but", "_service")

    def __init__(self, service: Callable[[], Any], but: Collection[str]) -> None:
        self._service = service
        self._but = but

    def __getattr__(self, name: str) -> Any:
        if name in self._but:
            return getattr(self._service(), name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            loop, pause = asyncio.get_running_loop(), _FIRST_PAUSE
            until = loop.time() + PATIENCE_SECONDS
            while True:
                method = getattr(self._service(), name)
                try:
                    return await method(*args, **kwargs)
                except Unavailable as error:
                    lasting = isinstance(error, LimitExceeded) and not error.passing
                    if lasting or loop.time() + pause > until:
                        raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

        return call

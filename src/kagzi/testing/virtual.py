"""An asyncio event loop on virtual time: a month of sleeping takes no longer than the callbacks in between.

When nothing is ready the loop asks its selector to wait for the next timer, and this selector moves the clock instead
of waiting. Callbacks keep their order, first in, first out, as asyncio promises it: a shuffled order would produce
schedules that no real loop can produce.

>>> loop = VirtualLoop(VirtualClock())
>>> loop.run_until_complete(asyncio.sleep(86400))

There are no sockets, threads or subprocesses here: what is meant for a thread is called in place. A loop with nothing
ready and no timer would wait for ever, so it raises `Deadlock`; one that never comes to rest would keep time from
passing, so it raises `Livelock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kagzi.core.instant import SECOND
from kagzi.testing.clock import VirtualClock

_MOST_ROUNDS = 20_000


class Deadlock(Exception):
    """Everything waits and no timer is set: without the outside world nothing can ever happen again."""


class Livelock(Exception):
    """Callbacks follow upon callbacks without end, and time stands still."""


class VirtualLoop(asyncio.BaseEventLoop):
    _scheduled: list[asyncio.TimerHandle]  # asyncio's own

    def __init__(self, clock: VirtualClock | None = None) -> None:
        super().__init__()
        self.clock = clock or VirtualClock()
        self._selector = _Leap(self.clock)
        self._clock_resolution = 1 / SECOND

    def run_forever(self) -> None:
        self._selector.begin()  # somebody outside has something new to do
        super().run_forever()

    def time(self) -> float:
        return self.clock.monotonic() / SECOND

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., Any],
        *args: Any,
    ) -> asyncio.Future[Any]:
        """Calls it here and now, also for `asyncio.to_thread` in a body: there are no threads."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def waits_for_later_than(self, seconds: float) -> bool:
        """Whether a timer is set that is further away than this."""
        return any(timer.when() > self.time() + seconds for timer in self._scheduled if not timer.cancelled())

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a system call, so nobody needs to be woken."""


class _Leap:
    """A selector without files. Waiting is moving the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._restless = 0

    def begin(self) -> None:
        self._restless = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        self._restless += 1
        if self._restless > _MOST_ROUNDS:
            raise Livelock(f"{_MOST_ROUNDS:,} rounds of callbacks, and time has not moved")
        if timeout > 0:
            self._restless = 0
            # Up to the next whole microsecond: a timer must not be looked at before it is due, or the loop would spin.
            self._clock.advance(-int(-timeout * SECOND // 1))
        return []

    def close(self) -> None:
        """Nothing is open."""

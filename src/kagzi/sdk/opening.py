"""An app belongs to the event loop in which it was opened.

What waits in one loop is never woken by another, so a use in another loop would wait for ever: it is refused instead.
Blocking code may come from any thread (`blocking.py`).
"""

from __future__ import annotations

import asyncio

from kagzi.errors import InvalidRequest, NonDeterminismError
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call


class Opening:
    """Where an app was opened, and in which event loop."""

    __slots__ = ("blocking", "loop", "place")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.place = place_of_call()
        self.blocking = False  # opened by blocking code, in a loop of a thread of its own

    def check(self) -> None:
        """Refuses a use in another event loop, naming both places. Code outside of any loop cannot wait, and passes."""
        loop = asyncio._get_running_loop()  # get_running_loop() raises where there is none
        if loop is not self.loop and loop is not None:
            self._refuse(loop)

    def _refuse(self, loop: asyncio.AbstractEventLoop) -> None:
        here = place_of_call()
        if isinstance(loop, WorkflowLoop):
            raise NonDeterminismError(f"using the app belongs in a step (it is used in a workflow at {here})")
        if self.blocking:
            raise InvalidRequest(
                f"this app was opened by blocking code at {self.place}, and is used at {here} in an event loop, where "
                "it would wait for ever. Open it with `async with app:` there and before: blocking calls of other "
                "threads then use that loop, too"
            )
        ended = ", which has ended without closing the app" if self.loop.is_closed() else ""
        raise InvalidRequest(
            f"this app was opened at {self.place} in one event loop{ended}, and is used at {here} in another, where "
            "it would wait for ever. Open it in the loop that uses it (with pytest-asyncio, give the fixture and its "
            "tests the same loop_scope), or make an app for each loop"
        )

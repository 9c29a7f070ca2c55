"""Waiters for the ends of runs, and how they are told.

Everything here is a hint: `None` means "look again", and what was missed is found by the pulse, which checks the runs
somebody waits for once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kagzi.api.reply import Reply
from kagzi.core.run import Run
from kagzi.engine.announcements import Announcements
from kagzi.store.protocol.changes import RunKey


class Results:
    """Replies to waiters, by run. `check_soon` is called when there is a result to check."""

    def __init__(self, announcements: Announcements, check_soon: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._announcements = announcements
        self._check_soon = check_soon
        self._waiting: dict[RunKey, list[Reply[Run | None]]] = {}
        self._deadlines: dict[Reply[Run | None], float] = {}
        self.closed = False

    def expect(self, namespace: str, run_id: str, deadline: float | None = None) -> Reply[Run | None]:
        """Returns a reply, settled when the run may have finished: with the run, or None for "look again"; and soon
        after the deadline, by the clock of the loop."""
        reply: Reply[Run | None] = Reply()
        if self.closed:
            reply.settle(None)
            return reply
        self._waiting.setdefault((namespace, run_id), []).append(reply)
        if deadline is not None:
            self._deadlines[reply] = deadline
        self._check_soon()
        return reply

    def unexpect(self, namespace: str, run_id: str, reply: Reply[Run | None]) -> None:
        self._deadlines.pop(reply, None)
        waiting = self._waiting.get((namespace, run_id))
        if waiting is not None and reply in waiting:
            waiting.remove(reply)
            if not waiting:
                del self._waiting[namespace, run_id]

    def expected(self, namespace: str, run_id: str) -> bool:
        return (namespace, run_id) in self._waiting

    def expected_runs(self) -> list[RunKey]:
        return list(self._waiting)

    def waiters(self, namespace: str, run_id: str) -> int:
        """Returns how many replies wait for this run."""
        return len(self._waiting.get((namespace, run_id), ()))

    def expire(self) -> None:
        """Answers waiters whose deadline has passed with "look again"."""
        now = self._loop.time()
        for reply in [reply for reply, deadline in self._deadlines.items() if deadline <= now]:
            if not reply.done():
                reply.settle(None)

    def finished(self, namespace: str, run_id: str, run: Run | None = None) -> None:
        """Tells that a run ended in this process. A waiter here is nearly always the only one, so ends without one are
        announced to other processes at once, the others a while later."""
        if self._settle(namespace, run_id, run):
            self._announcements.add_awaited((namespace, run_id))
        else:
            self._announcements.add_finished((namespace, run_id))

    def maybe_finished(self, namespace: str, run_id: str) -> None:
        """Tells waiters that a run may have ended, as another process says or a look at the database has found."""
        self._settle(namespace, run_id, None)

    def close(self) -> None:
        self.closed = True
        for namespace, run_id in list(self._waiting):
            self._settle(namespace, run_id, None)

    def _settle(self, namespace: str, run_id: str, run: Run | None) -> bool:
        waiting = self._waiting.pop((namespace, run_id), None)
        if waiting is None:
            return False
        for reply in waiting:
            if not reply.done():
                reply.settle(run)
        return True

"""Background duties: what has to be done for runs that no worker takes care of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from kagzi.api.operations import CancelRun, TerminateRun
from kagzi.core.instant import Span
from kagzi.core.page import Cursor
from kagzi.store.protocol.changes import Changed, Queue


class Offer(Struct, frozen=True):
    """A workflow and a version of it, or every one, that a worker of a queue executes."""

    namespace: str
    task_queue: str
    workflow_type: str
    version: str | None


class SetAside(Struct, frozen=True, kw_only=True):
    """How many runs were set aside, and in which queues some were brought back (`store/unserved.py`). `left`: some are
    set aside now; `more`: another look will find more to do."""

    aside: int = 0
    back: tuple[Queue, ...] = ()
    left: bool = False
    more: bool = False


class Duties(Protocol):
    """The duties of the coordinator, each of them bounded by a number of rows.

    Each method handles at most `limit` rows, skips locked ones, and is safe in any number of processes. Duties about
    other nouns (workers that are lost, schedules that fire) are theirs."""

    async def recover_runs(self, limit: int, max_crashes: int, backoff: Callable[[int], Span]) -> Changed:
        """Runs whose lease has ended: token cleared, crashes + 1, PENDING after backoff(crashes).

        `crashes` counts only crashes in a row without a new recorded event: the run remembers the highest
        completed_seq at its last crash, and starts over at 1 when there is a newer one. At max_crashes: FAILED.
        """
        ...

    async def time_out_steps(self, limit: int, grace: Span) -> Changed:
        """Steps RUNNING for longer than their timeout + grace: the attempt becomes FAILED with StepTimeout, the
        lease is revoked and the run is PENDING, in one transaction. The worker decides on replay whether the policy
        allows another attempt."""
        ...

    async def time_out_runs(self, limit: int) -> Changed:
        """Live runs past their deadline: TIMED_OUT, token cleared."""
        ...

    async def end_cancelled_runs(self, limit: int) -> Changed:
        """Live runs that were told to end and have used up their grace: CANCELLED, token cleared."""
        ...

    async def cascade_ends(self, limit: int) -> list[CancelRun | TerminateRun]:
        """What is to be asked for because runs with children have ended: at most so many of their live children, by
        their policies, that were not told yet. An end that nobody is left to be told of is forgotten."""
        ...

    async def set_runs_aside(self, offered: Sequence[Offer], stale: Span, limit: int) -> SetAside:
        """Sets aside what has been due for long and no worker of its queue executes, and brings back what one executes
        now (`store/unserved.py`). Looks at
        `limit` runs of each queue, and brings back as many. `offered` counts beside what workers have registered that
        were heard of within `stale`."""
        ...

    async def prune_runs(self, limit: int, after: Cursor | None) -> tuple[int, Cursor | None]:
        """Delete finished runs past their namespace's retention. Walks run ids from `after`, looking at no more than
        `limit` of them, and returns how many were deleted and where to go on (None: the end was reached)."""
        ...

"""Pauses and limits of queues, workflows and namespaces."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from msgspec import Struct

from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.store.protocol.changes import Queue


class Unheld(NamedTuple):
    """Runs that were held, and are not any more."""

    queues: list[Queue]  # in which there are any
    after: tuple[str, ...]  # the last line that was looked at, if there may be more behind it
    later: bool = False  # some come at a moment that is not there yet


class LimitChange(Struct, frozen=True, kw_only=True):
    """What is set of a limit. None: nothing is; -1 and '': it stays as it was."""

    concurrency: int | None = None
    key_concurrency: int | None = None
    rate: str | None = None  # as RateLimit.encode writes it
    key_rate: str | None = None


class Limits(Protocol):
    """Pauses and limits.

    They are read in the very statements that claim runs or insert them under a lease: what begins after a pause was
    acknowledged hands out nothing that it is about."""

    async def read(self, namespace: str) -> list[FlowLimit]:
        """By scope and name."""
        ...

    async def pause(self, namespace: str, scope: Scope, name: str, by: str, reason: str) -> FlowLimit:
        """What is paused already stays as it is."""
        ...

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit: ...

    async def change(self, namespace: str, scope: Scope, name: str, change: LimitChange) -> FlowLimit:
        """Let so many runs, and so many of each key, run at once, and begin so often."""
        ...

    async def declare(self, namespace: str) -> None:
        """Has the declared limits of the namespace be the smallest of its live workers."""
        ...

    async def namespaces(self) -> list[str]:
        """Where anything is limited, or runs are held for what was."""
        ...

    async def unhold(self, namespace: str, after: tuple[str, ...]) -> Unheld:
        """Make runs claimable that were held and for which there is room now, of a bounded number of lines behind this
        one (`store/lines.py`)."""
        ...

    async def wait_of(self, namespace: str, run_id: str) -> SlotWait | None:
        """The limit that a run waits for, and how many of its line are held before it, up to MOST_BEFORE (or due before
        it, if nothing is held). None if it waits for none."""
        ...

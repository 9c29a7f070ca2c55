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
    """A change of a limit. A field that is None is cleared; -1 and '' leave it as it was."""

    concurrency: int | None = None
    key_concurrency: int | None = None
    rate: str | None = None  # as RateLimit.encode writes it
    key_rate: str | None = None


class Limits(Protocol):
    """Pauses and limits.

    They are read in the very statements that claim runs or insert them under a lease: what begins after a pause was
    acknowledged hands out nothing that it is about."""

    async def read(self, namespace: str) -> list[FlowLimit]:
        """Returns all limits of a namespace by scope and name."""
        ...

    async def pause(self, namespace: str, scope: Scope, name: str, by: str, reason: str) -> FlowLimit:
        """Pauses; what is paused already stays as it is."""
        ...

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit: ...

    async def change(self, namespace: str, scope: Scope, name: str, change: LimitChange) -> FlowLimit:
        """Sets how many runs, and how many of each key, may run at once, and how often they may begin."""
        ...

    async def declare(self, namespace: str) -> None:
        """Makes the declared limits of the namespace the smallest that its live workers declare."""
        ...

    async def namespaces(self) -> list[str]:
        """Returns the namespaces in which anything is limited, or runs are held by a limit that is gone."""
        ...

    async def unhold(self, namespace: str, after: tuple[str, ...]) -> Unheld:
        """Makes held runs claimable for which there is room now, of a bounded number of lines behind this one
        (`store/lines.py`)."""
        ...

    async def wait_of(self, namespace: str, run_id: str) -> SlotWait | None:
        """Returns the limit that a run waits for, and how many of its line are held before it, up to MOST_BEFORE (or
        due before it, if nothing is held). None if it waits for none."""
        ...

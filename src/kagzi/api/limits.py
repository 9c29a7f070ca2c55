"""The contract for limits and pauses: what holds runs back before a worker may take them."""

from __future__ import annotations

from typing import Protocol

from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.core.rate import RateLimit


class LimitService(Protocol):
    async def list(self, namespace: str) -> tuple[FlowLimit, ...]:
        """Lists the limits and pauses of the namespace itself, of its queues and of its workflows, by name."""
        ...

    async def pause(self, namespace: str, scope: Scope, name: str, *, by: str, reason: str = "") -> FlowLimit:
        """Hands out no run of this queue, workflow or (with an empty name) namespace from the answer on. Runs that a
        worker has go on to their end or their next wait. Pausing twice changes nothing: the answer says since when, and
        by whom. A queue or workflow need not be known yet; NotFound if the namespace is not."""
        ...

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        """Hands runs out again. Harmless if nothing was paused."""
        ...

    async def set(
        self,
        namespace: str,
        scope: Scope,
        name: str,
        *,
        concurrency: int | None = None,
        key_concurrency: int | None = None,
        rate: RateLimit | None = None,
        key_rate: RateLimit | None = None,
    ) -> FlowLimit:
        """Sets how many runs of this queue or workflow, and how many of each key, may run at once over all workers, or
        how often they may begin. None leaves a number as it was. These numbers come before those that workers declare.
        Runs that a worker has go on."""
        ...

    async def wait(self, namespace: str, run_id: str) -> SlotWait | None:
        """Returns the limit that a run waits for; None if it waits for none, or there is no such run."""
        ...

    async def clear(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        """Forgets the numbers that were set; those that workers declare count again."""
        ...

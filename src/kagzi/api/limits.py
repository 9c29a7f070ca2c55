"""What people ask about what holds runs back."""

from __future__ import annotations

from typing import Protocol

from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.core.rate import RateLimit


class LimitService(Protocol):
    async def list(self, namespace: str) -> tuple[FlowLimit, ...]:
        """All that holds back runs of the namespace: of itself, of its queues, of its workflows, by name."""
        ...

    async def pause(self, namespace: str, scope: Scope, name: str, *, by: str, reason: str = "") -> FlowLimit:
        """Hand out no run of this queue, workflow or (with an empty name) namespace from the answer on. What runs goes
        on to its end or its next wait. Pausing twice changes nothing: the answer says since when, and by whom. A queue
        or workflow need not be known yet; NotFound if the namespace is not."""
        ...

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        """Hand out its runs again. Harmless if it is not paused."""
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
        """Let at most so many runs of this queue or workflow run at once over all workers, and so many of each key; or
        begin so often.
        What is not said stays. It comes before what workers declare. What runs already goes on."""
        ...

    async def wait(self, namespace: str, run_id: str) -> SlotWait | None:
        """The limit that a run waits for; None if it waits for none, or there is no such run."""
        ...

    async def clear(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        """Take back what was set; what workers declare counts again."""
        ...

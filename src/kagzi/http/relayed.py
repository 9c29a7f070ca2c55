"""The engine of a server behind gRPC, as the HTTP port of another process uses it (`app.asgi()`).

Everything that is asked about runs goes to the server, with the key of the app, and is audited there. What only the
process of an engine knows is not there: keys of others, events as they happen, gauges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kagzi.api.admin import AdminService
from kagzi.api.engine import Services
from kagzi.api.events import Numbered, Resync
from kagzi.api.jobs import JobService
from kagzi.api.keys import LiveKeys
from kagzi.api.limits import LimitService
from kagzi.api.namespaces import NamespaceService
from kagzi.api.schedules import ScheduleService
from kagzi.api.versions import VersionService
from kagzi.api.workflows import WorkflowService
from kagzi.clock import Clock
from kagzi.core.health import Health
from kagzi.core.instant import Instant, Span
from kagzi.core.key import Key
from kagzi.core.load import Load
from kagzi.core.page import PageTokens
from kagzi.metrics.counters import Metrics

_LOOK_SECONDS: Final = 2.0  # how often those who watch are told to look again


class RelayedEngine:
    """`http.call.ServedEngine` over an engine in another process."""

    def __init__(self, engine: Services, clock: Clock, secret: bytes) -> None:
        self._engine = engine
        self.metrics = Metrics()
        self.events = LookAgain(clock)
        # Sessions and pages of steps of this process: nobody else has to read them.
        self.page_tokens = PageTokens(secret)

    @property
    def workflows(self) -> WorkflowService:
        return self._engine.workflows

    @property
    def admin(self) -> AdminService:
        return self._engine.admin

    @property
    def namespaces(self) -> NamespaceService:
        return self._engine.namespaces

    @property
    def versions(self) -> VersionService:
        return self._engine.versions

    @property
    def schedules(self) -> ScheduleService:
        return self._engine.schedules

    @property
    def jobs(self) -> JobService:
        return self._engine.jobs

    @property
    def limits(self) -> LimitService:
        return self._engine.limits

    async def health(self) -> Health:
        return await self._engine.health()

    async def load(self) -> Load | None:
        """Returns nothing: the server has the gauges on its own HTTP port."""
        return None


class NoKeys:
    """`api.keys.KeySource`: there are none here. The app shows its own key to the server."""

    async def live(self) -> LiveKeys:
        return LiveKeys(now=0, configured=False, keys={})

    def matches(self, key: Key, secret: bytes) -> bool:  # noqa: ARG002
        return False

    async def used(self, at: dict[str, Instant]) -> None:
        pass

    async def open_session(self, session_id: str, key_id: str, lifetime: Span) -> None:
        """Nobody logs in without a key."""

    async def sessions(self, session_ids: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        return {}

    async def end_session(self, session_id: str) -> None:
        pass


class LookAgain:
    """`api.events.EventService` that knows nothing and tells those who watch to look again, now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def subscribe(self, *, namespace: str, run_id: str | None = None, after: str | None = None) -> LookAgain:  # noqa: ARG002
        return self

    async def next(self, seconds: float) -> Sequence[Numbered]:
        await asyncio.sleep(min(seconds, _LOOK_SECONDS))
        now = self._clock.now()
        return (Numbered(str(now), Resync(at=now)),)

    def close(self) -> None:
        pass

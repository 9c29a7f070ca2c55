"""The contract that hides whether the engine is in this process or across a wire."""

from __future__ import annotations

from typing import Protocol

from kagzi.api.admin import AdminService
from kagzi.api.events import EventService
from kagzi.api.jobs import JobService
from kagzi.api.limits import LimitService
from kagzi.api.namespaces import NamespaceService
from kagzi.api.schedules import ScheduleService
from kagzi.api.versions import VersionService
from kagzi.api.workers import HostedWorkers, LeaseService, WorkerService
from kagzi.api.workflows import HostedWorkflows, WorkflowService
from kagzi.core.health import Health
from kagzi.core.load import Load
from kagzi.core.page import PageTokens
from kagzi.metrics.counters import Metrics


class Engine(Protocol):
    @property
    def workflows(self) -> WorkflowService: ...

    @property
    def workers(self) -> WorkerService: ...

    async def open(self) -> None:
        """Connects, migrates the database where this engine owns it, and starts background duties."""
        ...

    async def close(self) -> None: ...

    async def health(self) -> Health:
        """Returns how well the installation is. Whatever is wrong with it is in the answer; nothing is raised for
        it."""
        ...

    def sibling(self) -> Engine:
        """Returns an engine over the same runs for another thread with its own event loop. It has its own
        connections and no background duties.

        Heartbeats live there, so that a step which blocks the worker's loop cannot cost it its leases.
        """
        ...


class Services(Protocol):
    """What people ask of an engine, and ports on their behalf."""

    @property
    def workflows(self) -> WorkflowService: ...

    @property
    def admin(self) -> AdminService: ...

    @property
    def namespaces(self) -> NamespaceService: ...

    @property
    def versions(self) -> VersionService: ...

    @property
    def schedules(self) -> ScheduleService: ...

    @property
    def jobs(self) -> JobService: ...

    @property
    def limits(self) -> LimitService: ...

    async def health(self) -> Health:
        """Returns what `Engine.health` does."""
        ...


class ManagedEngine(Engine, Services, Protocol):
    """An engine that answers operators too, in process and across a wire alike."""


class HostedEngine(ManagedEngine, Protocol):
    """An engine that a server can host: it answers for workers that know no tokens."""

    @property
    def workflows(self) -> HostedWorkflows: ...

    @property
    def workers(self) -> HostedWorkers: ...

    @property
    def leases(self) -> LeaseService: ...

    @property
    def metrics(self) -> Metrics:
        """The counters of this engine and of the ports in front of it."""
        ...

    async def load(self) -> Load | None:
        """Returns how much work waits and how many workers there are for it, at most a few seconds old; None if the
        database does not answer."""
        ...

    @property
    def events(self) -> EventService: ...

    @property
    def page_tokens(self) -> PageTokens:
        """Makes and reads the page tokens of listings that a port divides into pages itself."""
        ...

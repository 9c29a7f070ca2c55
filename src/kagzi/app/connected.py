"""`Connected`: an app as far as it knows where runs live, and has the engine there open."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from kagzi import tracing
from kagzi.api.admin import AdminService
from kagzi.api.engine import Engine
from kagzi.api.jobs import JobService
from kagzi.api.limits import LimitService
from kagzi.api.schedules import ScheduleService
from kagzi.api.versions import VersionService
from kagzi.api.workflows import WorkflowService
from kagzi.app.audited import audited
from kagzi.app.place import Place, connect_to
from kagzi.clock import Clock, SystemClock
from kagzi.connect import default_url
from kagzi.core.failure import Redact
from kagzi.core.limits import check_name
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest
from kagzi.ids import IdSource, RandomIds
from kagzi.sdk.blocking import Portal
from kagzi.sdk.definitions import Registrar
from kagzi.sdk.opening import Opening
from kagzi.sdk.patience import patient
from kagzi.sdk.payload import Codec, Reader
from kagzi.settings import Loaded, Settings, load, mask_url

T = TypeVar("T")

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


_PATIENT: Final = ("create", "update", "delete", "trigger", "backfill")  # calls that engines repeat


class Connected(Registrar):
    def __init__(
        self,
        place: Place,
        *,
        codec: Codec | None,
        redact: Redact | None,
        clock: Clock | None,
        ids: IdSource | None,
    ) -> None:
        super().__init__(codec=codec, redact=redact)
        self._read_payload = Reader(codec)  # any payload of this app, as plain data
        self._url = place.url
        self._default_url: Callable[[], str | None] | None = None
        self._place = place
        self._namespace = place.namespace
        self._clock: Clock = clock or SystemClock()
        self._ids: IdSource = ids or RandomIds(self._clock.now)
        self._loaded: Loaded | None = None
        self._engine: Engine | None = None
        self._opening: Opening | None = None
        self._owns_engine = True
        self._tracer: Tracer | None = None
        self._engine_here = self.portal = Portal(self)
        self._home: str | None = None  # while it is open
        self._on_close: list[Callable[[], Awaitable[None]]] = []  # before the engine is

    @property
    def settings(self) -> Settings:
        """The settings of the environment and kagzi.toml, read once. Arguments of the app come before them."""
        return self._read_settings().settings

    def _read_settings(self) -> Loaded:
        if self._loaded is None:
            self._loaded = load()
        return self._loaded

    def override(self, loaded: Loaded, *, url: str | None = None, namespace: str | None = None) -> None:
        """Takes settings of a command line, which come before those in code. To be called before the app is opened."""
        self._loaded = loaded
        self._url = self._url if url is None else url
        self._namespace = self._namespace if namespace is None else check_name(namespace, "namespace")

    @property
    def url(self) -> str | None:
        """Where runs live; None: where the settings say, or the default."""
        if self._url is not None or self._default_url is None or self.settings.url or self.settings.db_url:
            return self._url
        return self._default_url()

    @url.setter
    def url(self, url: str | None) -> None:
        self._url = url

    def default_to(self, url: Callable[[], str | None], *, namespace: str | None = None) -> None:
        """Sets where runs live if neither code nor settings say so, for frameworks that know a database. It is asked
        when the app is opened, because tests may use another one than the program."""
        self._default_url = url
        if self._namespace is None and namespace is not None:
            self._namespace = check_name(namespace, "namespace")

    @property
    def namespace(self) -> str:
        return self.settings.namespace if self._namespace is None else self._namespace

    # Opening and closing.

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        """For code that cannot await: `with app: run = checkout.start_sync(...)`. The block is not needed, since the
        first blocking call opens the app; it says when to close it."""
        self.portal.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.portal.leave()

    async def open(self, engine: Engine | None = None) -> None:
        """Connect to where runs live; or use an engine that was opened already, and leave it open afterwards."""
        if self._opening is not None:
            self._opening.check()
        if self._engine is not None:
            raise InvalidRequest("this app is open already; one `async with app:` at a time is enough")
        opening = Opening()
        self._owns_engine = engine is None
        if engine is None:
            engine = connect_to(self._place, self.url, self._read_settings())
            await engine.open()
        self._engine = engine
        self._home = None
        self._opening = opening
        self._tracer = tracing.tracer()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.check()
        engine, self._engine, self._opening = self._engine, None, None
        for close in self._on_close:
            await close()
        if engine is not None and self._owns_engine:
            await engine.close()

    def forget(self) -> object:
        """Makes the app as if it had never been opened, in a process that was forked; returns what was open."""
        theirs, self._engine, self._opening = self._engine, None, None
        return theirs

    @property
    def engine(self) -> Engine:
        """The engine, for use in the event loop in which the app was opened."""
        engine, opening = self._engine, self._opening
        if engine is None or opening is None:
            raise InvalidRequest("this app is not open; use it inside `async with app:`")
        if asyncio._get_running_loop() is not opening.loop:
            opening.check()
        return engine

    def audited(self, name: str, service: T) -> T:
        """Returns the service, whose changes are audited if this program has the database itself: a server does so
        for those who call it."""
        engine = self._engine
        return audited(engine, name, service) if self._owns_engine and isinstance(engine, LocalEngine) else service

    @property
    def opening(self) -> Opening | None:
        """Where the app is open, and in which event loop; None if it is not."""
        return self._opening

    def _place_of(self, namespace: str) -> str:
        """Where runs live, for people."""
        url = default_url(self.settings, make=False) if self.url is None else self.url
        return f"namespace {namespace} of {mask_url(url)}"

    @property
    def home(self) -> str:
        """Names where runs live, the same in every process; empty if no other process can know."""
        if self._home is None:
            url = default_url(self.settings, make=False) if self.url is None else self.url
            shared = self._owns_engine and not url.startswith("memory:")
            self._home = blake2b(url.encode(), digest_size=16).hexdigest() if shared else ""
        return self._home

    @abstractmethod
    def stop_workers(self, *, wait: bool = False) -> None:
        """Drains the workers of this process, before the engine that they use is closed."""
        raise NotImplementedError

    # What only some engines have.

    def _job_service(self) -> JobService:
        jobs: JobService = self._service("jobs", "has no jobs")
        return jobs

    def _schedule_service(self) -> ScheduleService:
        schedules: ScheduleService = self._service("schedules", "has no schedules", but=_PATIENT)
        return schedules

    def _limit_service(self) -> LimitService:
        limits: LimitService = self._service("limits", "has no limits")
        return limits

    def _admin_service(self) -> AdminService:
        admin: AdminService = self._service("admin", "counts nothing")
        return admin

    def _version_service(self) -> VersionService:
        versions: VersionService = self._service("versions", "does not know versions")
        return versions

    def _service(self, name: str, without: str, but: Collection[str] = ()) -> Any:
        if getattr(self.engine, name, None) is None:
            raise InvalidRequest(f"this engine was made for a test and {without}")
        return self.audited(name, patient(lambda: getattr(self.engine, name), but=but))

    def _workflow_service(self) -> WorkflowService:
        return patient(lambda: self._engine_here().workflows)

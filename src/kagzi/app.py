"""`Kagzi`: the one object of a program. It registers workflows and steps, starts runs, and hosts workers.

There is no global state: a program may have several, a test makes its own. The URL chooses where runs live, and nothing
else in the program knows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import threading
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from msgspec.structs import replace

from kagzi import tracing
from kagzi.api.admin import AdminService
from kagzi.api.engine import Engine
from kagzi.api.jobs import JobService
from kagzi.api.limits import LimitService
from kagzi.api.operations import CancelRun, SendSignal, Started, StartRun, StartSignal
from kagzi.api.schedules import ScheduleService
from kagzi.api.versions import VersionService
from kagzi.api.workflows import RunFilter
from kagzi.clock import Clock, SystemClock
from kagzi.connect import connect, credentials_of, default_url, engine_settings, is_server
from kagzi.core.conflict import OnConflict
from kagzi.core.declaration import Declaration
from kagzi.core.duration import Duration, format_span, parse_duration
from kagzi.core.failed_run import FAILURE_HANDLER
from kagzi.core.health import Health
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE, DEFAULT_QUEUE, LONGEST_LEASE, SHORTEST_LEASE, check_name
from kagzi.core.options import names_its_options
from kagzi.core.page import Page
from kagzi.core.run import RunStatus
from kagzi.core.signal import MADE_KEY
from kagzi.core.worker import WorkflowType
from kagzi.engine.local import LocalEngine
from kagzi.errors import Conflict, InvalidRequest, NotFound
from kagzi.ids import IdSource, RandomIds, derived_run_id
from kagzi.owners import user_name
from kagzi.process import fewer_collections, new_event_loop
from kagzi.sdk.blocking import Portal, blocking, blocking_iteration, drive, refuse_blocking
from kagzi.sdk.context import SilentWhileReplaying
from kagzi.sdk.cron import declaration
from kagzi.sdk.definitions import Registrar, Workflow, WorkflowOptions
from kagzi.sdk.handle import Handle
from kagzi.sdk.jobs import Jobs, JobsHome
from kagzi.sdk.moments import instant_of
from kagzi.sdk.opening import Opening
from kagzi.sdk.payload import Codec, decode
from kagzi.sdk.queues import FlowHome, Limits, Queues
from kagzi.sdk.records import MoveRecord, RunRecord, VersionRecord, run_record, version_record
from kagzi.sdk.resources import Opens, Resource, Resources
from kagzi.sdk.schedules import Home, Schedules, schedule_options
from kagzi.sdk.search import Runs, search, status_of
from kagzi.sdk.signal_values import check_key, encode_signal
from kagzi.sdk.standalone import STANDALONE
from kagzi.sdk.unserved import Unserved
from kagzi.sdk.worker import forks
from kagzi.sdk.worker.bodies import current_step
from kagzi.sdk.worker.ctrl_c import ctrl_c_calls
from kagzi.sdk.worker.heartbeat import HeartbeatThread
from kagzi.sdk.worker.member import Member, member
from kagzi.sdk.worker.processes import check_shared, process_count, run_processes
from kagzi.sdk.worker.threads import DaemonExecutor
from kagzi.sdk.worker.worker import Worker, WorkerSettings
from kagzi.settings import Loaded, Settings, load, mask_url
from kagzi.store.drivers import is_async

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from kagzi.mount import Mounted

R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("kagzi")

MOST_AT_ONCE = 10_000
MOST_CRASHES = 1_000_000
_STOPS = (signal.SIGTERM, signal.SIGINT)
_LAST_WORDS_SECONDS = 5.0  # after a second signal


class Kagzi(Registrar):
    """A durable application.

    `url` says where runs live: `sqlite:///orders.db`, `postgresql://…` or `memory://`; without one it is KAGZI_URL, or
    an SQLite file in `./.kagzi/`. `key` is the API key for a server; it is better kept in KAGZI_AUTH_KEY. What is not
    given here, `namespace` and `lease` too, comes from the settings (see docs/settings.md), which are read when the app
    is opened. Use it as `async with app:` to start runs and to host workers, or call `app.run_worker()` to make this
    process a worker.
    """

    @names_its_options
    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        key: str | None = None,
        codec: Codec | None = None,
        lease: Duration | None = None,
        max_crashes: int | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        super().__init__(codec=codec)
        self.url = url
        self._key = key
        self._namespace = None if namespace is None else check_name(namespace, "namespace")
        self._clock: Clock = clock or SystemClock()
        self._ids: IdSource = ids or RandomIds(self._clock.now)
        self._lease = None if lease is None else _lease(lease)
        self._max_crashes = None if max_crashes is None else _crashes(max_crashes)
        if lease is not None and is_server(url):
            raise InvalidRequest(
                "the server decides how long leases last; leave `lease` out, and set "
                "KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS for the server"
            )
        if max_crashes is not None and is_server(url):
            raise InvalidRequest(
                "the server decides when to give up a run that kills its workers, which is after 10 crashes; leave "
                "`max_crashes` out"
            )
        self._loaded: Loaded | None = None
        self._engine: Engine | None = None
        self._opening: Opening | None = None
        self._owns_engine = True
        self._tracer: Tracer | None = None
        self._stops: dict[threading.Thread, Callable[[], object]] = {}  # of each `run_worker`
        self._engine_here = self.portal = Portal(self)
        self._resources = Resources()
        self._mounts: list[Mounted] = []
        self._workers_here = 0
        self._unserved = Unserved(self._engine_here, self._place_of, self._clock)
        self.jobs = Jobs(
            JobsHome(
                namespace=lambda: self.namespace,
                service=self._job_service,
                schedules=self._schedule_service,
                new_id=self._ids.run_id,
                user=user_name,
                read=self._read_payload,
                portal=self.portal,
            )
        )
        self.schedules = Schedules(
            Home(
                portal=self.portal,
                namespace=lambda: self.namespace,
                service=self._schedule_service,
                new_run_id=self._ids.run_id,
                handle=lambda run_id: self.handle(run_id),
                read=self._read_payload,
                now=self._clock.now,
            )
        )

        flow = FlowHome(
            namespace=lambda: self.namespace, service=self._limit_service, admin=self._admin_service, user=user_name
        )
        self.queues = Queues(flow)
        self.limits = Limits(flow)

    @property
    def settings(self) -> Settings:
        """What the environment and kagzi.toml say, read once. What the app was given itself comes before it."""
        return self._read_settings().settings

    def _read_settings(self) -> Loaded:
        if self._loaded is None:
            self._loaded = load()
        return self._loaded

    def override(self, loaded: Loaded, *, url: str | None = None, namespace: str | None = None) -> None:
        """What a command line says comes before what code says; before the app is opened."""
        self._loaded = loaded
        self.url = self.url if url is None else url
        self._namespace = self._namespace if namespace is None else check_name(namespace, "namespace")

    @property
    def namespace(self) -> str:
        return self.settings.namespace if self._namespace is None else self._namespace

    # Opening and closing.

    async def __aenter__(self) -> Kagzi:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Kagzi:
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
            url = default_url(self.settings) if self.url is None else self.url
            chosen = engine_settings(self.settings)
            # What follows may be right elsewhere, since the code names no server here.
            if self._max_crashes is not None:
                chosen["max_crashes"] = self._max_crashes
                if is_server(url):
                    logger.warning("max_crashes in code has no effect: the server gives a run up after 10 crashes")
            if self._lease is not None:
                chosen["lease"] = self._lease
                if is_server(url):
                    logger.warning(
                        "the lease of %s in code has no effect: the server decides how long leases last",
                        format_span(self._lease),
                    )
            engine = connect(
                url,
                retention_days=self.settings.retention_days,
                listen_url=self.settings.listen_url,
                credentials=credentials_of(self._read_settings(), url=self.url, key=self._key),
                **chosen,
            )
            await engine.open()
        self._engine = engine
        self._opening = opening
        self._tracer = tracing.tracer()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.check()
        engine, self._engine, self._opening = self._engine, None, None
        for mounted in self._mounts:
            await mounted.close()
        if engine is not None and self._owns_engine:
            await engine.close()

    def forget(self) -> object:
        """Be as if the app had never been opened, in a process that was forked; returns what was open."""
        theirs, self._engine, self._opening = self._engine, None, None
        self._stops = {}
        return theirs

    @property
    def engine(self) -> Engine:
        """The engine, for use in the event loop in which the app was opened."""
        if self._engine is None or self._opening is None:
            raise InvalidRequest("this app is not open; use it inside `async with app:`")
        self._opening.check()
        return self._engine

    @property
    def opening(self) -> Opening | None:
        """Where the app is open, and in which event loop; None if it is not."""
        return self._opening

    def _place_of(self, namespace: str) -> str:
        """Where runs live, for people."""
        url = default_url(self.settings, make=False) if self.url is None else self.url
        return f"namespace {namespace} of {mask_url(url)}"

    # Starting and finding runs.

    async def start_run(
        self,
        workflow: Workflow[Any, R],
        options: WorkflowOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        awaited: bool = False,
    ) -> Handle[R]:
        """What `workflow.start(...)` does, and `workflow.run(...)` before it waits."""
        engine = self.engine
        start = self._start_of(workflow, options, args, kwargs)
        if options.connection is not None:
            workflows = _joinable(engine, options).workflows
            started = await workflows.start_in(options.connection, await workflows.admit(start))
            return self._handle_of(workflow, start.namespace, started)
        try:
            if (tracer := self._tracer) is None:
                started = await engine.workflows.start(start, awaited=awaited)
            else:
                started = await _start_traced(tracer, engine, start)
        except Conflict:
            if self._codec is None or not (same := await self._find_same(engine, start, self._codec)):
                raise
            started = Started(run_id=same, already_exists=True)
        return self._handle_of(workflow, start.namespace, started)

    def start_run_here(
        self, workflow: Workflow[Any, R], options: WorkflowOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Handle[R]:
        """What `workflow.start_sync(...)` does with a connection: on the thread of the caller, to which many drivers
        bind it."""
        if is_async(options.connection):
            raise InvalidRequest(
                "connection= is an async one, which blocking code cannot use: `await` the start with it"
            )
        start = self._start_of(workflow, options, args, kwargs)

        async def admit() -> tuple[LocalEngine, StartRun]:
            engine = _joinable(self.engine, options)
            return engine, await engine.workflows.admit(start)

        engine, admitted = self.portal.wait("start_sync()", "`await workflow.start(...)`", admit)
        started = drive(engine.workflows.start_in(options.connection, admitted))
        return self._handle_of(workflow, start.namespace, started)

    def _start_of(
        self, workflow: Workflow[Any, Any], options: WorkflowOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StartRun:
        namespace = options.namespace or self.namespace
        handler = options.on_failure or workflow.on_failure
        start = StartRun(
            namespace=namespace,
            run_id=self._ids.run_id(),
            workflow_type=workflow.name,
            task_queue=options.queue or workflow.queue or DEFAULT_QUEUE,
            version=options.version or workflow.version,
            input=workflow.signature.encode_arguments(args, kwargs),
            external_id=options.id,
            priority=options.priority,
            delay=0 if options.delay is None else parse_duration(options.delay, "delay"),
            start_at=None if options.start_at is None else instant_of(options.start_at, "start_at"),
            timeout=_optional_span(options.timeout if options.timeout is not None else workflow.timeout, "timeout"),
            deadline_at=None if options.deadline is None else instant_of(options.deadline, "deadline"),
            retry_policy=None if options.retry is None else options.retry.encode(),
            on_failure=None if handler is None else handler.name,
            on_failure_queue=None if handler is None else handler.queue,
            tags=options.tags,
            on_conflict=OnConflict.RETURN if options.on_conflict is None else OnConflict(options.on_conflict),
        )
        return start if options.signal is None else self._with_signal(start, options)

    def _handle_of(self, workflow: Workflow[Any, R], namespace: str, started: Started) -> Handle[R]:
        return Handle(
            self._engine_here,
            namespace,
            started.run_id,
            workflow.signature.decode_result,
            self._read_payload,
            self._ids,
            self._unserved,
            encode_input=self._encode_input,
            codec=self._codec,
            already_exists=started.already_exists,
            end=started.end,
        )

    def _with_signal(self, start: StartRun, options: WorkflowOptions) -> StartRun:
        """The same start with what the run is told. Without a choice, a run that has finished is started again."""
        signal = options.signal
        assert signal is not None
        told = StartSignal(
            name=signal.name,
            value=encode_signal(signal.name, signal.value, self._codec),
            key=check_key(signal.key, self._ids.token()),
        )
        choice = OnConflict.RESTART_FINISHED if options.on_conflict is None else start.on_conflict
        return replace(start, signal=told, on_conflict=choice)

    async def cancel_child(self, run_id: str) -> bool:
        request = CancelRun(namespace=current_step.get().namespace, run_id=run_id)
        try:
            return (await self.engine.workflows.cancel(request)).effective
        except NotFound:  # it has finished so long ago that it was deleted, or could not be started
            return False

    async def signal_child(self, run_id: str, name: str, value: str) -> None:
        step = current_step.get()
        data = value.encode()
        await self.engine.workflows.signal(
            SendSignal(
                namespace=step.namespace,
                run_id=run_id,
                name=name,
                value=data if self._codec is None else self._codec.encode(data),
                # The same in every attempt of this step, so that a repeat is no second signal.
                key=MADE_KEY + derived_run_id(0, step.run_id, step.step_id),
            )
        )

    async def _find_same(self, engine: Engine, start: StartRun, codec: Codec) -> str | None:
        """The run that has this start's id, if it differs only in the bytes the codec made of the same input."""
        if start.external_id is None:
            return None
        run = await engine.workflows.get_by_external_id(start.namespace, start.external_id)
        if run.workflow_type != start.workflow_type:
            return None
        with contextlib.suppress(Exception):  # another key, or no codec at all: then it is another input
            if codec.decode(run.input) == codec.decode(start.input) and start.on_conflict is not OnConflict.FAIL:
                return run.run_id
        return None

    @overload
    def handle(self, run_id: str) -> Handle[Any]: ...
    @overload
    def handle(self, run_id: str, workflow: Workflow[Any, R]) -> Handle[R]: ...
    def handle(self, run_id: str, workflow: Workflow[Any, Any] | None = None) -> Handle[Any]:
        """A handle on a run by its id. Give the workflow to have its result decoded to the right type."""
        if _get_running_loop() is not None:
            self._engine_here()  # an app that is not open says so here; blocking code opens it when it needs it
        decode_result = self._read_payload if workflow is None else workflow.signature.decode_result
        return Handle(
            self._engine_here,
            self.namespace,
            run_id,
            decode_result,
            self._read_payload,
            self._ids,
            self._unserved,
            encode_input=self._encode_input,
            codec=self._codec,
        )

    def _encode_input(self, name: str, version: str, arguments: tuple[Any, ...] | Mapping[str, Any]) -> bytes:
        """Arguments of a workflow of this app, checked as a start checks them."""
        workflow = self.find_workflow(name, version)
        if workflow is None:
            raise InvalidRequest(
                f"this app has no workflow {name} of version {version}, so it cannot tell whether the input fits; "
                "register it, or use `kagzi runs fork --input`"
            )
        if isinstance(arguments, Mapping):
            return workflow.signature.encode_arguments((), arguments)
        if not isinstance(arguments, tuple):
            raise InvalidRequest(f"input must be a tuple of arguments, or a dict by name, not {arguments!r:.100}")
        return workflow.signature.encode_arguments(arguments, {})

    def _read_payload(self, data: bytes) -> Any:
        """Any payload of this app as plain data."""
        return decode(data if self._codec is None else self._codec.decode(data))

    async def signal(self, id: str, name: str, value: Any = None, *, key: str | None = None) -> None:
        """Tell the run that has this id something: `await app.signal("order-42", "approved", True)`.

        The id is the one given at the start (`.options(id=...)`); see `Handle.signal`. NotFound if no run has it.
        """
        engine = self._engine_here()
        await engine.workflows.signal(
            SendSignal(
                namespace=self.namespace,
                external_id=check_name(id, "id"),
                name=check_name(name, "signal name"),
                value=encode_signal(name, value, self._codec),
                key=check_key(key, self._ids.token()),
            )
        )

    @overload
    async def find(self, id: str) -> Handle[Any]: ...
    @overload
    async def find(self, id: str, workflow: Workflow[Any, R]) -> Handle[R]: ...
    async def find(self, id: str, workflow: Workflow[Any, Any] | None = None) -> Handle[Any]:
        """The run that was started with this id (`.options(id=...)`); NotFound if there is none.

        Give the workflow to have its result decoded to the right type; InvalidRequest if the run is of another one.
        """
        run = await self.engine.workflows.get_by_external_id(self.namespace, id)
        if workflow is None:
            workflow = self.find_workflow(run.workflow_type, run.version)
        elif workflow.name != run.workflow_type:
            raise InvalidRequest(f"the run with the id {id!r} is of workflow {run.workflow_type}, not {workflow.name}")
        return self.handle(run.run_id) if workflow is None else self.handle(run.run_id, workflow)

    @names_its_options
    async def runs(
        self,
        *,
        status: RunStatus | str | None = None,
        workflow: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        page_token: str | None = None,
    ) -> Page[RunRecord]:
        """One page of runs, newest first; `page.next` and `page.prev` are the tokens of its neighbours. `parent`: the
        run id of the one that has started them.

        A filter looks at 20,000 runs at a time: a page may be short, or empty, and still have a neighbour."""
        filter = RunFilter(
            namespace=self.namespace,
            status=status_of(status),
            workflow_type=workflow,
            task_queue=queue,
            parent_run_id=parent,
        )
        page = await self.engine.workflows.list(filter, page_size=page_size, page_token=page_token)
        records = tuple([run_record(run, self._read_payload) for run in page.items])
        return Page(records, page.next, page.prev, page.searched_until)

    @names_its_options
    def search(
        self,
        *,
        status: RunStatus | str | None = None,
        workflow: str | Workflow[Any, Any] | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        tag: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        id_prefix: str | None = None,
        error: str | type[BaseException] | None = None,
        parent: str | None = None,
        schedule: str | None = None,
    ) -> AsyncIterator[RunRecord]:
        """Runs that all of this is true of, newest first: `async for run in app.search(tags={"batch": "7"}): ...`.

        It goes on by itself to the last of them, a page at a time. `since` and `until` are about when a run was
        started, `error` is the class of the error that ended it; see `kagzi.Runs`.
        """
        runs = Runs(
            status=status,
            workflow=workflow,
            queue=queue,
            tags=tags,
            tag=tag,
            since=since,
            until=until,
            id_prefix=id_prefix,
            error=error,
            parent=parent,
            schedule=schedule,
        )
        engine = self._engine_here()
        return search(engine.workflows, runs, self.namespace, self._schedule_service, self._read_payload)

    async def versions(self, workflow: str | Workflow[Any, Any] | None = None) -> tuple[VersionRecord, ...]:
        """The versions of a workflow, or of all: which one starts by name get, which have workers online, and how many
        runs need each. At most 1,000, by workflow, the newest first."""
        found = await self._versions().list(self.namespace, None if workflow is None else _name_of(workflow))
        return tuple([version_record(each) for each in found.items])

    async def set_default_version(
        self, workflow: str | Workflow[Any, Any], version: str | None, *, force: bool = False
    ) -> None:
        """Choose the version that starts by name get: commands, HTTP, clients that name none. None: the one that
        workers offered last again. Starts in Python name the version of the workflow they are called on.

        It counts everywhere within a second. InvalidRequest if no worker has ever offered it, unless `force` is given.
        """
        await self._versions().set_default(self.namespace, _name_of(workflow), version, force=force)

    async def move_runs(
        self,
        workflow: str | Workflow[Any, Any],
        *,
        from_version: str,
        to_version: str,
        dry_run: bool = False,
        force: bool = False,
    ) -> MoveRecord:
        """Have runs of a workflow go on in another version: those that wait or sleep. What a worker holds is left
        alone; `running` of the answer counts it, and a second call moves what has let go meanwhile. Their recorded
        steps stay, so the other version must be able to replay them. A dry run counts and changes nothing.

        InvalidRequest if no worker has ever offered the version, unless `force` is given.
        """
        name, moved, after = _name_of(workflow), 0, ""
        while True:
            page = await self._versions().move(
                self.namespace, name, from_version, to_version, dry_run=dry_run, force=force, after=after
            )
            moved += page.moved
            if page.after is None:
                break
            after = page.after
        running = [each.running for each in await self.versions(name) if each.version == from_version]
        return MoveRecord(moved=moved, running=sum(running))

    def _job_service(self) -> JobService:
        jobs: JobService | None = getattr(self.engine, "jobs", None)
        if jobs is None:
            raise InvalidRequest("this engine was made for a test and has no jobs")
        return jobs

    def _schedule_service(self) -> ScheduleService:
        schedules: ScheduleService | None = getattr(self.engine, "schedules", None)
        if schedules is None:
            raise InvalidRequest("this engine was made for a test and has no schedules")
        return schedules

    def _limit_service(self) -> LimitService:
        limits: LimitService | None = getattr(self.engine, "limits", None)
        if limits is None:
            raise InvalidRequest("this engine was made for a test and has no limits")
        return limits

    def _admin_service(self) -> AdminService:
        admin: AdminService | None = getattr(self.engine, "admin", None)
        if admin is None:
            raise InvalidRequest("this engine was made for a test and counts nothing")
        return admin

    def _versions(self) -> VersionService:
        versions: VersionService | None = getattr(self.engine, "versions", None)
        if versions is None:
            raise InvalidRequest("this engine was made for a test and does not know versions")
        return versions

    async def health(self) -> Health:
        """How well the database, its migrations, the background duties and the workers are: `health.status` is
        healthy, degraded or unhealthy, `health.components` say why."""
        return await self.engine.health()

    async def metrics(self) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type, for a page of your own (see docs/observability.md):
        `body, content_type = await app.metrics()`."""
        engine = self.engine
        if not isinstance(engine, LocalEngine):
            raise InvalidRequest("this app uses a server, which counts for all of its clients: read /metrics there")
        from kagzi.metrics.exposition import render

        return await render(engine)

    # For code that cannot await.

    signal_sync = blocking(signal)
    runs_sync = blocking(runs)
    search_sync = blocking_iteration(search)
    versions_sync = blocking(versions)
    set_default_version_sync = blocking(set_default_version)
    move_runs_sync = blocking(move_runs)
    health_sync = blocking(health)
    metrics_sync = blocking(metrics)
    if TYPE_CHECKING:  # what checkers cannot infer from the overloads

        @overload
        def find_sync(self, id: str) -> Handle[Any]: ...
        @overload
        def find_sync(self, id: str, workflow: Workflow[Any, R]) -> Handle[R]: ...
        def find_sync(self, id: str, workflow: Workflow[Any, Any] | None = None) -> Handle[Any]: ...

    else:
        find_sync = blocking(find)

    # Workers.

    @names_its_options
    @contextlib.asynccontextmanager
    async def worker(
        self,
        *,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        concurrency: int = 100,
        threads: int = 32,
        grace: Duration = "25s",
        adopt: bool = True,
        strict: bool = False,
    ) -> AsyncIterator[Worker]:
        """A worker inside this process, for as long as the block lasts: `async with app, app.worker(): ...`."""
        settings = self._worker_settings(
            queues=queues, concurrency=concurrency, threads=threads, grace=grace, adopt=adopt, strict=strict
        )
        async with self._hosted(self._make_worker(settings)) as worker:
            yield worker

    @contextlib.contextmanager
    def worker_sync(
        self,
        *,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        concurrency: int = 100,
        threads: int = 32,
        grace: Duration = "25s",
        adopt: bool = True,
        strict: bool = False,
    ) -> Iterator[Worker]:
        """A worker inside this process, for code that cannot await: `with app, app.worker_sync(): ...`."""
        hosted = self.worker(
            queues=queues, concurrency=concurrency, threads=threads, grace=grace, adopt=adopt, strict=strict
        )
        with self.portal.hold("app.worker_sync()", "`async with app.worker():`", hosted) as worker:
            yield worker

    @names_its_options
    def run_worker(
        self,
        *,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        concurrency: int = 100,
        threads: int = 32,
        grace: Duration = "25s",
        strict: bool = False,
        processes: int | Literal["auto"] = 1,
    ) -> None:
        """Make this process a worker until it gets SIGTERM or SIGINT or an operator drains it, then drain and return.

        The first signal lets running steps finish within the grace time and hands everything else back at once; the
        second one stops running steps and hands their runs back, too. A server that refuses this worker's key for as
        long as a lease ends it with that error.

        With `processes` this one starts the program so many times anew, each of which comes here and is a worker, and
        looks after them (see docs/worker-processes.md); "auto" is one for each core.

        In a thread, which gets no signals, it returns when `app.stop_workers()` is called or the app is closed: make it
        a daemon, `threading.Thread(target=app.run_worker, daemon=True)`, and the end of the program drains it, too.
        """
        ours = member()
        with contextlib.nullcontext() if ours is None else ours.telling():
            settings = self._worker_settings(
                queues=queues, concurrency=concurrency, threads=threads, grace=grace, adopt=True, strict=strict
            )
            count = process_count(processes)
            if (loop_here := _get_running_loop()) is not None:
                refuse_blocking(loop_here, "app.run_worker()", "`async with app.worker():`")
            url = default_url(self.settings, make=False) if self.url is None else self.url
            if ours is not None:
                check_shared(url)
                self._run_worker(replace(settings, labels=ours.labels), ours)
            elif count == 1:
                self._run_worker(settings, None)
            elif threading.current_thread() is not threading.main_thread():
                raise InvalidRequest("processes= is for the main thread, which passes signals on to them")
            elif code := run_processes(count, slots=concurrency, url=url, clock=self._clock, ids=self._ids):
                sys.exit(code)

    def _run_worker(self, settings: WorkerSettings, ours: Member | None) -> None:
        thread = threading.current_thread()
        signalled = thread is threading.main_thread()
        # Blocking code of this process uses the app, too, or may begin to at any moment.
        shared = self._opening is not None or not signalled
        began: list[Callable[[int], object]] = []

        async def main() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._stops[thread] = lambda: loop.call_soon_threadsafe(stop.set)
            try:
                await work(stop, loop)
            finally:
                del self._stops[thread]

        async def work(stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
            task = asyncio.current_task()
            workers: list[Worker] = []
            signals = 0

            def on_signal(number: int) -> None:
                nonlocal signals
                signals += 1
                for worker in workers:
                    worker.shortcut = f"{'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name} again"
                stop.set()
                if signals == 2:
                    logger.warning("%s again: stopping now", signal.Signals(number).name)
                    for worker in workers:
                        worker.hurry()
                    if task is not None:
                        loop.call_later(_LAST_WORDS_SECONDS, task.cancel)
                elif signals > 2 and task is not None:
                    task.cancel()

            def parent_gone(channel: int) -> None:
                logger.warning("the process that has started this worker is gone: draining")
                loop.remove_reader(channel)
                stop.set()

            began.append(lambda number: loop.call_soon_threadsafe(on_signal, number))
            for number in _STOPS if signalled and not shared else ():
                with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
                    loop.add_signal_handler(number, on_signal, number)
            if ours is not None:
                loop.add_reader(ours.channel.fileno(), parent_gone, ours.channel.fileno())
            async with contextlib.AsyncExitStack() as stack:
                if not shared:
                    await stack.enter_async_context(self)
                hosted = await stack.enter_async_context(self._hosted(self._make_worker(settings)))
                workers.append(hosted)
                told = loop.create_task(_when_told(hosted.told_to_stop, stop))
                await stop.wait()
                told.cancel()
                if hosted.refusal is not None:
                    if ours is not None:
                        ours.tell_refused()
                    raise hosted.refusal

        if signalled:
            forks.keep_from_children(_STOPS)
        if shared:
            with _signals_go_to(began) if signalled else contextlib.nullcontext():
                self.portal.run("app.run_worker()", "`async with app.worker():`", main)
            return
        if signalled:
            gc.freeze()  # what the program has loaded by now stays
        with contextlib.suppress(asyncio.CancelledError):
            _run(main())

    def stop_workers(self, *, wait: bool = False) -> None:
        """Have every `run_worker()` of this process drain and return, in whichever thread it is. Of any thread."""
        for thread, stop in list(self._stops.items()):
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                stop()
            if wait and thread is not threading.current_thread():
                thread.join()

    # At home in other programs.

    def resource(self, fn: Opens[T], /) -> Resource[T]:
        """Make a function something that is opened once for each worker, such as a pool of connections.

        It yields what it opens and closes it afterwards, `def` or `async def`; in steps, calling it gives what is open:

            @app.resource
            async def pool() -> AsyncIterator[asyncpg.Pool]:
                async with asyncpg.create_pool(...) as pool:
                    yield pool

            @app.step
            async def save(order: Order) -> None:
                await pool().execute(...)
        """
        made: Resource[T] = self._resources.add(fn)
        return made

    def resources(self) -> contextlib.AbstractAsyncContextManager[None]:
        """The resources of this app, open for as long as the block lasts: for tests, and for code beside a worker."""
        return self._resources.opened()

    @names_its_options
    def lifespan(
        self,
        inner: Callable[[Any], contextlib.AbstractAsyncContextManager[Any]] | None = None,
        /,
        *,
        worker: bool = False,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        concurrency: int = 100,
        threads: int = 32,
        grace: Duration = "25s",
        strict: bool = False,
    ) -> Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]:
        """For web frameworks: opens the app when a server starts, with a worker if told so, drains and closes it when
        that stops. `FastAPI(lifespan=app.lifespan(worker=True))`; Starlette the same, Litestar takes a list.

        `inner` is a lifespan that you have already: it is entered when the app is open and left when the worker has
        drained, so that steps may use what it opens. In a process where the app is open already, as in `kagzi worker`,
        nothing is opened and no second worker is started.
        """
        settings = None
        if worker:
            settings = self._worker_settings(
                queues=queues, concurrency=concurrency, threads=threads, grace=grace, adopt=True, strict=strict
            )

        @contextlib.asynccontextmanager
        async def scope(api: Any) -> AsyncIterator[Any]:
            async with contextlib.AsyncExitStack() as stack:
                if self._opening is None:
                    await stack.enter_async_context(self)
                state = None if inner is None else await stack.enter_async_context(inner(api))
                if settings is not None and not self._workers_here:
                    await stack.enter_async_context(self._hosted(self._make_worker(settings)))
                yield state

        return scope

    @names_its_options
    def asgi(self, *, insecure: bool = False, read_only: bool | None = None) -> Mounted:
        """The HTTP API and the dashboard, to be mounted in a web app of your own: `api.mount("/kagzi", app.asgi())`.

        Who may come is decided by API keys (docs/security.md). While there are none, only this machine is answered;
        `insecure` lets everybody in whom your own code lets through. `read_only`: no form changes anything; else what
        KAGZI_UI_READ_ONLY says.
        """
        from kagzi.mount import Mounted  # programs without it need no web server

        mounted = Mounted(
            self.portal,
            lambda: self.settings,
            clock=self._clock,
            ids=self._ids,
            insecure=insecure,
            read_only=read_only,
        )
        self._mounts.append(mounted)
        return mounted

    @contextlib.asynccontextmanager
    async def _hosted(self, worker: Worker) -> AsyncIterator[Worker]:
        self._workers_here += 1
        try:
            async with self._resources.opened(), self._executing(worker):
                yield worker
        finally:
            self._workers_here -= 1

    @contextlib.asynccontextmanager
    async def _executing(self, worker: Worker) -> AsyncIterator[Worker]:
        silent = SilentWhileReplaying()
        handlers = list(logging.getLogger().handlers)
        for handler in handlers:
            handler.addFilter(silent)
        try:
            with fewer_collections():
                await worker.start()
                try:
                    yield worker
                finally:
                    with ctrl_c_calls(worker.hurry) as shortcut:
                        worker.shortcut = worker.shortcut or shortcut
                        await worker.stop()
        finally:
            for handler in handlers:
                handler.removeFilter(silent)

    def _worker_settings(
        self,
        *,
        queues: Sequence[str],
        concurrency: int,
        threads: int,
        grace: Duration,
        adopt: bool,
        strict: bool,
    ) -> WorkerSettings:
        """Checked before anything is connected to."""
        if isinstance(queues, str):
            raise InvalidRequest(f"queues must be a list of names, for example queues=[{queues!r:.100}]")
        if not isinstance(queues, Iterable):
            raise InvalidRequest(f'queues must be a list of names, for example queues=["default"], not {queues!r:.100}')
        names = tuple(check_name(queue, "queue") for queue in queues)
        if not names:
            raise InvalidRequest("a worker needs at least one queue")
        counts: tuple[tuple[str, object], ...] = (("concurrency", concurrency), ("threads", threads))
        for field, value in counts:
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_AT_ONCE:
                raise InvalidRequest(f"{field} must be a whole number from 1 to {MOST_AT_ONCE:,}, not {value!r:.100}")
        if not self.workflow_types():
            raise InvalidRequest("this app has no workflows; decorate a function with @app.workflow first")
        return WorkerSettings(
            queues=names,
            concurrency=concurrency,
            threads=threads,
            grace=parse_duration(grace, "grace"),
            adopt=adopt,
            strict=strict,
            poll_wait=round(self.settings.worker_poll_timeout_secs * SECOND),
            payload_limit=self.settings.payload_max_size_bytes,
            schedules=self.declared_schedules(),
        )

    def _make_worker(self, settings: WorkerSettings) -> Worker:
        return Worker(
            self.engine,
            self,
            namespace=self.namespace,
            clock=self._clock,
            ids=self._ids,
            settings=settings,
            heart=HeartbeatThread,
        )

    def find_workflow(self, name: str, version: str) -> Workflow[Any, Any] | None:
        if name == STANDALONE:
            return self.standalone if version == self.standalone.version else None
        return self._workflows.get((name, version))

    def declared_schedules(self) -> tuple[Declaration, ...]:
        """What `@app.workflow(schedule=...)` says, for the workers of this app."""
        return tuple(
            [
                declaration(
                    cron,
                    workflow.name,
                    workflow.signature.with_codec(None).encode_arguments(cron.args, cron.kwargs),
                    workflow.signature.encode_arguments(cron.args, cron.kwargs),
                    schedule_options(workflow),
                )
                for workflow, cron in self._crons.values()
            ]
        )

    def workflow_types(self) -> tuple[WorkflowType, ...]:
        return tuple(
            WorkflowType(name, version, self._workflows[name, version].queue if name == FAILURE_HANDLER else None)
            for name, version in sorted(self._workflows)
        ) + ((WorkflowType(STANDALONE, self.standalone.version),) if self._steps else ())


def _joinable(engine: Engine, options: WorkflowOptions) -> LocalEngine:
    if options.signal is not None:
        raise InvalidRequest(
            "connection= and a signal do not go together: start the run in the transaction, and send the signal after "
            "the commit. Nothing was written"
        )
    if not isinstance(engine, LocalEngine):
        raise InvalidRequest(
            "connection= needs the database itself, and this app uses a server: start the run after the commit with an "
            "id, or open an app with the URL of the database. Nothing was written"
        )
    return engine


def _name_of(workflow: object) -> str:
    if isinstance(workflow, Workflow):
        return str(workflow.name)
    if not isinstance(workflow, str):
        raise InvalidRequest(f"workflow must be a workflow or the name of one, not {workflow!r:.100}")
    return check_name(workflow, "workflow")


def _crashes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CRASHES:
        raise InvalidRequest(f"max_crashes must be a whole number from 1 to {MOST_CRASHES:,}, not {value!r:.100}")
    return value


def _lease(lease: Duration) -> Span:
    span = parse_duration(lease, "lease")
    if not SHORTEST_LEASE <= span <= LONGEST_LEASE:
        shortest, longest = format_span(SHORTEST_LEASE), format_span(LONGEST_LEASE)
        raise InvalidRequest(f"lease must be between {shortest} and {longest}, not {lease!r:.100}")
    return span


def _optional_span(value: Duration | None, field: str) -> int | None:
    if value is None:
        return None
    span = parse_duration(value, field)
    if span == 0:
        raise InvalidRequest(f"{field} must be longer than 0, not {value!r:.100}")
    return span


@contextlib.contextmanager
def _signals_go_to(receivers: Sequence[Callable[[int], object]]) -> Iterator[None]:
    """Has signals that ask this process to stop told to the event loop of another thread."""

    def forward(number: int, _: object) -> None:
        if not receivers:
            raise KeyboardInterrupt
        for tell in receivers:
            tell(number)

    before = {number: signal.signal(number, forward) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


async def _when_told(told: asyncio.Event, stop: asyncio.Event) -> None:
    await told.wait()
    stop.set()


async def _start_traced(tracer: Tracer, engine: Engine, start: StartRun) -> Started:
    about = {"kagzi.run_id": start.run_id, "kagzi.namespace": start.namespace, "kagzi.queue": start.task_queue}
    with tracing.starting(tracer, start.workflow_type, about) as span:
        return await engine.workflows.start(replace(start, trace_context=tracing.context_of(span)))


def _run(main: Coroutine[Any, Any, None]) -> None:
    """asyncio.run, on our event loop; but a step that will not end, as a task that swallows its cancellation or in a
    thread, does not keep the process alive."""
    runner = asyncio.Runner(loop_factory=new_event_loop)
    loop = runner.get_loop()
    loop.set_default_executor(DaemonExecutor())
    try:
        runner.run(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        if stubborn := [task for task in left if not task.done()]:
            logger.warning("%d tasks do not end although they were cancelled; leaving without them", len(stubborn))
        else:
            runner.close()

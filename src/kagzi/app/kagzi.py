"""`Kagzi`: an app as users make it. To what the layers below do it adds workers, in programs of all kinds."""

from __future__ import annotations

import contextlib
import sys
import threading
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from msgspec.structs import replace

from kagzi.api.transactions import check_engine
from kagzi.api.workers import DeclaredLimit, smaller
from kagzi.app.client import Client
from kagzi.app.hosting import HostedWorker, check_count, checked_queues, executing
from kagzi.app.place import checked_place
from kagzi.clock import Clock
from kagzi.connect import default_url
from kagzi.core.declaration import Declaration
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.failure import Redact
from kagzi.core.instant import SECOND
from kagzi.core.lineage import schedule_input
from kagzi.core.options import names_its_options
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest
from kagzi.ids import IdSource
from kagzi.sdk.blocking import blocking, blocking_block, blocking_iteration, refuse_blocking
from kagzi.sdk.cron import declaration
from kagzi.sdk.definitions import Workflow
from kagzi.sdk.handle import Handle
from kagzi.sdk.limits import limit_of
from kagzi.sdk.payload import Codec
from kagzi.sdk.resources import Opens, Resource, Resources
from kagzi.sdk.schedules import schedule_options
from kagzi.sdk.worker.heartbeat import HeartbeatThread
from kagzi.sdk.worker.member import Member, member
from kagzi.sdk.worker.process_references import check_importable
from kagzi.sdk.worker.processes import check_shared, process_count, run_processes
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.sdk.worker.worker import Worker

if TYPE_CHECKING:
    from starlette.requests import Request

    from kagzi.mount import Mounted

R = TypeVar("R")
T = TypeVar("T")


class Kagzi(Client):
    """A durable application.

    `url` says where runs live: `sqlite:///orders.db`, `postgresql://…` or `memory://`; without one it is KAGZI_URL, or
    an SQLite file in `./.kagzi/`. `codec` is a layer around payloads and errors, `redact` is called with each error
    before it is stored (see docs/payloads.md). `key` is the API key for a server; it is better kept in KAGZI_AUTH_KEY.
    What is not given here, `namespace` and `lease` too, comes from the settings (see docs/settings.md), which are read
    when the app is opened. `engine` is one of SQLAlchemy, to the same database: steps with a transaction get its
    sessions. Use it as `async with app:` to start runs and to host workers, or call `app.run_worker()` to make this
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
        redact: Redact | None = None,
        lease: Duration | None = None,
        max_crashes: int | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        engine: Any = None,
    ) -> None:
        place = checked_place(url, namespace, key, lease, max_crashes)
        super().__init__(place, codec=codec, redact=redact, clock=clock, ids=ids)
        self.sqlalchemy = None if engine is None else check_engine(engine)
        self._stops: dict[threading.Thread, Callable[[], object]] = {}  # of each `run_worker`
        self._resources = Resources()
        self._workers_here = 0
        self._around_def: Callable[[], contextlib.AbstractContextManager[object]] | None = None

    # Workers.

    @names_its_options
    @contextlib.asynccontextmanager
    async def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        threads: int = 32,
        step_processes: int | None = None,
        grace: Duration = "25s",
        adopt: bool = True,
        strict: bool = False,
    ) -> AsyncIterator[Worker]:
        """A worker inside this process, for as long as the block lasts: `async with app, app.worker(): ...`.

        It serves the `queues`; without them `default`, and those that the workflows of this app name.
        """
        settings = self._worker_settings(
            queues=queues,
            concurrency=concurrency,
            threads=threads,
            step_processes=step_processes,
            grace=grace,
            adopt=adopt,
            strict=strict,
        )
        async with self._hosted(self._make_worker(settings)) as worker:
            yield worker

    worker_sync = blocking_block(worker)  # `with app, app.worker_sync(): ...`

    @names_its_options
    def run_worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        threads: int = 32,
        step_processes: int | None = None,
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
                queues=queues,
                concurrency=concurrency,
                threads=threads,
                step_processes=step_processes,
                grace=grace,
                adopt=True,
                strict=strict,
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
        HostedWorker(
            lambda: self._hosted(self._make_worker(settings)),
            app=self,
            open_already=self._opening is not None,
            portal=self.portal,
            stops=self._stops,
            ours=ours,
        ).run()

    def stop_workers(self, *, wait: bool = False) -> None:
        """Have every `run_worker()` of this process drain and return, in whichever thread it is. Of any thread."""
        for thread, stop in list(self._stops.items()):
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                stop()
            if wait and thread is not threading.current_thread():
                thread.join()

    def forget(self) -> object:
        self._stops = {}
        return super().forget()

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
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        threads: int = 32,
        step_processes: int | None = None,
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
                queues=queues,
                concurrency=concurrency,
                threads=threads,
                step_processes=step_processes,
                grace=grace,
                adopt=True,
                strict=strict,
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
    def asgi(
        self,
        *,
        auth: Callable[[Request], object] | None = None,
        local: bool = False,
        read_only: bool | None = None,
        decode: bool = False,
    ) -> Mounted:
        """The HTTP API and the dashboard, to be mounted in a web app of your own: `api.mount("/kagzi", app.asgi())`.

        Who may come is decided by `auth`, a function of yours, `def` or `async def`: it is given each request, as
        Starlette's `Request`, and returns something true (a text is the name of the user in the audit log), or raises
        `HTTPException`. Without it API keys decide (docs/security.md). While there are neither, nobody is answered;
        `local` answers this machine, for development. `read_only`: no form changes anything; else what
        KAGZI_UI_READ_ONLY says. `decode`: payloads and errors are shown as the codec of this app reads them, to
        everybody who may see the page, and what forms write is encoded by it; else both are as they are stored.
        """
        from kagzi.mount import Mounted  # programs without it need no web server

        mounted = Mounted(
            self.portal,
            lambda: self.settings,
            clock=self._clock,
            ids=self._ids,
            local=local,
            auth=auth,
            read_only=read_only,
            codec=self.codec if decode else None,
        )
        self._on_close.append(mounted.close)
        return mounted

    @contextlib.asynccontextmanager
    async def _hosted(self, worker: Worker) -> AsyncIterator[Worker]:
        self._workers_here += 1
        try:
            async with self._resources.opened(), executing(worker):
                yield worker
        finally:
            self._workers_here -= 1

    def _worker_settings(
        self,
        *,
        queues: Sequence[str] | None,
        concurrency: int,
        threads: int,
        step_processes: int | None,
        grace: Duration,
        adopt: bool,
        strict: bool,
    ) -> WorkerSettings:
        """Returns the settings of a worker, checked before anything is connected to."""
        names = self.queues_named() if queues is None else checked_queues(queues)
        check_count(concurrency, "concurrency")
        check_count(threads, "threads")
        if step_processes is not None:
            check_count(step_processes, "step_processes")
        check_importable(step.reference for step in self._steps.values() if step.reference is not None)
        if not self.workflow_types():
            raise InvalidRequest("this app has no workflows; decorate a function with @app.workflow first")
        return WorkerSettings(
            queues=names,
            concurrency=concurrency,
            threads=threads,
            step_processes=step_processes,
            grace=parse_duration(grace, "grace"),
            adopt=adopt,
            strict=strict,
            blocking_calls=self.settings.worker_blocking_calls,
            poll_wait=round(self.settings.worker_poll_timeout_secs * SECOND),
            payload_limit=self.settings.payload_max_size_bytes,
            schedules=self.declared_schedules(),
            limits=self.declared_limits(),
        )

    def _make_worker(self, settings: WorkerSettings) -> Worker:
        engine = self.engine
        transactions = engine.transactions if isinstance(engine, LocalEngine) else None
        if transactions is None and (names := [step.name for step in self._steps.values() if step.transaction]):
            raise InvalidRequest(
                f"steps with a transaction need the database itself, and this app uses a server: {', '.join(names)}. "
                "Run this worker with the URL of the database, or leave transaction=True out and give what these steps "
                "write a key, so that a repeated write is recognised"
            )
        return Worker(
            engine,
            self,
            namespace=self.namespace,
            clock=self._clock,
            ids=self._ids,
            settings=settings,
            heart=HeartbeatThread,
            around_def=self._around_def,
            transactions=transactions,
            home=self.home,
        )

    def around_def_steps(self, around: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        """Have each `def` step run inside such a block, in its thread, for frameworks that keep something there."""
        self._around_def = around

    def declared_schedules(self) -> tuple[Declaration, ...]:
        """What `@app.workflow(schedule=...)` says, for the workers of this app."""
        return tuple(
            [
                declaration(
                    cron,
                    workflow.name,
                    workflow.signature.canonical_call(cron.args, cron.kwargs),
                    workflow.signature.encode_arguments(
                        cron.args, cron.kwargs, schedule_input(self.namespace, cron.name or workflow.name)
                    ),
                    schedule_options(workflow)
                    | {"limit_key": limit_of(workflow, workflow.run_options, cron.args, cron.kwargs)[1] or None},
                )
                for workflow, cron in self._crons.values()
            ]
        )

    def declared_limits(self) -> tuple[DeclaredLimit, ...]:
        """What `concurrency=` says; of several workflows or versions that share a name, the smallest."""
        found: dict[str, DeclaredLimit] = {}
        for workflow in self._workflows.values():
            if workflow.limits is not None:
                limits = workflow.limits
                shared = () if limits.name == workflow.name else (limits.shared_by(workflow.name),)
                for declared in (limits.declared, *shared):
                    found[declared.name] = smaller(found.get(declared.name, declared), declared)
        return tuple([found[name] for name in sorted(found)])

    # What clients do, for code that cannot await.

    signal_sync = blocking(Client.signal)
    runs_sync = blocking(Client.runs)
    search_sync = blocking_iteration(Client.search)
    versions_sync = blocking(Client.versions)
    set_default_version_sync = blocking(Client.set_default_version)
    move_runs_sync = blocking(Client.move_runs)
    health_sync = blocking(Client.health)
    metrics_sync = blocking(Client.metrics)
    if TYPE_CHECKING:  # what checkers cannot infer from the overloads

        @overload
        def find_sync(self, id: str) -> Handle[Any]: ...
        @overload
        def find_sync(self, id: str, workflow: Workflow[Any, R]) -> Handle[R]: ...
        def find_sync(self, id: str, workflow: Workflow[Any, Any] | None = None) -> Handle[Any]: ...

    else:
        find_sync = blocking(Client.find)

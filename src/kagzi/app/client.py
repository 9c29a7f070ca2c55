"""`Client`: an app as far as it starts, finds and tells runs."""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from kagzi.api.operations import CancelRun, SendSignal, Started, StartRun
from kagzi.api.workflows import RunFilter
from kagzi.app.connected import Connected
from kagzi.app.place import Place
from kagzi.app.starts import find_same, joinable, start_of, start_traced
from kagzi.clock import Clock
from kagzi.core.driving import drive
from kagzi.core.failure import Redact
from kagzi.core.health import Health
from kagzi.core.limits import DEFAULT_PAGE_SIZE, check_name
from kagzi.core.lineage import Lineage, PayloadContext, PayloadKind, signal_by_id
from kagzi.core.options import names_its_options
from kagzi.core.page import Page
from kagzi.core.run import RunStatus
from kagzi.core.signal import MADE_KEY, check_key
from kagzi.engine.local import LocalEngine
from kagzi.errors import Conflict, InvalidRequest, NotFound
from kagzi.ids import IdSource, derived_run_id
from kagzi.owners import user_name
from kagzi.sdk.definitions import Workflow, WorkflowOptions
from kagzi.sdk.handle import Handle
from kagzi.sdk.jobs import Jobs, JobsHome
from kagzi.sdk.moving import move_checked_runs, move_runs
from kagzi.sdk.payload import Codec
from kagzi.sdk.queues import FlowHome, Limits, Queues
from kagzi.sdk.records import MoveRecord, RunRecord, VersionRecord, run_record, version_record
from kagzi.sdk.schedules import Home, Schedules
from kagzi.sdk.search import Runs, search, status_of
from kagzi.sdk.signal_values import encode_signal
from kagzi.sdk.unserved import Unserved
from kagzi.sdk.worker.bodies import current_step, starting_step
from kagzi.store.drivers import is_async

R = TypeVar("R")


class Client(Connected):
    def __init__(
        self,
        place: Place,
        *,
        codec: Codec | None,
        redact: Redact | None,
        clock: Clock | None,
        ids: IdSource | None,
    ) -> None:
        super().__init__(place, codec=codec, redact=redact, clock=clock, ids=ids)
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

    # Starting.

    async def start_run(
        self,
        workflow: Workflow[Any, R],
        options: WorkflowOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        awaited: bool = False,
    ) -> Handle[R]:
        """Starts a run, for `workflow.start(...)`, and for `workflow.run(...)` before it waits."""
        engine = self.engine
        start = self._start_of(workflow, options, args, kwargs)
        try:
            if options.connection is not None:
                workflows = joinable(engine, options).workflows
                started = await workflows.start_in(options.connection, await workflows.admit(start))
            elif (tracer := self._tracer) is None:
                started = await engine.workflows.start(start, awaited=awaited)
            else:
                started = await start_traced(tracer, engine, start)
        except Conflict:
            if not (same := await find_same(engine, start, workflow.signature)):
                raise
            started = Started(run_id=same, already_exists=True)
        return self._handle_of(workflow, start.namespace, started)

    def start_run_here(
        self, workflow: Workflow[Any, R], options: WorkflowOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Handle[R]:
        """Starts a run for `workflow.start_sync(...)` with a connection: on the thread of the caller, to which many
        drivers bind it."""
        if is_async(options.connection):
            raise InvalidRequest(
                "connection= is an async one, which blocking code cannot use: `await` the start with it"
            )
        start = self._start_of(workflow, options, args, kwargs)

        async def admit() -> tuple[LocalEngine, StartRun]:
            engine = joinable(self.engine, options)
            return engine, await engine.workflows.admit(start)

        engine, admitted = self.portal.wait("start_sync()", "`await workflow.start(...)`", admit)
        try:
            started = drive(engine.workflows.start_in(options.connection, admitted))
        except Conflict:

            async def same_run() -> str | None:
                return await find_same(engine, start, workflow.signature)

            if not (same := self.portal.wait("start_sync()", "`await workflow.start(...)`", same_run)):
                raise
            started = Started(run_id=same, already_exists=True)
        return self._handle_of(workflow, start.namespace, started)

    def start_later(
        self, workflow: Workflow[Any, R], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, Callable[[], Handle[R]]]:
        """Checks a start now, which is made when what this returns is called, by blocking code after its commit; and
        the id that the run will have, unless one with the id of its options is there already."""
        start = self._start_of(workflow, workflow.run_options, args, kwargs)

        async def begin() -> Handle[R]:
            try:
                started = await self.engine.workflows.start(start)
            except Conflict:
                if not (same := await find_same(self.engine, start, workflow.signature)):
                    raise
                started = Started(run_id=same, already_exists=True)
            return self._handle_of(workflow, start.namespace, started)

        return start.run_id, lambda: self.portal.wait("start_sync()", "`await workflow.start(...)`", begin)

    def _start_of(
        self, workflow: Workflow[Any, Any], options: WorkflowOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StartRun:
        start = start_of(workflow, options, args, kwargs, namespace=self.namespace, ids=self._ids, codec=self._codec)
        if (by := starting_step(self._engine, start.namespace, self.home)) is not None:
            start = replace(start, started_by=by)
        return start

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

    async def cancel_child(self, run_id: str) -> bool:
        request = CancelRun(namespace=current_step.get().namespace, run_id=run_id)
        try:
            return (await self._workflow_service().cancel(request)).effective
        except NotFound:  # it has finished so long ago that it was deleted, or could not be started
            return False

    async def signal_child(self, run_id: str, name: str, value: str) -> None:
        step = current_step.get()
        data = value.encode()
        if self._codec is not None:
            data = self._codec.encode(data, Lineage(step.namespace, run_id).of(PayloadKind.SIGNAL, name))
        await self._workflow_service().signal(
            SendSignal(
                namespace=step.namespace,
                run_id=run_id,
                name=name,
                value=data,
                # The same in every attempt of this step, so that a repeat is no second signal.
                key=MADE_KEY + derived_run_id(0, step.run_id, step.step_id),
            )
        )

    # Finding.

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

    def _encode_input(
        self, name: str, version: str, arguments: tuple[Any, ...] | Mapping[str, Any], context: PayloadContext
    ) -> bytes:
        """Encodes arguments of a workflow of this app, checked as a start checks them."""
        workflow = self.find_workflow(name, version)
        if workflow is None:
            raise InvalidRequest(
                f"this app has no workflow {name} of version {version}, so it cannot tell whether the input fits; "
                "register it, or use `kagzi runs fork --input`"
            )
        if isinstance(arguments, Mapping):
            return workflow.signature.encode_arguments((), arguments, context)
        if not isinstance(arguments, tuple):
            raise InvalidRequest(f"input must be a tuple of arguments, or a dict by name, not {arguments!r:.100}")
        return workflow.signature.encode_arguments(arguments, {}, context)

    async def signal(self, id: str, name: str, value: Any = None, *, key: str | None = None) -> None:
        """Tell the run that has this id something: `await app.signal("order-42", "approved", True)`.

        The id is the one given at the start (`.options(id=...)`); see `Handle.signal`. NotFound if no run has it.
        """
        await self._workflow_service().signal(
            SendSignal(
                namespace=self.namespace,
                external_id=check_name(id, "id"),
                name=check_name(name, "signal name"),
                value=encode_signal(name, value, self._codec, signal_by_id(self.namespace, id, name)),
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
        run = await self._workflow_service().get_by_external_id(self.namespace, id)
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
        page = await self._workflow_service().list(filter, page_size=page_size, page_token=page_token)
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
        self._engine_here()  # an app that is not open says so here
        return search(self._workflow_service(), runs, self.namespace, self._schedule_service, self._read_payload)

    async def versions(self, workflow: str | Workflow[Any, Any] | None = None) -> tuple[VersionRecord, ...]:
        """The versions of a workflow, or of all: which one starts by name get, which have workers online, and how many
        runs need each. At most 1,000, by workflow, the newest first."""
        found = await self._version_service().list(self.namespace, None if workflow is None else _name_of(workflow))
        return tuple([version_record(each) for each in found.items])

    async def set_default_version(
        self, workflow: str | Workflow[Any, Any], version: str | None, *, force: bool = False
    ) -> None:
        """Choose the version that starts by name get: commands, HTTP, clients that name none. None: the one that
        workers offered last again. Starts in Python name the version of the workflow they are called on.

        It counts everywhere within a second. InvalidRequest if no worker has ever offered it, unless `force` is given.
        """
        await self._version_service().set_default(self.namespace, _name_of(workflow), version, force=force)

    async def move_runs(
        self,
        workflow: str | Workflow[Any, Any],
        *,
        from_version: str,
        to_version: str,
        dry_run: bool = False,
        force: bool = False,
        check: bool = False,
    ) -> MoveRecord:
        """Have runs of a workflow go on in another version: those that wait or sleep. What a worker holds is left
        alone; `running` of the answer counts it, and a second call moves what has let go meanwhile. Their recorded
        steps stay, so the other version must be able to replay them: with `check` each is replayed first by the
        workflow as this app has it, and those that come out differently stay where they are; `refused` names them. A
        dry run counts and changes nothing.

        InvalidRequest if no worker has ever offered the version, unless `force` is given.
        """
        asked = (self.namespace, _name_of(workflow), from_version, to_version)
        versions = self._version_service()
        if check:
            return await move_checked_runs(self.engine, versions, self, *asked, dry_run=dry_run, force=force)
        return await move_runs(versions, *asked, dry_run=dry_run, force=force)

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


def _name_of(workflow: object) -> str:
    if isinstance(workflow, Workflow):
        return str(workflow.name)
    if not isinstance(workflow, str):
        raise InvalidRequest(f"workflow must be a workflow or the name of one, not {workflow!r:.100}")
    return check_name(workflow, "workflow")

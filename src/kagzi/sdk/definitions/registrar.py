"""`Registrar`: what collects the steps, workflows and schedules of an app.

The decorators have an overload for coroutine functions before the one for plain functions: the second would
match both, and give a step whose result is a coroutine.
"""

from __future__ import annotations

import inspect
import sys
import types
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from kagzi.api.transactions import check_body
from kagzi.core.duration import Duration
from kagzi.core.failed_run import FAILURE_HANDLER, FailedRun
from kagzi.core.failure import Redact
from kagzi.core.limits import DEFAULT_QUEUE, check_name
from kagzi.core.options import names_its_options
from kagzi.core.retry import Retry
from kagzi.core.versions import WorkflowInterface
from kagzi.core.worker import WorkflowType
from kagzi.errors import InvalidRequest
from kagzi.sdk.annotations import parameters_of
from kagzi.sdk.blocking import Portal
from kagzi.sdk.cron import Cron
from kagzi.sdk.debounce import Debounce
from kagzi.sdk.definitions.options import WorkflowOptions, check_executor, check_flag
from kagzi.sdk.definitions.step import Step
from kagzi.sdk.definitions.workflow import DEFAULT_VERSION, Workflow, check_handler
from kagzi.sdk.foreign import place_of
from kagzi.sdk.interfaces import describe_all
from kagzi.sdk.limits import Key, Limit, Rate
from kagzi.sdk.payload import Codec, check_codec
from kagzi.sdk.standalone import STANDALONE, one_step
from kagzi.sdk.worker.process_pool import in_process
from kagzi.sdk.worker.process_references import reference_of, register
from kagzi.sdk.worker.transactions import in_transaction

if TYPE_CHECKING:
    from kagzi.sdk.context import Context
    from kagzi.sdk.handle import Handle

P = ParamSpec("P")
R = TypeVar("R")


class StepDecorator(Protocol):
    """What `@app.step(...)` returns."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


class WorkflowDecorator(Protocol):
    """What `@app.workflow(...)` returns."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...


class Registrar:
    """The half of an app that collects definitions; the other half starts runs of them."""

    portal: Portal  # how blocking code comes to the app
    sqlalchemy: Any = None  # an engine, whose sessions are what steps with a transaction get

    def __init__(self, *, codec: Codec | None = None, redact: Redact | None = None) -> None:
        if redact is not None and not callable(redact):
            raise InvalidRequest(f"redact must be a function of a Failure that returns one, not {redact!r:.100}")
        self.redact = redact
        if codec is not None:
            check_codec(codec, "codec must be a codec")
        self._codec = codec
        self._steps: dict[str, Step[Any, Any]] = {}
        self._workflows: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self._standalone: Workflow[..., Any] | None = None
        self._interfaces: tuple[WorkflowInterface, ...] | None = None
        self._crons: dict[str, tuple[Workflow[Any, Any], Cron]] = {}  # by the name of the schedule

    @property
    def codec(self) -> Codec | None:
        """The layer around every payload; None: there is none."""
        return self._codec

    @property
    def standalone(self) -> Workflow[..., Any]:
        """The workflow of which standalone steps are runs."""
        if self._standalone is None:
            self._standalone = Workflow(self, one_step(self.find_step), name=STANDALONE, codec=self._codec)
        return self._standalone

    def find_step(self, name: str) -> Step[Any, Any] | None:
        return self._steps.get(name)

    def lacks(self, name: str) -> bool:
        """Returns whether no step and no workflow has this name, with or without a key."""
        name = name.partition("[")[0]
        return name not in self._steps and all(known != name for known, _ in self._workflows)

    def find_workflow(self, name: str, version: str) -> Workflow[Any, Any] | None:
        if name == STANDALONE:
            return self.standalone if version == self.standalone.version else None
        return self._workflows.get((name, version))

    def queues_named(self) -> tuple[str, ...]:
        """Returns the queues that a worker serves which is not told any: `default`, and those that
        `@app.workflow(queue=...)` names."""
        named = {workflow.queue for workflow in self._workflows.values() if workflow.queue is not None}
        return (DEFAULT_QUEUE, *sorted(named - {DEFAULT_QUEUE}))

    def workflow_types(self) -> tuple[WorkflowType, ...]:
        """Returns the workflows and versions that a worker of this app can run."""
        return tuple(
            WorkflowType(name, version, self._workflows[name, version].queue if name == FAILURE_HANDLER else None)
            for name, version in sorted(self._workflows)
        ) + ((WorkflowType(STANDALONE, self.standalone.version),) if self._steps else ())

    def workflow_interfaces(self) -> tuple[WorkflowInterface, ...]:
        """Returns what these workflows are for and what they take; made once for as many workflows as there are."""
        if self._interfaces is None or len(self._interfaces) != len(self._workflows):
            self._interfaces = describe_all([self._workflows[key] for key in sorted(self._workflows)])
        return self._interfaces

    @abstractmethod
    async def start_run(
        self,
        workflow: Workflow[Any, R],
        options: WorkflowOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        awaited: bool = False,
    ) -> Handle[R]:
        """Starts a run of this workflow; arguments that cannot be encoded raise before anything is written. A caller
        who waits for the result next says so (`awaited`)."""
        raise NotImplementedError

    @abstractmethod
    def start_run_here(
        self, workflow: Workflow[Any, R], options: WorkflowOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Handle[R]:
        """Starts a run for blocking code, on its own thread and in the transaction of its connection."""
        raise NotImplementedError

    @abstractmethod
    async def cancel_child(self, run_id: str) -> bool:
        """Asks a child to end, in a step of its parent; False if it had finished before."""
        raise NotImplementedError

    @abstractmethod
    async def signal_child(self, run_id: str, name: str, value: str) -> None:
        """Sends a signal to a child, in a step of its parent, with a value in JSON."""
        raise NotImplementedError

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        transaction: bool = False,
        executor: Literal["process"] | None = None,
    ) -> StepDecorator: ...
    @names_its_options
    def step(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        transaction: bool = False,
        executor: Literal["process"] | None = None,
    ) -> Any:
        """Make a function a step. `def` functions run in a thread, `async def` on the worker's loop.

        `retry` is the policy of this step, else the run's (default: 5 attempts); `timeout` bounds each
        attempt (default: 10 minutes); `name` is what people see and what its results are kept under (default:
        the function's name).

        With `transaction=True` it has a transaction of the app's database, whose connection `kagzi.connection()` gives:
        what it writes there and its result are committed together, once.

        With `executor="process"` it runs in one of a pool of processes, for what computes: its function is imported
        there by name, and when it is cancelled or its time is over, the process is ended.
        """
        check_flag(transaction, "transaction")
        check_executor(executor, transaction=transaction)

        def decorate(fn: Callable[..., Any], depth: int = 2) -> Step[Any, Any]:
            given = _check_function(fn, "step", name)
            if transaction and self.sqlalchemy is not None:
                check_body(self.sqlalchemy, blocking=not inspect.iscoroutinefunction(fn), step=given)
            step: Step[Any, Any] = Step(
                fn,
                name=given,
                retry=retry,
                timeout=timeout,
                codec=self._codec,
                localns=_local_types(depth),
            )
            if transaction:
                step.transaction = True
                step.body = in_transaction(fn, given, lambda: self.sqlalchemy)
            elif executor is not None:
                step.reference = reference_of(fn, given)
                step.body = in_process(fn, step.reference)
                register(step.reference, step)
            self._register(self._steps, given, step, f"step {given!r}")
            step._app = self
            return step

        return decorate if fn is None else decorate(fn, 4)

    @overload
    def workflow(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, fn: Callable[Concatenate[Context, P], R], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        version: str = DEFAULT_VERSION,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        on_failure: str | Workflow[Any, Any] | None = None,
        schedule: Cron | Sequence[Cron] | None = None,
        concurrency: Limit | Sequence[Limit] | None = None,
        rate: Rate | Sequence[Rate] | None = None,
        fair: Key | None = None,
        debounce: Debounce | None = None,
    ) -> WorkflowDecorator: ...
    @names_its_options
    def workflow(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        version: str = DEFAULT_VERSION,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        on_failure: str | Workflow[Any, Any] | None = None,
        schedule: Cron | Sequence[Cron] | None = None,
        concurrency: Limit | Sequence[Limit] | None = None,
        rate: Rate | Sequence[Rate] | None = None,
        fair: Key | None = None,
        debounce: Debounce | None = None,
    ) -> Any:
        """Make a function a workflow: `async def`, or `def` for one that does one thing after the other.

        A `def` workflow runs in a thread, where calling a step waits for its result.

        `version` belongs to the name: runs stay on the version they were started with. `queue` is where runs
        wait for a worker unless the start says otherwise; `timeout` bounds a whole run. `retry` is the policy
        of its steps that have none, and lets a failed run be tried again. `on_failure` is a workflow, or the name of
        one, that is started with a `FailedRun` if a run fails or times out. `schedule` is when to start it by the
        clock: a `Cron`, or several with names of their own. `concurrency` is how many of its runs may run at once over
        all workers: a `Limit`, or one for all and one for each key; `rate`, a `Rate`, is how often they may begin. With
        `fair`, a key as theirs, the keys take turns. With `debounce`, a `Debounce`, starts in a short time become one
        run.
        """
        crons = _check_crons(schedule)

        def decorate(fn: Callable[..., Any], depth: int = 2) -> Workflow[Any, Any]:
            given = _check_function(fn, "workflow", name)
            if given == FAILURE_HANDLER:
                raise InvalidRequest(f"{given} is the name of what @app.on_failure makes; choose another one")
            workflow: Workflow[Any, Any] = Workflow(
                self,
                fn,
                name=given,
                version=version,
                queue=queue,
                retry=retry,
                timeout=timeout,
                on_failure=on_failure,
                concurrency=concurrency,
                rate=rate,
                fair=fair,
                debounce=debounce,
                codec=self._codec,
                localns=_local_types(depth),
            )
            what = f"workflow {given!r} with version {version!r}"
            self._register(self._workflows, (given, version), workflow, what)
            for cron in crons:
                self._schedule(workflow, cron)
            return workflow

        return decorate if fn is None else decorate(fn, 4)

    @overload
    def on_failure(self, fn: Callable[..., Any], /) -> Workflow[[FailedRun], Any]: ...
    @overload
    def on_failure(
        self,
        fn: None = None,
        /,
        *,
        version: str = DEFAULT_VERSION,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[Callable[..., Any]], Workflow[[FailedRun], Any]]: ...
    @names_its_options
    def on_failure(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        version: str = DEFAULT_VERSION,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Make a function the workflow that is started with a `FailedRun` whenever a run of the namespace fails or
        times out, beside the handler that the run may have of its own.

        It counts from when a worker first registers it, also while all workers are away. Its runs wait in `queue`, else
        in the first queue of the worker that has registered it last.
        """

        def decorate(fn: Callable[..., Any], depth: int = 2) -> Workflow[Any, Any]:
            if isinstance(fn, str):
                raise InvalidRequest(
                    f"@app.on_failure({fn!r}) is no function; it takes no name, and its queue is given as "
                    f"@app.on_failure(queue={fn!r})"
                )
            _check_function(fn, "workflow", FAILURE_HANDLER)
            workflow: Workflow[Any, Any] = Workflow(
                self,
                fn,
                name=FAILURE_HANDLER,
                version=version,
                queue=queue,
                retry=retry,
                timeout=timeout,
                codec=self._codec,
                localns=_local_types(depth),
            )
            check_handler(workflow)
            what = f"handler of all failures with version {version!r}"
            self._register(self._workflows, (FAILURE_HANDLER, version), workflow, what, "version")
            return workflow

        return decorate if fn is None else decorate(fn, 4)

    def _schedule(self, workflow: Workflow[Any, Any], cron: Cron) -> None:
        named = cron.name or workflow.name
        if named in self._crons:
            raise InvalidRequest(
                f"there is a schedule {named!r} already ({place_of(self._crons[named][0].fn)}); that of "
                f"{place_of(workflow.fn)} needs another name: Cron(..., name=...)"
            )
        _check_call(workflow, cron)
        self._crons[named] = (workflow, cron)

    def _register(self, registry: dict[Any, Any], key: Any, definition: Any, what: str, other: str = "name") -> None:
        known = registry.get(key)
        if known is not None:
            raise InvalidRequest(
                f"there is a {what} already ({place_of(known.fn)}); {place_of(definition.fn)} needs another {other}"
            )
        definition.signature.look()
        registry[key] = definition


def _check_crons(schedule: object) -> tuple[Cron, ...]:
    crons = schedule if isinstance(schedule, list | tuple) else () if schedule is None else (schedule,)
    for cron in crons:
        if not isinstance(cron, Cron):
            raise InvalidRequest(f'schedule must be a Cron, such as Cron("0 9 * * MON-FRI"), not {cron!r:.100}')
    return tuple(crons)


def _check_call(workflow: Workflow[Any, Any], cron: Cron) -> None:
    """Refuses arguments that the function does not take, where they are written and not when the schedule fires."""
    signature = inspect.signature(workflow._fn)
    first = next(iter(signature.parameters.values()), None)
    # By its name: annotations may speak of what is defined further down, and cannot be resolved yet.
    annotation = None if first is None else first.annotation
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    context = (None,) if written.rpartition(".")[2] == "Context" else ()
    try:
        signature.bind(*context, *cron.args, **cron.kwargs)
    except TypeError as error:
        raise InvalidRequest(
            f"the schedule of {workflow.name} ({place_of(workflow.fn)}) cannot call it: {error}. Give its arguments "
            f"with the schedule: Cron({cron.cron!r}, args=(...))"
        ) from None


def _check_function(fn: Any, what: str, name: str | None) -> str:
    """Checks that a function can be a step or a workflow, and returns the name to register it under."""
    if isinstance(fn, (Step, Workflow)):
        raise InvalidRequest(f"{fn!r} is decorated already; one decorator is enough")
    if isinstance(fn, str):
        raise InvalidRequest(f"@app.{what}({fn!r}) looks like a name; write @app.{what}(name={fn!r})")
    if not callable(fn) or isinstance(fn, type):
        raise InvalidRequest(f"a {what} must be a function, not {fn!r:.100}")
    found = check_name(name, f"{what} name") if name is not None else getattr(fn, "__name__", "<unnamed>")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidRequest(f"{what} {found!r} is a generator; a {what} returns one value")
    if _is_method(fn):
        raise InvalidRequest(
            f"{fn.__qualname__} is a method ({place_of(fn)}): after a crash another process goes on, which does not "
            f"have its object. Decorate a function; or make the object where the module is imported, and a {what} of "
            f"its bound method: `{found} = app.{what}(the_object.{fn.__name__})`"
        )
    if found.startswith("<"):
        raise InvalidRequest(f"a lambda has no name of its own; write @app.{what}(name=...)")
    return check_name(found, f"{what} name")


def _is_method(fn: Callable[..., Any]) -> bool:
    """Returns whether this is a function in the body of a class that is to be called with an object of it."""
    within = getattr(fn, "__qualname__", "").rpartition(".")[0]
    if not within or within.endswith("<locals>") or inspect.ismethod(fn) or isinstance(fn, staticmethod):
        return False
    return next((parameter.name for parameter in parameters_of(fn)), None) in ("self", "cls")


def _local_types(depth: int) -> Mapping[str, Any] | None:
    """Returns the classes defined in the function that is decorating, which annotations written as text may name."""
    frame = sys._getframe(depth)
    if frame.f_locals is frame.f_globals:
        return None
    kinds = (type, types.GenericAlias, types.UnionType)
    return {name: value for name, value in frame.f_locals.items() if isinstance(value, kinds)}

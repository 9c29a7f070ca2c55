"""Steps and workflows as users write them, typed to the letter.

`@app.step` and `@app.workflow` turn a function into a `Step[P, R]` or `Workflow[P, R]` with the function's
own parameters. Options come before the call, `charge.options(key=sku)(sku)` and
`checkout.options(id=…).start(order)`, because keywords beside `*args: P.args` cannot be typed.

The decorators have an overload for coroutine functions before the one for plain functions: the second would
match both, and give a step whose result is a coroutine.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)

import msgspec
from msgspec import Struct

from kagzi.core.duration import Duration, parse_duration
from kagzi.core.failed_run import FAILURE_HANDLER, FailedRun, with_input
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import check_name
from kagzi.core.options import names_its_options
from kagzi.core.retry import Retry
from kagzi.core.run import PRIORITY_LIMIT
from kagzi.core.step import escape
from kagzi.core.tags import MOST_TAGS, check_tags
from kagzi.errors import InvalidRequest, NonDeterminismError
from kagzi.sdk.ambient import current, payload_codec, use_payload_codec
from kagzi.sdk.annotations import parameters_of
from kagzi.sdk.blocking import Portal, blocking
from kagzi.sdk.children import ChildRun, run_child, spawn_child
from kagzi.sdk.cron import Cron
from kagzi.sdk.payload import Codec, decode
from kagzi.sdk.plainly import as_plain_workflow, await_function, call_function, called_from, cannot_await, result_of
from kagzi.sdk.replay.calls import call_inline, call_step
from kagzi.sdk.replay.continuing import continue_as_new
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import place_of_call
from kagzi.sdk.replay.threaded import Threads, current_bridge, in_turn, run_in_thread
from kagzi.sdk.signature import Signature, signature_of
from kagzi.sdk.standalone import STANDALONE, TAG, one_step, plain_arguments
from kagzi.sdk.start_signal import Signal, check_start_signal

if TYPE_CHECKING:
    from kagzi.sdk.context import Context
    from kagzi.sdk.handle import Handle

P = ParamSpec("P")
R = TypeVar("R")

STEP_TIMEOUT: Final[Span] = 600 * SECOND
DEFAULT_VERSION: Final = "1"

OnConflict: TypeAlias = Literal["return", "fail", "restart_finished", "restart_failed"]
BodyContext: TypeAlias = Literal["caller", "worker"]
_CALL_OPTIONS: Final = frozenset({"key", "rooted", "context"})
OnParentEnd: TypeAlias = Literal["cancel", "abandon", "terminate"]

# What a call of a step gives to await. Not Coroutine[Any, Any, R]: mypy would then infer Any for asyncio.gather.
Call: TypeAlias = Coroutine[object, None, R]


class FailureHandler(Struct, frozen=True):
    """A workflow that is started when a run fails, and where it waits; None: in the queue of that run."""

    name: str
    queue: str | None = None


class WorkflowOptions(Struct, frozen=True, kw_only=True):
    """What `.options(...)` says about one run; None is what the decorator said, or the default."""

    id: str | None = None
    queue: str | None = None
    version: str | None = None
    priority: int = 0
    delay: Duration | None = None
    start_at: datetime | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    deadline: datetime | None = None
    namespace: str | None = None
    on_conflict: OnConflict | None = None
    signal: Signal | None = None
    on_failure: FailureHandler | None = None
    key: str | None = None
    on_parent_end: OnParentEnd | None = None
    tags: dict[str, str] = {}
    connection: Any = None  # of the caller's own, in whose transaction the run is started


_NO_OPTIONS: Final = WorkflowOptions()

# What does the same for a workflow that is part of another one.
_INLINE_INSTEAD: Final = {
    "timeout": "put `asyncio.timeout(...)` around the call",
    "deadline": "put `asyncio.timeout(...)` around the call",
    "delay": "call `kagzi.sleep(...)` before it",
    "start_at": "call `kagzi.sleep_until(...)` before it",
    "retry": "give its steps their own `retry=`",
}


class Step(Generic[P, R]):
    """A step: called in a workflow it runs once and its result is kept; anywhere else it is the function.

    `fn` is the function itself.
    """

    fn: Callable[P, Any]
    name: str
    retry: Retry | None
    timeout: Span
    signature: Signature

    def __init__(
        self,
        fn: Callable[P, Any],
        *,
        name: str,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        codec: Codec | None = None,
        localns: Mapping[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = check_name(name, "step name")
        self.retry = _check_retry(retry)
        self.timeout = STEP_TIMEOUT if timeout is None else _check_timeout(timeout, "step timeout")
        self.signature = Signature(fn, name=name, codec=codec, localns=localns)
        self._id = escape(name)  # what the identity of each call is made of
        self._app: Registrar | None = None
        self._run: Workflow[..., Any] | None = None  # with what `.options(...)` says about a run of its own

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        execution = current(self.name)
        if execution is None:
            plain: Any
            match called_from():
                case "async def workflow":
                    plain = await_function(self.fn, args, kwargs)
                case "def workflow":
                    plain = result_of(self.name, self.fn, args, kwargs)
                case _:
                    plain = call_function(self.fn, args, kwargs)
            return cast("Call[R]", plain)
        return in_turn(
            call_step(
                execution,
                name=self._id,
                fn=self.fn,
                codec=self.signature,
                policy=self.retry,
                timeout=self.timeout,
                args=args,
                kwargs=kwargs,
            )
        )

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of the step, for `def` workflows and other code that cannot await: the same as calling it there,
        with the type of the result."""
        if _outside_workflows(self.name):
            return cast("R", result_of(self.name, self.fn, args, kwargs))
        result: Any = self(*args, **kwargs)
        return cast("R", result)

    @names_its_options
    def options(
        self,
        *,
        key: str | None = None,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        id: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        deadline: datetime | None = None,
        namespace: str | None = None,
        on_conflict: OnConflict | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Step[P, R]:
        """The same step with other settings for one call.

        `key` makes the call's identity explicit (`reserve[sku-7]`), so that it stays the same when the calls
        around it are reordered; `name` is what people see instead of the function's name.

        Those from `id` on are about a run of its own, `await charge.options(id="order-42").start(order)`, and mean what
        they mean for a workflow.
        """
        given: dict[str, Any] = {
            "id": id,
            "queue": queue,
            "priority": priority,
            "delay": delay,
            "start_at": start_at,
            "deadline": deadline,
            "namespace": namespace,
            "on_conflict": on_conflict,
            "tags": tags,
        }
        about_run = {field: value for field, value in given.items() if value is not None}
        step: Step[P, R] = object.__new__(StepToStart if about_run else type(self))
        step.__dict__.update(self.__dict__)
        if about_run:
            step._run = (self._run or self._of_app().standalone).options(**about_run)
        if name is not None:
            step.name = check_name(name, "step name")
        if retry is not None:
            step.retry = _check_retry(retry)
        if timeout is not None:
            step.timeout = _check_timeout(timeout, "step timeout")
        if key is not None:
            check_name(key, "step key")
            step._id = escape(check_name(f"{step.name}[{key}]", "step name and key together"))
        elif name is not None:
            step._id = escape(name)
        return step

    async def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run that consists of this step. It is durable when this returns; wrong arguments raise before.

        Its retry policy and timeout are those of the step.
        """
        if current(f"{self.name}.start()") is not None:
            raise NonDeterminismError(
                f"{self.name}.start() was called in a workflow, where it would happen again at every replay; call "
                f"{self.name}(...), which is a step of this run"
            )
        app = self._of_app()
        defined = app.find_step(self.name)
        if defined is None or (defined.retry, defined.timeout, defined._id) != (self.retry, self.timeout, self._id):
            raise InvalidRequest(
                f"{self.name}.start(): name=, key=, retry= and timeout= are for a call in a workflow; a run of its own "
                "has what @app.step says"
            )
        run = self._run or app.standalone
        if TAG not in run.run_options.tags and len(run.run_options.tags) < MOST_TAGS:
            run = run.options(tags={**run.run_options.tags, TAG: self.name})
        handle = await app.start_run(run, run.run_options, (self.name, plain_arguments(self, args, kwargs)), {})
        return handle.decoded_by(self.signature.decode_result)

    start_sync = blocking(start)  # for code that cannot await

    @property
    def portal(self) -> Portal:
        """How blocking code comes to the app."""
        return self._of_app().portal

    def _of_app(self) -> Registrar:
        if self._app is None:
            raise InvalidRequest(f"{self.name} is the step of no app; make it one with @app.step to start runs of it")
        return self._app

    def __repr__(self) -> str:
        return f"<step {self.name}>"


class StepToStart(Step[P, R]):
    """A step with options for a run of its own."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:  # noqa: ARG002
        raise InvalidRequest(
            f"{self.name} has options of a run of its own, for .start(...); a call is part of the run around it, and "
            f"is named by key= (at {place_of_call()})"
        )


class Workflow(Generic[P, R]):
    """A workflow: `.start(...)` makes a run of it; called inside another workflow it is part of that one.

    `fn` is the function itself, for tests that need no durability: `await checkout.fn(order)` calls the functions of
    its steps, `def` and `async def` alike.
    """

    fn: Callable[..., Coroutine[Any, Any, R]]
    name: str
    version: str
    queue: str | None
    retry: Retry | None
    timeout: Duration | None
    on_failure: FailureHandler | None
    signature: Signature

    def __init__(
        self,
        app: Registrar,
        fn: Callable[..., Coroutine[Any, Any, R]],
        *,
        name: str,
        version: str = DEFAULT_VERSION,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        on_failure: str | Workflow[Any, Any] | None = None,
        codec: Codec | None = None,
        localns: Mapping[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self._threaded = not inspect.iscoroutinefunction(fn)
        self.fn = as_plain_workflow(fn)
        self._fn = fn
        self.name = check_name(name, "workflow name")
        self.version = check_name(version, "workflow version")
        self.queue = None if queue is None else check_name(queue, "queue")
        self.retry = _check_retry(retry)
        if timeout is not None:
            _check_timeout(timeout, "workflow timeout")
        self.timeout = timeout
        self.on_failure = None if on_failure is None else _check_handler(on_failure)
        # Verified, so that a wrong argument raises where the run is started and not where it would be executed.
        self.signature = Signature(fn, name=name, codec=codec, localns=localns)
        self._app = app
        self._codec = codec
        self._options = _NO_OPTIONS

    async def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run. It is durable when this returns; wrong arguments raise before anything is written."""
        self._refuse_inside()
        self._refuse_child_options()
        return await self._app.start_run(self, self._options, args, kwargs)

    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Start a run and wait for its result.

        In another workflow it is a child of that run, spawned once whatever crashes; while this waits, the parent is
        parked. If the wait is cancelled, the child is cancelled, too, and has ended when this raises, if it does within
        its grace.
        """
        execution = current(f"{self.name}.run()")
        if execution is not None:
            self._refuse_connection("run")
            return cast("Call[R]", run_child(self, execution, args, kwargs))
        match called_from():
            case "async def workflow":
                return await_function(self.fn, self._with_context(args), kwargs)
            case "def workflow":
                return cast("Call[R]", result_of(self.name, self.fn, self._with_context(args), kwargs))
            case _:
                return self._start_and_wait(args, kwargs)

    async def _start_and_wait(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        self._refuse_child_options()
        self._refuse_connection("run")
        handle = await self._app.start_run(self, self._options, args, kwargs, awaited=True)
        return await handle.result()

    def _start_here(self) -> Callable[P, Handle[R]] | None:
        """With a connection of the caller's own blocking code writes on its own thread, to which that may be bound."""
        if self._options.connection is None:
            return None

        def start_sync(*args: P.args, **kwargs: P.kwargs) -> Handle[R]:
            self._refuse_inside()
            self._refuse_child_options()
            return self._app.start_run_here(self, self._options, args, kwargs)

        return start_sync

    # For code that cannot await.
    start_sync = blocking(start, unless=_start_here)
    run_sync = blocking(run)

    @property
    def portal(self) -> Portal:
        """How blocking code comes to the app."""
        return self._app.portal

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Call[ChildRun[R]]:
        """In a workflow: start a child run and go on. `child = await render.spawn(page)`, then `await child.result()`.

        It is spawned once, whatever crashes. What is wrong with it, an id that is taken for example, is told by
        `result()`. When this workflow ends, however it does, the child is cancelled, unless `on_parent_end` says
        "abandon" or "terminate".
        """
        execution = current(f"{self.name}.spawn()")
        if execution is None:
            raise InvalidRequest(
                f"{self.name}.spawn() is for workflows, whose child it becomes; outside of one, start a run with "
                f"`await {self.name}.start(...)`"
            )
        self._refuse_connection("spawn")
        return cast("Call[ChildRun[R]]", spawn_child(self, execution, args, kwargs))

    def continue_as_new(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """In a run of this workflow: begin it anew with other arguments, in the same run, and keep nothing of what was
        recorded. `subscription.continue_as_new(state)` never returns.

        For workflows without end, whose history would grow for ever. The run keeps its id, its handle, its deadline and
        the signals that it has not taken; who waits for its result waits on. It goes on in the version of the workflow
        that this is called on, or of `.options(version=...)`.
        """
        what = f"{self.name}.continue_as_new()"
        execution = current(what)
        if execution is None:
            raise InvalidRequest(f"{what} is for workflows, and was called outside of one (at {place_of_call()})")
        given = [name for name in _given_options(self._options) if name != "version"]
        if given:
            raise InvalidRequest(
                f"{what} was called with {', '.join(given)} (at {place_of_call()}); a run that begins anew keeps what "
                "it was started with, and can be given another version only"
            )
        try:
            input = self.signature.encode_arguments(args, kwargs)
        except Exception:
            execution.loop.unawaited.excuse()
            raise
        raise continue_as_new(execution, self.name, input, self._options.version or self.version)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Inside a workflow: do what this one does, as part of the same run."""
        execution = current(self.name)
        if execution is None:
            kind = called_from()
            if kind in ("async def workflow", "def workflow"):
                self._refuse_run_options(self.queue)
                given = self._with_context(args)
                if kind == "async def workflow":
                    return await_function(self.fn, given, kwargs)
                return cast("Call[R]", result_of(self.name, self.fn, given, kwargs))
            raise InvalidRequest(
                f"{self.name} is a workflow: outside of one, start a run with `await {self.name}.start(...)` "
                f"or `await {self.name}.run(...)`; `{self.name}.fn` is the plain function"
            )
        self._refuse_run_options(execution.queue)
        return in_turn(call_inline(execution, self.name, self._call, execution, args, kwargs))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """In a `def` workflow: the result of this one as part of the same run. The same as calling it there, with the
        type of the result."""
        _outside_workflows(self.name)
        result: Any = self(*args, **kwargs)
        return cast("R", result)

    @names_its_options
    def options(
        self,
        *,
        id: str | None = None,
        queue: str | None = None,
        version: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        deadline: datetime | None = None,
        namespace: str | None = None,
        on_conflict: OnConflict | None = None,
        signal: Signal | None = None,
        on_failure: str | Workflow[Any, Any] | None = None,
        on_failure_queue: str | None = None,
        key: str | None = None,
        on_parent_end: OnParentEnd | None = None,
        tags: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> Workflow[P, R]:
        """The same workflow with settings for the runs started from what this returns.

        `id` makes starting idempotent: a second start with the same id returns the run that is there already
        (`handle.already_exists`), or raises Conflict with `on_conflict="fail"`. With "restart_finished" it starts a new
        run if the one there has finished, with "restart_failed" if that has not completed; the new run has the id from
        then on. `signal`, a `kagzi.Signal`, tells the run that has the id something, or the one that is started because
        there is none or it has finished.

        `on_failure` is a workflow, or the name of one, that is started with a `FailedRun` if the run fails or times
        out; it waits in `on_failure_queue`, else in its own queue, else in that of the run. `tags` are words of your
        own to find the run by, `{"batch": "7"}`: at most 10, and `app.search(tags=...)` finds them.

        `connection` is one of your own to the app's database, of asyncpg, psycopg 3, SQLAlchemy 2, Django or sqlite3.
        The run is started in its transaction: it is there when you commit, and never was if you roll back.

        Of a child, which another workflow starts by `run` or `spawn`: `key` names it among its siblings
        (`render[p-7]`), so that it stays the same when the calls around it are reordered; `on_parent_end` says what
        becomes of it when its parent ends, "cancel" (default), "abandon" or "terminate".
        """
        changes: dict[str, Any] = {}
        texts = (("id", id), ("queue", queue), ("version", version), ("namespace", namespace), ("key", key))
        for field, text in texts:
            if text is not None:
                changes[field] = check_name(text, field)
        if priority is not None:
            changes["priority"] = _check_priority(priority)
        for field, length in (("delay", delay), ("timeout", timeout)):
            if length is not None:
                _check_timeout(length, field) if field == "timeout" else parse_duration(length, field)
                changes[field] = length
        for field, moment in (("start_at", start_at), ("deadline", deadline)):
            if moment is not None:
                changes[field] = _check_moment(moment, field)
        if retry is not None:
            changes["retry"] = _check_retry(retry)
        if on_conflict is not None:
            if on_conflict not in get_args(OnConflict):
                choices = ", ".join(f'"{word}"' for word in get_args(OnConflict))
                raise InvalidRequest(f"on_conflict must be one of {choices}, not {on_conflict!r:.100}")
            changes["on_conflict"] = on_conflict
        if signal is not None:
            changes["signal"] = check_start_signal(signal)
        if on_failure is not None:
            changes["on_failure"] = _check_handler(on_failure)
        if on_failure_queue is not None:
            handler = changes.get("on_failure") or self._options.on_failure or self.on_failure
            if handler is None:
                raise InvalidRequest("on_failure_queue is the queue of on_failure, which is not given")
            changes["on_failure"] = FailureHandler(handler.name, check_name(on_failure_queue, "on_failure_queue"))
        if on_parent_end is not None:
            if on_parent_end not in ("cancel", "abandon", "terminate"):
                raise InvalidRequest(
                    f'on_parent_end must be "cancel", "abandon" or "terminate", not {on_parent_end!r:.100}'
                )
            changes["on_parent_end"] = on_parent_end
        if tags is not None:
            changes["tags"] = check_tags(tags)
        if connection is not None:
            changes["connection"] = connection
        workflow: Workflow[P, R] = object.__new__(type(self))
        workflow.__dict__.update(self.__dict__)
        workflow._options = msgspec.structs.replace(self._options, **changes)
        return workflow

    @property
    def run_options(self) -> WorkflowOptions:
        """What `.options(...)` has said."""
        return self._options

    # What the worker calls.

    def begin(self, input: bytes, execution: Execution, failed_input: bytes | None = None) -> Coroutine[Any, Any, R]:
        """The workflow function called with the decoded input. That of a failure handler the engine has made, which has
        no codec; `failed_input` is what the failed run was given."""
        if self._codec is not None:
            use_payload_codec(execution, self._codec)
        if failed_input is None:
            args, kwargs = self.signature.decode_arguments(input)
        else:
            args, kwargs = self.signature.with_codec(None).decode_arguments(input)
            args = tuple([with_input(value, failed_input, self._read_payload) for value in args])
        return self._call(execution, args, kwargs)

    def _read_payload(self, data: bytes) -> Any:
        return decode(data if self._codec is None else self._codec.decode(data))

    def encode_result(self, value: R) -> bytes:
        return self.signature.encode_result(value)

    # Inside.

    def _call(self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, R]:
        context = self.signature.context_class
        if context is not None:
            args = (context(execution.run_id, execution.workflow), *args)
        if self._threaded:
            plain: Callable[..., Any] = self._fn
            return run_in_thread(plain, args, kwargs, _threads)
        return self._fn(*args, **kwargs)

    def _with_context(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments for a call without any run."""
        context = self.signature.context_class
        return args if context is None else (context("", self.name), *args)

    def _refuse_inside(self) -> None:
        if current(f"{self.name}.start()") is not None:
            raise NonDeterminismError(
                f"{self.name}.start() was called in a workflow, where it would happen again at every replay; write "
                f"`await {self.name}.spawn(...)` for a child run, `await {self.name}.run(...)` to wait for it, or "
                f"call {self.name}(...) to make it part of this run"
            )

    def _refuse_connection(self, what: str) -> None:
        if self._options.connection is not None:
            raise InvalidRequest(
                f"{self.name}.{what}() cannot be part of a transaction, because the run begins when that is committed. "
                "Use `.options(connection=...).start(...)`, in a workflow from a step, and wait for it after the commit"
            )

    def _refuse_child_options(self) -> None:
        options = self._options
        if options.key is not None or options.on_parent_end is not None:
            raise InvalidRequest(
                f"{self.name} has key= or on_parent_end=, which are for children: runs that another workflow starts "
                f"by `run` or `spawn`"
            )

    def _refuse_run_options(self, queue: str | None) -> None:
        """Refuses to become part of another run, in this queue, with settings that only a run of its own can have."""
        if self._options is _NO_OPTIONS and self.timeout is None and self.retry is None and self.queue in (None, queue):
            return
        given = _given_options(self._options)
        for name, value in (("timeout", self.timeout), ("retry", self.retry)):
            if value is not None:
                given.setdefault(name, value)
        if self.queue not in (None, queue):
            given.setdefault("queue", self.queue)
        if given:
            listed = ", ".join(f"{name}={value!r:.100}" for name, value in given.items())
            instead = [_INLINE_INSTEAD[name] for name in given if name in _INLINE_INSTEAD]
            instead += [f"make it a run of its own, with `await {self.name}.run(...)` or `.spawn(...)`"]
            raise InvalidRequest(
                f"{self.name} has {listed}, which a call inside another workflow cannot keep: there it is part of that "
                f"run (at {place_of_call()}). You can {', or '.join(instead)}, or do without them: {self.name}.fn(...)"
            )

    def __repr__(self) -> str:
        return f"<workflow {self.name} {self.version}>"


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
            f"the schedule of {workflow.name} ({_place(workflow.fn)}) cannot call it: {error}. Give its arguments with "
            f"the schedule: Cron({cron.cron!r}, args=(...))"
        ) from None


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

    def __init__(self, *, codec: Codec | None = None) -> None:
        if codec is not None and not all(callable(getattr(codec, way, None)) for way in ("encode", "decode")):
            raise InvalidRequest(f"codec must be an object with encode and decode, not {codec!r:.100}")
        self._codec = codec
        self._steps: dict[str, Step[Any, Any]] = {}
        self._workflows: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self._standalone: Workflow[..., Any] | None = None
        self._crons: dict[str, tuple[Workflow[Any, Any], Cron]] = {}  # by the name of the schedule

    @property
    def standalone(self) -> Workflow[..., Any]:
        """The workflow of which standalone steps are runs."""
        if self._standalone is None:
            self._standalone = Workflow(self, one_step(self.find_step), name=STANDALONE, codec=self._codec)
        return self._standalone

    def find_step(self, name: str) -> Step[Any, Any] | None:
        return self._steps.get(name)

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
        """Insert a run of this workflow; encoding the arguments fails before anything is written. A caller who waits
        for the result next says so (`awaited`)."""
        raise NotImplementedError

    @abstractmethod
    def start_run_here(
        self, workflow: Workflow[Any, R], options: WorkflowOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Handle[R]:
        """The same for blocking code, on its own thread and in the transaction of its connection."""
        raise NotImplementedError

    @abstractmethod
    async def cancel_child(self, run_id: str) -> bool:
        """In a step of its parent: ask a run to end; False if it had finished before."""
        raise NotImplementedError

    @abstractmethod
    async def signal_child(self, run_id: str, name: str, value: str) -> None:
        """In a step of its parent: tell a run something, with a value in JSON."""
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
    ) -> Any:
        """Make a function a step. `def` functions run in a thread, `async def` on the worker's loop.

        `retry` is the policy of this step, else the run's (default: 5 attempts); `timeout` bounds each
        attempt (default: 10 minutes); `name` is what people see and what its results are kept under (default:
        the function's name).
        """

        def decorate(fn: Callable[..., Any], depth: int = 2) -> Step[Any, Any]:
            given = _check_function(fn, "step", name)
            step: Step[Any, Any] = Step(
                fn,
                name=given,
                retry=retry,
                timeout=timeout,
                codec=self._codec,
                localns=_local_types(depth),
            )
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
    ) -> Any:
        """Make a function a workflow: `async def`, or `def` for one that does one thing after the other.

        A `def` workflow runs in a thread, where calling a step waits for its result.

        `version` belongs to the name: runs stay on the version they were started with. `queue` is where runs
        wait for a worker unless the start says otherwise; `timeout` bounds a whole run. `retry` is the policy
        of its steps that have none, and lets a failed run be tried again. `on_failure` is a workflow, or the name of
        one, that is started with a `FailedRun` if a run fails or times out. `schedule` is when to start it by the
        clock: a `Cron`, or several with names of their own.
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
            _check_handler(workflow)
            what = f"handler of all failures with version {version!r}"
            self._register(self._workflows, (FAILURE_HANDLER, version), workflow, what, "version")
            return workflow

        return decorate if fn is None else decorate(fn, 4)

    def _schedule(self, workflow: Workflow[Any, Any], cron: Cron) -> None:
        named = cron.name or workflow.name
        if named in self._crons:
            raise InvalidRequest(
                f"there is a schedule {named!r} already ({_place(self._crons[named][0].fn)}); that of "
                f"{_place(workflow.fn)} needs another name: Cron(..., name=...)"
            )
        _check_call(workflow, cron)
        self._crons[named] = (workflow, cron)

    def _register(self, registry: dict[Any, Any], key: Any, definition: Any, what: str, other: str = "name") -> None:
        known = registry.get(key)
        if known is not None:
            raise InvalidRequest(
                f"there is a {what} already ({_place(known.fn)}); {_place(definition.fn)} needs another {other}"
            )
        registry[key] = definition


# With options, which cannot be typed beside P.kwargs. One of them has to be there, or wrong arguments would fit these.
@overload
def run_step(
    name: str,
    fn: Callable[..., Coroutine[Any, Any, R]],
    /,
    *args: Any,
    key: str,
    rooted: bool = ...,
    context: BodyContext = ...,
    **kwargs: Any,
) -> Call[R]: ...
@overload
def run_step(
    name: str,
    fn: Callable[..., R],
    /,
    *args: Any,
    key: str,
    rooted: bool = ...,
    context: BodyContext = ...,
    **kwargs: Any,
) -> Call[R]: ...
@overload
def run_step(
    name: str,
    fn: Callable[..., Coroutine[Any, Any, R]],
    /,
    *args: Any,
    rooted: bool,
    context: BodyContext = ...,
    **kwargs: Any,
) -> Call[R]: ...
@overload
def run_step(
    name: str, fn: Callable[..., R], /, *args: Any, rooted: bool, context: BodyContext = ..., **kwargs: Any
) -> Call[R]: ...
@overload
def run_step(
    name: str, fn: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, context: BodyContext, **kwargs: Any
) -> Call[R]: ...
@overload
def run_step(name: str, fn: Callable[..., R], /, *args: Any, context: BodyContext, **kwargs: Any) -> Call[R]: ...
@overload
def run_step(name: str, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
@overload
def run_step(name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
def run_step(name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call[Any]:
    """Run any function as a step of this name: `await kagzi.run_step("label", make_label, order.id)`.

    For lambdas and functions that are not yours to decorate. Outside of a workflow it calls the function.

    `key` makes the call's identity explicit, as in `.options(key=...)`. `rooted=True` is for libraries that call steps
    in tasks of their own: the step is known by name and key in the whole run, and not by the tasks that led to it,
    which another version of the library may name otherwise. With `context="caller"` the body sees the context variables
    of the code that calls.
    """
    check_name(name, "step name")
    key, rooted, context = (
        _call_options(name, fn, kwargs) if not _CALL_OPTIONS.isdisjoint(kwargs) else (None, False, None)
    )
    step = fn if isinstance(fn, Step) else None
    body: Callable[..., Any] = fn if step is None else step.fn
    if not callable(body):
        raise InvalidRequest(f"run_step({name!r}) needs a function and then its arguments, not {fn!r:.100}")
    execution = current(name)
    if execution is None:
        if cannot_await():
            return cast("Call[Any]", result_of(name, body, args, kwargs))
        return await_function(body, args, kwargs)
    if step is not None:
        signature = step.signature
    else:
        signature = signature_of(body)
        codec = payload_codec(execution)
        if codec is not None:
            signature = signature.with_codec(codec)
    return in_turn(
        call_step(
            execution,
            name=escape(name if key is None else check_name(f"{name}[{key}]", "step name and key together")),
            fn=body,
            codec=signature,
            policy=None if step is None else step.retry,
            timeout=STEP_TIMEOUT if step is None else step.timeout,
            args=args,
            kwargs=kwargs,
            rooted=rooted,
            context=copy_context() if context == "caller" else None,
        )
    )


def _call_options(name: str, fn: object, kwargs: dict[str, Any]) -> tuple[str | None, bool, str | None]:
    """Takes the options of `run_step` out of what it was given. Refuses those that are wrong, or that could be meant
    for the function."""
    own = {each.name for each in parameters_of(fn.fn if isinstance(fn, Step) else fn)} if callable(fn) else set()
    if doubtful := sorted(own & _CALL_OPTIONS & set(kwargs)):
        raise InvalidRequest(
            f"run_step({name!r}): {doubtful[0]}= is an option of run_step, and a parameter of the function, too; pass "
            f"a lambda that calls the function"
        )
    key, rooted, context = kwargs.pop("key", None), kwargs.pop("rooted", False), kwargs.pop("context", None)
    if key is not None:
        check_name(key, "step key")
    if not isinstance(rooted, bool):
        raise InvalidRequest(f"run_step({name!r}): rooted must be True or False, not {rooted!r:.100}")
    if context not in (None, "caller", "worker"):
        raise InvalidRequest(f'run_step({name!r}): context must be "caller" or "worker", not {context!r:.100}')
    return key, rooted, context


def _given_options(options: WorkflowOptions) -> dict[str, Any]:
    """Returns what `.options(...)` has said, by name."""
    return {
        name: value for name, value in msgspec.structs.asdict(options).items() if value != getattr(_NO_OPTIONS, name)
    }


# For `def` workflows of all apps in this process; a thread that has done its run waits here for the next.
_threads = Threads()


def _outside_workflows(name: str) -> bool:
    """Whether `.call` was called outside of workflows. Refuses it in an `async def` one."""
    outside = current(name) is None
    awaits = called_from() == "async def workflow" if outside else current_bridge() is None
    if awaits:
        raise InvalidRequest(
            f"{name}.call(...) is for `def` workflows; in an `async def` one write `await {name}(...)` "
            f"(at {place_of_call()})"
        )
    return outside


def _check_function(fn: Any, what: str, name: str | None) -> str:
    """The name to register a function under, if it can be a step or a workflow at all."""
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
            f"{fn.__qualname__} is a method ({_place(fn)}): after a crash another process goes on, which does not have "
            f"its object. Decorate a function; or make the object where the module is imported, and a {what} of its "
            f"bound method: `{found} = app.{what}(the_object.{fn.__name__})`"
        )
    if found.startswith("<"):
        raise InvalidRequest(f"a lambda has no name of its own; write @app.{what}(name=...)")
    return check_name(found, f"{what} name")


def _is_method(fn: Callable[..., Any]) -> bool:
    """Whether this is a function in the body of a class that is to be called with an object of it."""
    within = getattr(fn, "__qualname__", "").rpartition(".")[0]
    if not within or within.endswith("<locals>") or inspect.ismethod(fn) or isinstance(fn, staticmethod):
        return False
    return next((parameter.name for parameter in parameters_of(fn)), None) in ("self", "cls")


def _check_handler(handler: object) -> FailureHandler:
    """A name is taken as it is: the workflow may live in another program."""
    if isinstance(handler, str):
        return FailureHandler(check_name(handler, "on_failure"))
    if not isinstance(handler, Workflow):
        raise InvalidRequest(f"on_failure must be a workflow or the name of one, not {handler!r:.100}")
    if not handler.signature.takes_only(FailedRun):
        shown = handler.fn.__name__ if handler.name == FAILURE_HANDLER else handler.name
        raise InvalidRequest(
            f"{shown} ({_place(handler.fn)}) cannot handle failures: it must have one parameter, annotated with "
            f"kagzi.FailedRun, for example `async def {handler.fn.__name__}(failed: kagzi.FailedRun) -> None`"
        )
    return FailureHandler(handler.name, handler._options.queue or handler.queue)


def _check_retry(retry: object) -> Retry | None:
    if retry is None or isinstance(retry, Retry):
        return retry
    raise InvalidRequest(f"retry must be a Retry, for example Retry(attempts=3), not {retry!r:.100}")


def _check_timeout(timeout: Duration, field: str) -> Span:
    span = parse_duration(timeout, field)
    if span == 0:
        raise InvalidRequest(f"{field} must be longer than 0; leave it out for the default")
    return span


def _check_priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= PRIORITY_LIMIT:
        raise InvalidRequest(f"priority must be a whole number from 0 to {PRIORITY_LIMIT}, not {priority!r:.100}")
    return priority


def _check_moment(moment: object, field: str) -> datetime:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidRequest(
            f"{field} must be a datetime with a time zone, for example datetime.now(UTC), not {moment!r:.100}"
        )
    return moment


def _place(fn: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return repr(fn) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _local_types(depth: int) -> Mapping[str, Any] | None:
    """The classes defined in the function that is decorating, which annotations written as text may name."""
    frame = sys._getframe(depth)
    if frame.f_locals is frame.f_globals:
        return None
    kinds = (type, types.GenericAlias, types.UnionType)
    return {name: value for name, value in frame.f_locals.items() if isinstance(value, kinds)}

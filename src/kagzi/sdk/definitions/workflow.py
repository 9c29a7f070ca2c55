"""Workflows as users write them: `@app.workflow` makes a function a `Workflow[P, R]` with its own parameters.

Options come before the call, `checkout.options(id=…).start(order)`, because keywords beside `*args: P.args` cannot be
typed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, ParamSpec, TypeVar, cast, get_args

import msgspec

from kagzi.core.duration import Duration, parse_duration
from kagzi.core.failed_run import FAILURE_HANDLER, FailedRun, is_document, with_input
from kagzi.core.failure import Redact
from kagzi.core.limits import check_name
from kagzi.core.lineage import PayloadContext, PayloadKind
from kagzi.core.options import names_its_options
from kagzi.core.retry import Retry
from kagzi.core.tags import check_tags
from kagzi.errors import InvalidRequest, NonDeterminismError
from kagzi.sdk.ambient import current, use_payload_codec
from kagzi.sdk.blocking import Portal, blocking
from kagzi.sdk.children import ChildRun, run_child, spawn_child
from kagzi.sdk.debounce import Debounce, check_declared, check_option
from kagzi.sdk.definitions.options import (
    NO_OPTIONS,
    FailureHandler,
    OnConflict,
    OnParentEnd,
    WorkflowOptions,
    check_moment,
    check_priority,
    check_retry,
    check_timeout,
    given_options,
)
from kagzi.sdk.definitions.step import Call, outside_workflows
from kagzi.sdk.foreign import place_of, refuse_foreign
from kagzi.sdk.limits import Key, Limit, Rate, WorkflowLimits, limits_of
from kagzi.sdk.payload import Codec, Reader
from kagzi.sdk.plainly import as_plain_workflow, await_function, called_from, result_of
from kagzi.sdk.replay.calls import call_inline
from kagzi.sdk.replay.continuing import continue_as_new
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import place_of_call
from kagzi.sdk.replay.threaded import Threads, in_turn, run_in_thread
from kagzi.sdk.signature import Signature
from kagzi.sdk.start_signal import Signal, check_start_signal

if TYPE_CHECKING:
    from kagzi.api.operations import StartRun
    from kagzi.sdk.definitions.registrar import Registrar
    from kagzi.sdk.handle import Handle

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_VERSION: Final = "1"

# What does the same for a workflow that is part of another one.
_INLINE_INSTEAD: Final = {
    "timeout": "put `asyncio.timeout(...)` around the call",
    "deadline": "put `asyncio.timeout(...)` around the call",
    "delay": "call `kagzi.sleep(...)` before it",
    "start_at": "call `kagzi.sleep_until(...)` before it",
    "retry": "give its steps their own `retry=`",
}


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
    limits: WorkflowLimits | None
    debounce: Debounce | None
    signature: Signature
    usual_start: StartRun | None = None  # one without options and limits, from which the next ones are made

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
        concurrency: Limit | Sequence[Limit] | None = None,
        rate: Rate | Sequence[Rate] | None = None,
        fair: Key | None = None,
        debounce: Debounce | None = None,
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
        self.retry = check_retry(retry)
        if timeout is not None:
            check_timeout(timeout, "workflow timeout")
        self.timeout = timeout
        self.on_failure = None if on_failure is None else check_handler(on_failure)
        # Verified, so that a wrong argument raises where the run is started and not where it would be executed.
        self.signature = Signature(fn, name=name, codec=codec, localns=localns, passes_objects=False)
        self.limits = None
        if concurrency is not None or rate is not None or fair is not None:
            self.limits = limits_of(concurrency, rate, fair, self.name, list(inspect.signature(fn).parameters))
        self.debounce = None
        if debounce is not None:
            self.debounce = check_declared(debounce, self.name, list(inspect.signature(fn).parameters))
        self._app = app
        self._codec = codec
        self._options = NO_OPTIONS
        # What the decorator has said of runs, and only a run of its own can have.
        own: dict[str, object] = {"timeout": timeout, "retry": retry, "on_failure": on_failure, "debounce": debounce}
        own |= {"concurrency": concurrency, "rate": rate, "fair": fair}
        self._of_runs = {option: value for option, value in own.items() if value is not None}
        if on_failure == name:
            check_handler(self)  # other names are taken as they are

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
        kind = called_from()
        if kind == "async def workflow":
            return await_function(self.fn, self._with_context(args), kwargs)
        if kind == "def workflow":
            return cast("Call[R]", result_of(self.name, self.fn, self._with_context(args), kwargs))
        return self._start_and_wait(args, kwargs)

    async def _start_and_wait(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if self._options is not NO_OPTIONS:
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
        """The portal by which blocking code reaches the app."""
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
        given = [name for name in given_options(self._options) if name != "version"]
        if given:
            raise InvalidRequest(
                f"{what} was called with {', '.join(given)} (at {place_of_call()}); a run that begins anew keeps what "
                "it was started with, and can be given another version only"
            )
        try:
            context = None if self._codec is None else execution.lineage.of(PayloadKind.INPUT)
            input = self.signature.encode_arguments(args, kwargs, context)
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
        refuse_foreign(self.name, self.fn, self._app, execution)
        self._refuse_run_options(execution.queue)
        return in_turn(call_inline(execution, self.name, self._call, execution, args, kwargs))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """In a `def` workflow: the result of this one as part of the same run. The same as calling it there, with the
        type of the result."""
        outside_workflows(self.name)
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
        limit_key: str | None = None,
        debounce: Debounce | Literal[False] | None = None,
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

        `limit_key` says whose share of the limits of the workflow the run takes, instead of what `concurrency=` makes
        of its arguments.

        `debounce`, a `kagzi.Debounce`, has starts with one key become one run while nobody has begun it: the last input
        counts. `handle.already_exists` says that there was one to join. `False` is for a run of its own, whatever the
        decorator says.

        Of a child, which another workflow starts by `run` or `spawn`: `key` names it among its siblings
        (`render[p-7]`), so that it stays the same when the calls around it are reordered; `on_parent_end` says what
        becomes of it when its parent ends, "cancel" (default), "abandon" or "terminate".
        """
        changes: dict[str, Any] = {}
        texts = (
            ("id", id),
            ("queue", queue),
            ("version", version),
            ("namespace", namespace),
            ("key", key),
            ("limit_key", limit_key),
        )
        for field, text in texts:
            if text is not None:
                changes[field] = check_name(text, field)
        if priority is not None:
            changes["priority"] = check_priority(priority)
        for field, length in (("delay", delay), ("timeout", timeout)):
            if length is not None:
                check_timeout(length, field) if field == "timeout" else parse_duration(length, field)
                changes[field] = length
        for field, moment in (("start_at", start_at), ("deadline", deadline)):
            if moment is not None:
                changes[field] = check_moment(moment, field)
        if retry is not None:
            changes["retry"] = check_retry(retry)
        if on_conflict is not None:
            if on_conflict not in get_args(OnConflict):
                choices = ", ".join(f'"{word}"' for word in get_args(OnConflict))
                raise InvalidRequest(f"on_conflict must be one of {choices}, not {on_conflict!r:.100}")
            changes["on_conflict"] = on_conflict
        if signal is not None:
            changes["signal"] = check_start_signal(signal)
        if debounce is not None:
            changes["debounce"] = check_option(debounce)
        if on_failure is not None:
            changes["on_failure"] = check_handler(on_failure)
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
    def codec(self) -> Codec | None:
        """The layer around every payload of the app, and around its errors."""
        return self._codec

    @property
    def redact(self) -> Redact | None:
        """What the app makes of each error before it is stored."""
        return self._app.redact

    @property
    def run_options(self) -> WorkflowOptions:
        """What `.options(...)` has said."""
        return self._options

    # What the worker calls.

    def begin(self, input: bytes, execution: Execution, failed_input: bytes | None = None) -> Coroutine[Any, Any, R]:
        """Calls the workflow function with the decoded input. The input of a failure handler was made by the engine,
        which has no codec; `failed_input` is the input of the failed run."""
        execution.app = self._app
        if self._codec is not None:
            use_payload_codec(execution, self._codec)
        if failed_input is None or not is_document(input):
            context = None if self._codec is None else execution.lineage.of(PayloadKind.INPUT)
            args, kwargs = self.signature.decode_arguments(input, context)
        else:
            args, kwargs = self.signature.with_codec(None).decode_arguments(input)
            reader, lineage = Reader(self._codec), execution.lineage
            read = partial(reader, context=lineage.of(PayloadKind.INPUT))
            read_failure = partial(reader.failure, context=lineage.of(PayloadKind.ERROR))
            args = tuple([with_input(value, failed_input, read, read_failure) for value in args])
        return self._call(execution, args, kwargs)

    def encode_result(self, value: R, context: PayloadContext | None = None) -> bytes:
        return self.signature.encode_result(value, context)

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
        """Returns the arguments for a call without any run."""
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
        if self._options is NO_OPTIONS and not self._of_runs and self.queue in (None, queue):
            return
        given = self._of_runs | given_options(self._options)
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


# For `def` workflows of all apps in this process; a thread that has done its run waits here for the next.
_threads = Threads()


def check_handler(handler: object) -> FailureHandler:
    """Checks a failure handler and returns its name. A name is taken as it is: the workflow may live in another
    program."""
    if isinstance(handler, str):
        return FailureHandler(check_name(handler, "on_failure"))
    if not isinstance(handler, Workflow):
        raise InvalidRequest(f"on_failure must be a workflow or the name of one, not {handler!r:.100}")
    if not handler.signature.parameters.takes_only(FailedRun):
        shown = handler.fn.__name__ if handler.name == FAILURE_HANDLER else handler.name
        raise InvalidRequest(
            f"{shown} ({place_of(handler.fn)}) cannot handle failures: it must have one parameter, annotated with "
            f"kagzi.FailedRun, for example `async def {handler.fn.__name__}(failed: kagzi.FailedRun) -> None`"
        )
    return FailureHandler(handler.name, handler._options.queue or handler.queue)

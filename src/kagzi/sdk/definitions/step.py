"""Steps as users write them: `@app.step` makes a function a `Step[P, R]` with the function's own parameters.

Options come before the call, `charge.options(key=sku)(sku)`, because keywords beside `*args: P.args` cannot be typed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, overload

from kagzi.core.duration import Duration
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import check_name
from kagzi.core.options import names_its_options
from kagzi.core.retry import Retry
from kagzi.core.step import escape
from kagzi.core.tags import MOST_TAGS
from kagzi.errors import InvalidRequest, NonDeterminismError
from kagzi.sdk.ambient import current, payload_codec
from kagzi.sdk.annotations import parameters_of
from kagzi.sdk.blocking import Portal, blocking
from kagzi.sdk.definitions.options import OnConflict, check_retry, check_timeout
from kagzi.sdk.foreign import refuse_foreign
from kagzi.sdk.payload import Codec
from kagzi.sdk.plainly import await_function, call_function, called_from, cannot_await, result_of
from kagzi.sdk.replay.calls import call_step
from kagzi.sdk.replay.loop import place_of_call
from kagzi.sdk.replay.threaded import current_bridge, in_turn
from kagzi.sdk.signature import Signature, signature_of
from kagzi.sdk.standalone import TAG, plain_arguments
from kagzi.sdk.worker.process_references import Reference

if TYPE_CHECKING:
    from kagzi.sdk.definitions.registrar import Registrar
    from kagzi.sdk.definitions.workflow import Workflow
    from kagzi.sdk.handle import Handle

P = ParamSpec("P")
R = TypeVar("R")

STEP_TIMEOUT: Final[Span] = 600 * SECOND

BodyContext: TypeAlias = Literal["caller", "worker"]
_CALL_OPTIONS: Final = frozenset({"key", "rooted", "context"})

# What a call of a step gives to await. Not Coroutine[Any, Any, R]: mypy would then infer Any for asyncio.gather.
Call: TypeAlias = Coroutine[object, None, R]


class Step(Generic[P, R]):
    """A step: called in a workflow it runs once and its result is kept; anywhere else it is the function.

    `fn` is the function itself.
    """

    fn: Callable[P, Any]
    name: str
    retry: Retry | None
    timeout: Span
    signature: Signature
    body: Callable[..., Any] | None = None  # what a worker calls, if that is not the function
    transaction = False
    reference: Reference | None = None  # where a process finds it, if it runs in one

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
        self.retry = check_retry(retry)
        self.timeout = STEP_TIMEOUT if timeout is None else check_timeout(timeout, "step timeout")
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
        if self._app is not execution.app:
            refuse_foreign(self.name, self.fn, self._app, execution)
        return in_turn(
            call_step(
                execution,
                name=self._id,
                fn=self.body or self.fn,
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
        if outside_workflows(self.name):
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
            step.retry = check_retry(retry)
        if timeout is not None:
            step.timeout = check_timeout(timeout, "step timeout")
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
        """The portal by which blocking code reaches the app."""
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
        refuse_foreign(step.name, body, step._app, execution)
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


def outside_workflows(name: str) -> bool:
    """Returns whether `.call` was called outside of workflows. Refuses it in an `async def` one."""
    outside = current(name) is None
    awaits = called_from() == "async def workflow" if outside else current_bridge() is None
    if awaits:
        raise InvalidRequest(
            f"{name}.call(...) is for `def` workflows; in an `async def` one write `await {name}(...)` "
            f"(at {place_of_call()})"
        )
    return outside

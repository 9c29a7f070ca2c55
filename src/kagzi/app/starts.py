"""Makes the starts that are sent to the engine, and finds the run behind an answer that says no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kagzi import tracing
from kagzi.api.engine import Engine
from kagzi.api.operations import Started, StartRun, StartSignal
from kagzi.core.conflict import OnConflict
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.limits import DEFAULT_QUEUE
from kagzi.core.lineage import FIRST_INPUT, PayloadKind, lineage_of, new_input, signal_by_id
from kagzi.core.signal import check_key
from kagzi.engine.local import LocalEngine
from kagzi.errors import Conflict, InvalidRequest, NotFound
from kagzi.ids import IdSource
from kagzi.sdk.debounce import debounce_of
from kagzi.sdk.definitions import Workflow, WorkflowOptions
from kagzi.sdk.definitions.options import NO_OPTIONS
from kagzi.sdk.limits import limit_of
from kagzi.sdk.moments import instant_of
from kagzi.sdk.payload import Codec
from kagzi.sdk.signal_values import encode_signal
from kagzi.sdk.signature import Signature

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def start_of(
    workflow: Workflow[Any, Any],
    options: WorkflowOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    namespace: str,
    ids: IdSource,
    codec: Codec | None,
) -> StartRun:
    """Returns the start of a run as the engine takes it. `namespace` is that of the app."""
    usual = workflow.usual_start
    run_id, signature = ids.run_id(), workflow.signature
    if usual is not None and options is NO_OPTIONS and usual.namespace == namespace:
        context = None if codec is None else new_input(namespace, run_id)
        return replace(usual, run_id=run_id, input=signature.encode_arguments(args, kwargs, context))
    handler = options.on_failure or workflow.on_failure
    namespace = options.namespace or namespace
    context = None if codec is None else new_input(namespace, run_id)
    input = signature.encode_arguments(args, kwargs, context)
    limit_name, limit_key = limit_of(workflow, options, args, kwargs)
    start = StartRun(
        namespace=namespace,
        run_id=run_id,
        workflow_type=workflow.name,
        task_queue=options.queue or workflow.queue or DEFAULT_QUEUE,
        version=options.version or workflow.version,
        input=input,
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
        limit_name=limit_name,
        limit_key=limit_key,
        debounce=debounce_of(workflow, options, args, kwargs),
        on_conflict=OnConflict.RETURN if options.on_conflict is None else OnConflict(options.on_conflict),
    )
    # Limits and debouncing take something from the arguments.
    if options is NO_OPTIONS and workflow.limits is None and workflow.debounce is None:
        workflow.usual_start = start
    return start if options.signal is None else _with_signal(start, options, ids, codec)


async def start_traced(tracer: Tracer, engine: Engine, start: StartRun) -> Started:
    about = {"kagzi.run_id": start.run_id, "kagzi.namespace": start.namespace, "kagzi.queue": start.task_queue}
    with tracing.starting(tracer, start.workflow_type, about) as span:
        started = await engine.workflows.start(replace(start, trace_context=tracing.context_of(span)))
        if start.debounce is not None and started.already_exists:
            span.set_attribute("kagzi.joined_run_id", started.run_id)
        return started


async def find_same(engine: Engine, start: StartRun, signature: Signature) -> str | None:
    """Returns the run that has this start's id, if it was given the same: what its codec, its types and its defaults
    make of other bytes is for its workflow to say. With a signal, inputs are not what was refused."""
    if start.external_id is None or start.signal is not None or start.on_conflict is OnConflict.FAIL:
        return None
    try:
        run = await engine.workflows.get_by_external_id(start.namespace, start.external_id)
    except NotFound:  # in the transaction of a caller, who alone sees it so far
        return None
    if run.workflow_type != start.workflow_type:
        return None
    given = run.input
    if run.incarnation or run.origin is not None:
        for kept in await engine.workflows.values(run.namespace, run.run_id, (FIRST_INPUT,)):
            given = kept.value
    try:
        there = signature.canonical_arguments(given, lineage_of(run).of(PayloadKind.INPUT))
        same = there == signature.canonical_arguments(start.input, new_input(start.namespace, start.run_id))
    except Exception as error:  # codecs and types are the user's
        raise Conflict(
            f"id {start.external_id!r} belongs to run {run.run_id} of {run.workflow_type}, and whether that was "
            f"started with the same input cannot be told: {error}"
        ) from error
    return run.run_id if same else None


def joinable(engine: Engine, options: WorkflowOptions) -> LocalEngine:
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


def _with_signal(start: StartRun, options: WorkflowOptions, ids: IdSource, codec: Codec | None) -> StartRun:
    """Returns a start with the signal of its options. Without a choice, a run that has finished is started again."""
    signal = options.signal
    assert signal is not None
    told = StartSignal(
        name=signal.name,
        # Whether the run with the id is there already shows when it is told.
        value=encode_signal(
            signal.name, signal.value, codec, signal_by_id(start.namespace, start.external_id or "", signal.name)
        ),
        key=check_key(signal.key, ids.token()),
    )
    choice = OnConflict.RESTART_FINISHED if options.on_conflict is None else start.on_conflict
    return replace(start, signal=told, on_conflict=choice)


def _optional_span(value: Duration | None, field: str) -> int | None:
    if value is None:
        return None
    span = parse_duration(value, field)
    if span == 0:
        raise InvalidRequest(f"{field} must be longer than 0, not {value!r:.100}")
    return span

"""Runs: start, look at, wait for, end, and begin again."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from kagzi.api.explanation import explain
from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    Fork,
    RepeatRun,
    StartDebounce,
    Started,
    StartRun,
    StartSignal,
    TerminateRun,
)
from kagzi.api.workflows import RunFilter
from kagzi.core.conflict import OnConflict
from kagzi.core.duration import parse_duration
from kagzi.core.instant import SECOND, Instant, Span, from_datetime
from kagzi.core.limits import (
    DEFAULT_PAGE_SIZE,
    DEFAULT_QUEUE,
    PAGE_SIZE,
    REASON_CHARACTERS,
    STEP_ID_BYTES,
    check_name,
    check_new_run_id,
    is_run_id,
)
from kagzi.core.page import page_of
from kagzi.core.retry import MOST_ATTEMPTS, UNLIMITED, Retry
from kagzi.core.run import CANCEL_GRACE, PRIORITY_LIMIT, Run, RunStatus
from kagzi.core.signal import MADE_KEY
from kagzi.core.tags import check_tags, read_tag
from kagzi.errors import NotFound
from kagzi.http.call import Call, Namespaced, Reply
from kagzi.http.fields import NEW_RUN_ID, TEXT, WAIT, Length, Name, Tags, Timeout, When, whole
from kagzi.http.limits import ANSWER_BYTES, LONGEST_WAIT_SECONDS, STEPS_PAGE
from kagzi.http.problems import BadField, check_handler_queue, naming
from kagzi.http.reading import read_json
from kagzi.ports.documents import (
    Moment,
    RunDocument,
    RunSummary,
    StepDocument,
    moment,
    run_document,
    run_summary,
    step_document,
)

_TOKEN: Final = 1000
_NULL: Final = b"null"
_BASE64: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?$"
_ATTEMPTS: Final = whole(
    "The first try counts; -1 is without end.",
    UNLIMITED,
    MOST_ATTEMPTS,
    anyOf=[{"const": UNLIMITED}, {"minimum": 1, "maximum": MOST_ATTEMPTS}],
)

Token = Annotated[str, Meta(max_length=_TOKEN, description="`next` or `prev` of another page of the same listing.")]
PageSize = Annotated[int, Meta(ge=1, le=PAGE_SIZE, description="How many a page may hold.")]


async def run_id_of(call: Call[Any, Any], named: str) -> str:
    """The run id of a run that is named by it, or by the id it was started with. What looks like a run id is one."""
    if is_run_id(named):
        return named.lower()
    return (await call.engine.workflows.get_by_external_id(call.namespace, named)).run_id


async def schedule_id_of(call: Call[Any, Any], named: str) -> str:
    """The id of a schedule that is named by it, or by its name. One that was deleted has runs, too."""
    if is_run_id(named):
        return named.lower()
    return (await call.engine.schedules.get(call.namespace, named)).schedule_id


def tag_of(text: str) -> dict[str, str]:
    """A tag that is written as `batch=7`."""
    with naming("tag"):
        name, value = read_tag(text)
        return {name: value}


# Looking.


class RunsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Annotated[RunStatus | None, Meta(description="Only runs that stand like this.")] = None
    workflow: Annotated[Name | None, Meta(description="Only runs of this workflow.")] = None
    queue: Annotated[Name | None, Meta(description="Only runs of this queue.")] = None
    created_after: When | None = None
    created_before: When | None = None
    parent: Annotated[Name | None, Meta(description="Only runs that the run of this id has started.")] = None
    tag: Annotated[Name | None, Meta(description="Only runs with this tag, `name=value`.", examples=["batch=7"])] = None
    id_prefix: Annotated[Name | None, Meta(description="Only runs whose id begins so.")] = None
    error: Annotated[
        Name | None, Meta(description="Only runs that ended with an error of this class, with its module or without.")
    ] = None
    schedule: Annotated[Name | None, Meta(description="Only runs that this schedule, by name or id, has started.")] = (
        None
    )
    id: Annotated[Name | None, Meta(description="Only the run that was started with this id. Alone.")] = None
    limit: PageSize = DEFAULT_PAGE_SIZE
    page: Token | None = None


class RunPage(Struct, frozen=True, kw_only=True):
    """Runs, newest first. `next` leads to older ones, `prev` to newer ones. Filters look at 20,000 runs at a time: then
    there may be fewer runs than `limit`, or none, `searched_until` says how far they came, and the neighbour goes on
    there."""

    runs: tuple[RunSummary, ...]
    next: str | None
    prev: str | None
    searched_until: Moment | None = None


async def list_runs(call: Call[RunsQuery, None]) -> RunPage:
    query = call.query
    nothing = RunPage(runs=(), next=None, prev=None)
    try:
        parent = None if query.parent is None else await run_id_of(call, query.parent)
        schedule = None if query.schedule is None else await schedule_id_of(call, query.schedule)
    except NotFound:
        return nothing
    filter = RunFilter(
        namespace=call.namespace,
        status=query.status,
        workflow_type=query.workflow,
        task_queue=query.queue,
        created_after=moment_of(query.created_after, "created_after"),
        created_before=moment_of(query.created_before, "created_before"),
        parent_run_id=parent,
        tags={} if query.tag is None else tag_of(query.tag),
        id_prefix=query.id_prefix,
        error=query.error,
        schedule_id=schedule,
    )
    if query.id is not None:
        if filter != RunFilter(namespace=call.namespace) or query.page is not None:
            raise BadField("id", "id finds one run; it does not go with other filters")
        try:
            found = await call.engine.workflows.get_by_external_id(call.namespace, query.id)
        except NotFound:
            return nothing
        return RunPage(runs=(run_summary(found),), next=None, prev=None)
    with naming("page"):  # the filters have been looked at
        page = await call.engine.workflows.list(filter, page_size=query.limit, page_token=query.page)
    return RunPage(
        runs=tuple([run_summary(run) for run in page.items]),
        next=page.next,
        prev=page.prev,
        searched_until=None if page.searched_until is None else moment(page.searched_until),
    )


class RunQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    wait: Annotated[
        str | None,
        Meta(
            description="Answer when the run has finished, or after this long (at most `60s`).", extra_json_schema=WAIT
        ),
    ] = None


async def get_run(call: Call[RunQuery, None]) -> RunDocument:
    workflows = call.engine.workflows
    run_id = await run_id_of(call, call.path["run_id"])
    wait = 0 if call.query.wait is None else length_of(call.query.wait, "wait")
    found: Run | None = None
    if wait:
        wait = min(wait, round(LONGEST_WAIT_SECONDS * SECOND))
        found = await call.host.closing.until(lambda: workflows.wait(call.namespace, run_id, wait), None)
    if found is None:
        found = await workflows.get(call.namespace, run_id)
    return run_document(found, await explain(call.engine, found, call.host.clock.now()))


class StepsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[Name | None, Meta(description="Only attempts of steps of this name.")] = None
    payloads: Annotated[bool, Meta(description="With inputs and outputs.")] = False
    limit: PageSize = STEPS_PAGE
    page: Token | None = None


class StepPage(Struct, frozen=True, kw_only=True):
    """Attempts of steps in the order they ended, then those that are running as they began."""

    steps: tuple[StepDocument, ...]
    next: str | None
    prev: str | None


async def list_steps(call: Call[StepsQuery, None]) -> StepPage:
    query, run_id = call.query, await run_id_of(call, call.path["run_id"])
    steps = await call.engine.workflows.steps(call.namespace, run_id, payloads=query.payloads)
    if query.name is not None:
        steps = tuple([step for step in steps if step.name == query.name])
    about = f"steps {call.namespace!r} {run_id!r} {query.name!r} {query.payloads}"
    size = query.limit
    while True:
        with naming("page"):
            page = page_of(steps, size, query.page, about, call.engine.page_tokens)
        found = tuple([step_document(step, payloads=query.payloads) for step in page.items])
        answer = StepPage(steps=found, next=page.next, prev=page.prev)
        if size == 1 or not query.payloads or len(msgspec.json.encode(answer)) <= ANSWER_BYTES:
            return answer
        # A page of large payloads is a shorter page.
        size = max(1, min(size, len(page.items)) // 2)


# Starting.


class RetryBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the run, and steps without a policy of their own, are tried again."""

    attempts: Annotated[float, _ATTEMPTS] = 5
    first: Length = "1s"
    factor: Annotated[float, Meta(gt=0, le=1e6)] = 2.0
    cap: Length = "1m"
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.25
    give_up_on: Annotated[tuple[Name, ...], Meta(max_length=100, description="Dotted names of classes.")] = ()


class StartSignalBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is told with its start."""

    name: Annotated[Name, Meta(description="What the workflow waits for.")]
    value: Annotated[Raw, Meta(description="What it gets.")] = msgspec.field(default_factory=lambda: Raw(b"null"))
    key: Annotated[
        Name | None, Meta(description="Makes a repeat harmless: a signal with the same key is the same signal.")
    ] = None


class StartDebounceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Many starts in a short time become one run."""

    wait: Annotated[Length, Meta(description="The run begins so long after the last start.")]
    key: Annotated[
        Name | None, Meta(description="Starts with one key become one run. Without one: all starts of the workflow.")
    ] = None
    most: Annotated[
        Length | None, Meta(description="And at most so long after the first. Without it: however long starts go on.")
    ] = None


class StartBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Annotated[Name, Meta(description="The name it is registered under.")]
    input: Annotated[
        Raw,
        Meta(description="The arguments: an array by position, an object by name, anything else as the only one."),
    ] = msgspec.field(default_factory=lambda: Raw(b"[]"))
    input_base64: Annotated[
        str | None,
        Meta(
            description="Instead of `input`: bytes that a codec of the workers can read.",
            extra_json_schema={"contentEncoding": "base64", "pattern": _BASE64},
        ),
    ] = None
    id: Annotated[
        Name | None,
        Meta(description="Your own id of the run: starting it again finds the first one. Idempotency-Key is the same."),
    ] = None
    queue: Name = DEFAULT_QUEUE
    version: Annotated[
        Name | None,
        Meta(description="Without one: the default of the workflow, else the version that workers offered last."),
    ] = None
    priority: Annotated[float, whole("A level is worth a minute of waiting.", 0, PRIORITY_LIMIT)] = 0
    delay: Length | None = None
    start_at: When | None = None
    timeout: Timeout | None = None
    deadline: When | None = None
    retry: RetryBody | None = None
    on_conflict: Annotated[
        OnConflict | None,
        Meta(
            description="If there is a run with this id: return it, fail, or start a new one in its place if it has "
            "finished, or has finished otherwise than COMPLETED. Without it: return; with a signal, restart_finished."
        ),
    ] = None
    signal: Annotated[
        StartSignalBody | None,
        Meta(description="What the run that has this id is told, or the one that is started with it."),
    ] = None
    debounce: Annotated[
        StartDebounceBody | None,
        Meta(
            description="Join the run of this workflow and key that nobody has begun, which gets this input, or make "
            "one that later starts join. Not beside an id, a signal, `delay` or `start_at`."
        ),
    ] = None
    on_failure: Annotated[
        Name | None, Meta(description="A workflow that is started if the run fails or times out.")
    ] = None
    limit_key: Annotated[
        Name | None, Meta(description="Whose share of the limits of the workflow the run takes: a tenant, an account.")
    ] = None
    on_failure_queue: Annotated[
        Name | None, Meta(description="With `on_failure`: where that one waits. Else in the queue of the run.")
    ] = None
    tags: Tags = {}
    run_id: Annotated[
        str | None,
        Meta(description="A UUIDv7 made by the caller: repeating is harmless then.", extra_json_schema=NEW_RUN_ID),
    ] = None


class StartedRun(Struct, frozen=True, kw_only=True):
    """The run that now has this id; `already_exists` if there was one before."""

    run_id: str
    status: RunStatus
    already_exists: bool


async def start_run(call: Call[Namespaced, StartBody]) -> Reply:
    body = call.body
    # With an id in the body that one decides; it is the same promise.
    key = call.headers.get("idempotency-key")
    external_id = body.id if body.id is not None or key is None else _idempotency_key(key)
    check_handler_queue(body.on_failure, body.on_failure_queue)
    with naming("tags"):
        check_tags(body.tags)
    if external_id is None and body.on_conflict not in (None, OnConflict.RETURN):
        raise BadField("on_conflict", "on_conflict is for a start with an id, which is not given")
    started = await call.engine.workflows.start(
        StartRun(
            namespace=call.namespace,
            run_id=_new_id(call, body.run_id),
            workflow_type=body.workflow,
            task_queue=body.queue,
            version=body.version,
            input=_input(body),
            external_id=external_id,
            priority=int(body.priority),
            delay=0 if body.delay is None else length_of(body.delay, "delay"),
            start_at=moment_of(body.start_at, "start_at"),
            timeout=timeout_of(body.timeout),
            deadline_at=moment_of(body.deadline, "deadline"),
            retry_policy=None if body.retry is None else policy_of(body.retry),
            trace_context=call.trace,
            on_failure=body.on_failure,
            on_failure_queue=body.on_failure_queue,
            limit_key=body.limit_key,
            tags=body.tags,
            on_conflict=body.on_conflict or (OnConflict.RETURN if body.signal is None else OnConflict.RESTART_FINISHED),
            signal=_signal(call),
            debounce=None if body.debounce is None else _debounce(body, body.debounce, external_id),
        )
    )
    return _started(started)


def _debounce(body: StartBody, debounce: StartDebounceBody, external_id: str | None) -> StartDebounce:
    beside = {"id": external_id, "signal": body.signal, "delay": body.delay, "start_at": body.start_at}
    for field, given in beside.items():
        if given is not None:
            raise BadField("debounce", f"debounce and {field} do not go together: it may join the run of another start")
    wait = length_of(debounce.wait, "debounce.wait")
    most = None if debounce.most is None else length_of(debounce.most, "debounce.most")
    if wait == 0:
        raise BadField("debounce.wait", "debounce.wait must be longer than 0")
    if most is not None and most < wait:
        raise BadField("debounce.most", "debounce.most must not be shorter than debounce.wait")
    return StartDebounce(key=debounce.key or "", wait=wait, most=most)


def _signal(call: Call[Namespaced, StartBody]) -> StartSignal | None:
    signal = call.body.signal
    if signal is None:
        return None
    if call.body.on_conflict is OnConflict.RETURN:
        raise BadField("on_conflict", "on_conflict with a signal is restart_finished, restart_failed or fail")
    key = MADE_KEY + call.host.ids.token() if signal.key is None else signal.key
    return StartSignal(name=signal.name, value=bytes(signal.value), key=key)


def _started(started: Started) -> Reply:
    document = StartedRun(run_id=started.run_id, status=started.status, already_exists=started.already_exists)
    return Reply(
        document=document,
        status=200 if started.already_exists else 201,
        headers={"location": f"/api/v1/runs/{started.run_id}"},
    )


def _new_id(
    call: Call[Namespaced, StartBody] | Call[Namespaced, RepeatBody] | Call[Namespaced, ForkBody], given: str | None
) -> str:
    if given is None:
        return call.host.ids.run_id()
    with naming("run_id"):
        return check_new_run_id(given, "run_id")


def _idempotency_key(key: str) -> str:
    # The header is a string in double quotes by its draft, and bare in most clients.
    bare = key[1:-1] if len(key) >= 2 and key[0] == key[-1] == '"' else key
    with naming("Idempotency-Key"):
        return check_name(bare, "Idempotency-Key")


def _input(body: StartBody) -> bytes:
    if body.input_base64 is None:
        return read_json(body.input, "input")
    if bytes(body.input) != b"[]":
        raise BadField("input_base64", "input and input_base64 are both given; one of them has to go")
    try:
        return base64.b64decode(body.input_base64, validate=True)
    except (binascii.Error, ValueError):
        raise BadField("input_base64", "input_base64 is not base64") from None


def policy_of(retry: RetryBody) -> bytes:
    with naming("retry"):
        return Retry(
            attempts=int(retry.attempts),
            first=retry.first,
            factor=retry.factor,
            cap=retry.cap,
            jitter=retry.jitter,
            give_up_on=retry.give_up_on,
        ).encode()


# Ending, and beginning again.


class Ending(Struct, frozen=True, kw_only=True):
    """`effective`: the run is cancelled or was told to end, also by an earlier request. If not, it had finished before,
    as `status` says, and that is final."""

    run_id: str
    effective: bool
    status: RunStatus


class CancelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace: Annotated[Length | None, Meta(description="How long it may clean up; 30 s unless said.")] = None


async def cancel(call: Call[Namespaced, CancelBody]) -> Ending:
    grace = CANCEL_GRACE if call.body.grace is None else length_of(call.body.grace, "grace")
    run_id = await run_id_of(call, call.path["run_id"])
    request = CancelRun(namespace=call.namespace, run_id=run_id, grace=grace)
    return _ending(await call.engine.workflows.cancel(request))


class TerminateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS, extra_json_schema=TEXT)] = ""


async def terminate(call: Call[Namespaced, TerminateBody]) -> Ending:
    run_id = await run_id_of(call, call.path["run_id"])
    request = TerminateRun(namespace=call.namespace, run_id=run_id, reason=call.body.reason)
    with naming("reason"):
        return _ending(await call.engine.workflows.terminate(request))


def _ending(answer: CancelAnswer) -> Ending:
    return Ending(run_id=answer.run_id, effective=answer.effective, status=answer.status)


class Woken(Struct, frozen=True, kw_only=True):
    """`woken`: the run waited for a moment, and goes on now. If not, it is running, due already, or has finished."""

    run_id: str
    woken: bool
    status: RunStatus


class WakeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


async def wake(call: Call[Namespaced, WakeBody]) -> Woken:
    answer = await call.engine.workflows.wake(call.namespace, await run_id_of(call, call.path["run_id"]))
    return Woken(run_id=answer.run_id, woken=answer.woken, status=answer.status)


class RepeatBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: Annotated[
        str | None,
        Meta(
            description="Of the new run: a UUIDv7 made by the caller, so that repeating is harmless.",
            extra_json_schema=NEW_RUN_ID,
        ),
    ] = None
    keep_id: Annotated[
        bool, Meta(description="Your own id of the run goes to the new one. False: it stays where it is.")
    ] = True


async def retry(call: Call[Namespaced, RepeatBody]) -> Reply:
    return await _repeat(call, keep_steps=True)


async def rerun(call: Call[Namespaced, RepeatBody]) -> Reply:
    return await _repeat(call, keep_steps=False)


class ForkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    from_step: Annotated[
        Annotated[str, Meta(min_length=1, max_length=STEP_ID_BYTES, extra_json_schema=TEXT)] | None,
        Meta(
            description="What was recorded before its end is kept. By its id or its name. Without it nothing is kept."
        ),
    ] = None
    input: Annotated[
        Raw,
        Meta(description="Other arguments: an array by position, an object by name. Null: those of the run."),
    ] = msgspec.field(default_factory=lambda: Raw(_NULL))
    version: Annotated[Name | None, Meta(description="Another version. Without it that of the run.")] = None
    run_id: Annotated[
        str | None,
        Meta(
            description="Of the new run: a UUIDv7 made by the caller, so that repeating is harmless.",
            extra_json_schema=NEW_RUN_ID,
        ),
    ] = None


async def fork(call: Call[Namespaced, ForkBody]) -> Reply:
    body = call.body
    request = RepeatRun(
        namespace=call.namespace,
        run_id=_new_id(call, body.run_id),
        of_run_id=await run_id_of(call, call.path["run_id"]),
        keep_steps=body.from_step is not None,
        keep_id=False,
        fork=Fork(
            from_step=body.from_step,
            input=None if bytes(body.input) == _NULL else read_json(body.input, "input"),
            version=body.version,
        ),
    )
    # The other fields have been looked at by now.
    given = {"from_step": body.from_step, "version": body.version}
    with naming(" or ".join(name for name, value in given.items() if value is not None)):
        made = await call.engine.workflows.repeat(request)
    return _started(made)


async def _repeat(call: Call[Namespaced, RepeatBody], *, keep_steps: bool) -> Reply:
    request = RepeatRun(
        namespace=call.namespace,
        run_id=_new_id(call, call.body.run_id),
        of_run_id=await run_id_of(call, call.path["run_id"]),
        keep_steps=keep_steps,
        keep_id=call.body.keep_id,
    )
    return _started(await call.engine.workflows.repeat(request))


# Lengths and moments.


def timeout_of(value: float | str | None) -> Span | None:
    if value is None:
        return None
    length = length_of(value, "timeout")
    if not length:
        raise BadField("timeout", "timeout must be longer than 0")
    return length


def length_of(value: float | str, field: str) -> Span:
    with naming(field):
        return parse_duration(value, field)


def moment_of(text: str | None, field: str) -> Instant | None:
    if text is None:
        return None
    try:
        instant = from_datetime(msgspec.convert(text, datetime))
    except (msgspec.ValidationError, ValueError, OverflowError):
        raise BadField(field, f"{field} must be RFC 3339 with a time zone, such as 2026-01-31T12:00:00Z") from None
    if instant < 0:
        raise BadField(field, f"{field} must not lie before 1970")
    return instant

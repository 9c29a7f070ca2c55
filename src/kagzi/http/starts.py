"""Starting runs over HTTP."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from kagzi.api.operations import (
    StartDebounce,
    Started,
    StartRun,
    StartSignal,
)
from kagzi.core.conflict import OnConflict
from kagzi.core.limits import (
    DEFAULT_QUEUE,
    check_name,
    check_new_run_id,
)
from kagzi.core.retry import MOST_ATTEMPTS, UNLIMITED, Retry
from kagzi.core.run import PRIORITY_LIMIT, RunStatus
from kagzi.core.signal import check_key
from kagzi.core.tags import check_tags
from kagzi.http.call import Call, Namespaced, Reply
from kagzi.http.fields import NEW_RUN_ID, Key, Length, Name, Tags, Timeout, When, whole
from kagzi.http.lengths import length_of, moment_of, timeout_of
from kagzi.http.problems import BadField, check_handler_queue, naming
from kagzi.http.reading import read_json

_BASE64: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?$"
_ATTEMPTS: Final = whole(
    "The first try counts; -1 is without end.",
    UNLIMITED,
    MOST_ATTEMPTS,
    anyOf=[{"const": UNLIMITED}, {"minimum": 1, "maximum": MOST_ATTEMPTS}],
)


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
        Key | None, Meta(description="Makes a repeat harmless: a signal with the same key is the same signal.")
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
    queue: Annotated[
        Name | None, Meta(description="Without one: that of the workflow, as its worker told; if none has, `default`.")
    ] = None
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
    note: Annotated[str, Meta(description="That no worker has offered the workflow, and which name is like it.")] = ""


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
            run_id=new_run_id(call, body.run_id),
            workflow_type=body.workflow,
            task_queue=body.queue or DEFAULT_QUEUE,
            by_name=True,
            other_queue=body.queue is None,
            version=body.version,
            input=await _input(body),
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
    return started_reply(started)


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
    with naming("signal.key"):
        key = check_key(signal.key, call.host.ids.token())
    return StartSignal(name=signal.name, value=bytes(signal.value), key=key)


def started_reply(started: Started) -> Reply:
    document = StartedRun(
        run_id=started.run_id, status=started.status, already_exists=started.already_exists, note=started.note
    )
    return Reply(
        document=document,
        status=200 if started.already_exists else 201,
        headers={"location": f"/api/v1/runs/{started.run_id}"},
    )


def new_run_id(call: Call[Any, Any], given: str | None) -> str:
    """Returns the id that the caller has given a run, or a new one."""
    if given is None:
        return call.host.ids.run_id()
    with naming("run_id"):
        return check_new_run_id(given, "run_id")


def _idempotency_key(key: str) -> str:
    # The header is a string in double quotes by its draft, and bare in most clients.
    bare = key[1:-1] if len(key) >= 2 and key[0] == key[-1] == '"' else key
    with naming("Idempotency-Key"):
        return check_name(bare, "Idempotency-Key")


async def _input(body: StartBody) -> bytes:
    if body.input_base64 is None:
        return await read_json(body.input, "input")
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

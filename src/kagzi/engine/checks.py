"""What comes from outside, checked before it reaches a store: a typed error naming the field, nothing
written."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from kagzi.api.operations import (
    Chunk,
    CompleteRun,
    CompleteStep,
    ContinueRun,
    Operation,
    SendSignal,
    SetValue,
    SpawnChild,
    StartDebounce,
    StartRun,
    StepOperation,
    TakeOutcome,
    Transition,
)
from kagzi.api.workers import Heartbeat, Poll, Registration
from kagzi.api.workflows import RunFilter
from kagzi.core.conflict import OnConflict
from kagzi.core.duration import LONGEST, format_span
from kagzi.core.failed_run import HANDLER_ALONE
from kagzi.core.failure import check_failure
from kagzi.core.family import MOST_DEPTH, ParentPolicy
from kagzi.core.instant import NEVER, Instant, Span
from kagzi.core.limits import (
    LONGEST_LEASE,
    NAME_CHARACTERS,
    REASON_CHARACTERS,
    SHORTEST_LEASE,
    STEP_ID_BYTES,
    check_id,
    check_name,
    check_new_run_id,
    check_payload,
    check_step_id,
    check_text,
)
from kagzi.core.rate import check_rate
from kagzi.core.retry import Retry
from kagzi.core.run import PRIORITY_LIMIT, RunStatus
from kagzi.core.run_value import MOST_VALUES, OURS, PROGRESS, VALUE_BYTES
from kagzi.core.tags import check_tags
from kagzi.core.versions import check_interfaces
from kagzi.core.worker import WorkflowType
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest

_QUEUES: Final = 100
_TYPES: Final = 10_000
_LABELS: Final = 64
_CONCURRENCY: Final = 10_000
_POLICY_BYTES: Final = 64 * 1024
_SHORT_POLICY: Final = 1024


def check_home(namespace: str | None) -> None:
    """Checks the namespace that something must be in; None is any."""
    if namespace is not None:
        check_name(namespace, "namespace")


def check_handler(name: object, queue: object) -> None:
    """Checks the workflow that is started when a run fails, and the queue in which its runs wait."""
    if name is None:
        raise InvalidRequest("on_failure_queue is the queue of on_failure, which is not given")
    name = check_name(name, "on_failure")
    if queue is not None:
        check_name(queue, "on_failure_queue")
    elif "@" in name:
        raise InvalidRequest(HANDLER_ALONE)


def check_number(value: object, field: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{field} must be a whole number, not {value!r:.60}")
    if not least <= value <= most:
        raise InvalidRequest(f"{field} must be between {least:,} and {most:,}, not {value!r:.60}")
    return value


def check_span(value: object, field: str, least: Span, most: Span) -> Span:
    """Checks a length of time. Bounds are named in the words people use for one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{field} must be a length of time in whole microseconds, not {value!r:.60}")
    if value < least <= 1:
        raise InvalidRequest(
            f"{field} must {'be longer than 0' if least else 'not be negative'}, not {format_span(value)}"
        )
    if not least <= value <= most:
        longest = "1000 years" if most == LONGEST else format_span(most)
        raise InvalidRequest(f"{field} must be from {format_span(least)} to {longest}, not {format_span(value)}")
    return value


def check_instant(value: object, field: str) -> Instant:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{field} must be a moment in whole microseconds since 1970, not {value!r:.60}")
    if not 0 <= value <= NEVER:
        raise InvalidRequest(f"{field} must lie between the years 1970 and 9999")
    return value


def check_reason(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"reason must be text, not {type(value).__name__}")
    if len(value) > REASON_CHARACTERS:
        raise InvalidRequest(f"reason has {len(value):,} characters; at most {REASON_CHARACTERS:,} are allowed")
    check_text(value, "reason")
    return value


def check_bytes(value: object, field: str, limit: int) -> int:
    if not isinstance(value, bytes):
        raise InvalidRequest(f"{field} must be bytes, not {type(value).__name__}")
    return len(check_payload(value, field, limit))


def check_policy(policy: bytes) -> None:
    check_bytes(policy, "retry policy", _POLICY_BYTES)
    Retry.decode(policy)


# What a start may be given beside what each of them has.
_OPTIONS: Final = attrgetter(
    *[
        field
        for field in StartRun.__struct_fields__
        if field
        not in ("namespace", "run_id", "workflow_type", "task_queue", "version", "input", "by_name", "other_queue")
    ]
)
_NO_OPTIONS: Final = _OPTIONS(StartRun(namespace="", run_id="", workflow_type="", task_queue=""))


class StartCheck:
    """Checks starts. What starts have in common is checked once: a busy client repeats the same few names."""

    _REMEMBERED = 1000

    def __init__(self, settings: EngineSettings) -> None:
        self._payload_bytes = settings.payload_bytes
        self._names: set[tuple[str, str, str, str | None]] = set()
        self._policies: set[bytes] = set()

    def __call__(self, start: StartRun) -> int:
        """Checks a start and returns the size of its payloads."""
        names = (start.namespace, start.workflow_type, start.task_queue, start.version)
        try:
            known = names in self._names
        except TypeError:
            known = False
        if not known:
            check_name(start.namespace, "namespace")
            check_name(start.workflow_type, "workflow type")
            check_name(start.task_queue, "task queue")
            if start.version is not None:
                check_name(start.version, "version")
            if len(self._names) >= self._REMEMBERED:
                self._names.clear()
            self._names.add(names)
        if check_new_run_id(start.run_id, "run id") != start.run_id:
            raise InvalidRequest("run id must be written in lower case")
        told = 0 if _OPTIONS(start) == _NO_OPTIONS else self._check_options(start)
        payload: object = start.input
        if isinstance(payload, bytes) and len(payload) <= self._payload_bytes:
            return len(payload) + told
        return check_bytes(payload, f"input of {start.workflow_type}", self._payload_bytes) + told

    def _check_options(self, start: StartRun) -> int:
        """Checks what most starts leave out. Returns the size of what the run is told with its start."""
        if start.external_id is not None:
            check_name(start.external_id, "id")
        elif start.on_conflict is not OnConflict.RETURN:
            raise InvalidRequest(f"on_conflict={start.on_conflict.value} is for a start with an id, which is not given")
        told = 0 if start.signal is None else self._check_told(start)
        if start.debounce is not None:
            _check_debounce(start, start.debounce)
        if start.on_failure is not None or start.on_failure_queue is not None:
            check_handler(start.on_failure, start.on_failure_queue)
        if start.limit_name is not None:
            check_name(start.limit_name, "limit name")
        if start.limit_key:
            check_name(start.limit_key, "limit key")
        if start.tags:
            check_tags(start.tags)
        if start.started_by is not None:
            check_id(start.started_by.run_id, "parent run id")
            check_step_id(start.started_by.step_id)
            check_number(start.started_by.attempt, "parent attempt", 1, 2**31 - 1)
        if start.priority:
            check_number(start.priority, "priority", 0, PRIORITY_LIMIT)
        if start.delay:
            check_span(start.delay, "delay", 0, LONGEST)
        if start.start_at is not None:
            check_instant(start.start_at, "start_at")
            if start.delay:
                raise InvalidRequest("delay and start_at are both given; one of them has to go")
        if start.timeout is not None:
            check_span(start.timeout, "timeout", 1, LONGEST)
        if start.deadline_at is not None:
            check_instant(start.deadline_at, "deadline")
        if start.lease_length is not None:
            check_span(start.lease_length, "heartbeat timeout", SHORTEST_LEASE, LONGEST_LEASE)
        if start.retry_policy is not None and start.retry_policy not in self._policies:
            check_policy(start.retry_policy)
            if len(self._policies) >= self._REMEMBERED:
                self._policies.clear()
            if len(start.retry_policy) <= _SHORT_POLICY:
                self._policies.add(start.retry_policy)
        return told

    def _check_told(self, start: StartRun) -> int:
        """Checks what the run is told with its start, and returns its size."""
        signal = start.signal
        assert signal is not None
        if start.external_id is None:
            raise InvalidRequest("a signal with a start is for the run that has an id, which is not given")
        if start.on_conflict is OnConflict.RETURN:
            raise InvalidRequest(
                "a start with a signal has the on_conflict restart_finished, restart_failed or fail: a run that has "
                "finished takes no signals"
            )
        check_name(signal.name, "signal name")
        check_name(signal.key, "signal key")
        return check_bytes(signal.value, f"value of signal {signal.name}", self._payload_bytes)


def _check_debounce(start: StartRun, debounce: StartDebounce) -> None:
    """What is not about the run that is joined cannot be asked for beside it."""
    for field, given in (
        ("an id", start.external_id is not None),
        ("a signal", start.signal is not None),
        ("delay", start.delay != 0),
        ("start_at", start.start_at is not None),
    ):
        if given:
            raise InvalidRequest(f"debounce and {field} do not go together: a debounced start may join another's run")
    if debounce.key:
        check_name(debounce.key, "debounce key")
    check_span(debounce.wait, "debounce wait", 1, LONGEST)
    if debounce.most is not None:
        check_span(debounce.most, "debounce most", 1, LONGEST)
        if debounce.most < debounce.wait:
            raise InvalidRequest(
                f"debounce most must not be shorter than its wait of {format_span(debounce.wait)}, and is "
                f"{format_span(debounce.most)}"
            )


def check_signal(signal: SendSignal, limit: int) -> None:
    check_name(signal.namespace, "namespace")
    check_name(signal.name, "signal name")
    check_name(signal.key, "signal key")
    check_bytes(signal.value, f"value of signal {signal.name}", limit)


def check_value_names(names: Sequence[str]) -> None:
    if len(names) > MOST_VALUES:
        raise InvalidRequest(f"a run has at most {MOST_VALUES} values; {len(names):,} are asked for")
    for name in names:
        check_name(name, "value name")


def check_chunk(chunk: Chunk, limit: int) -> int:
    """Checks a chunk and returns the size of its payloads. Ids are hardly looked at: a wrong one matches no lease."""
    if not chunk.operations:
        raise InvalidRequest("a chunk must contain an operation")
    if not chunk.run_id:
        raise InvalidRequest("run id must not be empty")
    total = 0
    for operation in chunk.operations:
        # isinstance takes long to find the base of a struct; most operations are of these two classes.
        if type(operation) is CompleteRun:
            total += len(operation.output)
        elif type(operation) is CompleteStep or isinstance(operation, StepOperation):
            step_id = operation.step_id
            if not step_id.isascii() or "\0" in step_id or not 0 < len(step_id) <= STEP_ID_BYTES:
                check_step_id(step_id)
            if operation.output is not None:
                total += len(operation.output)
            if operation.input is not None:
                total += len(operation.input)
            if operation.error is not None:
                total += len(operation.error)
                check_failure(operation.error, f"error of step {step_id[:100]}")
            # Of a step that is over, two moments count; most operations are of this class, and are asked no more.
            if (
                type(operation) is not CompleteStep
                or not 0 <= operation.started_at <= NEVER
                or not 0 <= (operation.finished_at or 0) <= NEVER
            ):
                _check_moments(operation, f"step {step_id}", "started_at", "finished_at", "retry_at", "timeout_at")
                if isinstance(operation, SpawnChild):
                    check_child(operation)
                elif isinstance(operation, TakeOutcome) and None in (operation.completed_seq, operation.finished_at):
                    raise InvalidRequest(f"the outcome of {step_id[:100]} is taken without a number or a moment")
        elif isinstance(operation, SetValue):
            total += _check_value(operation)
        else:
            total += _check_transition(operation, f"run {chunk.run_id}")
    if total > limit:
        # Too much for one payload, so look at each.
        for operation in chunk.operations:
            owner = f"step {operation.step_id}" if isinstance(operation, StepOperation) else f"run {chunk.run_id}"
            for name in ("input", "output", "error"):
                check_payload(getattr(operation, name, None) or b"", f"{name} of {owner}", limit)
    return total


def _check_transition(operation: Transition, owner: str) -> int:
    """Checks a transition and returns its size. A field that several of them have is checked in the same way in
    each."""
    error: bytes | None = getattr(operation, "error", None)
    if error is not None:
        check_failure(error, f"error of {owner}")
    _check_moments(operation, owner, "available_at")
    if type(operation) is ContinueRun:
        if operation.version is not None:
            check_name(operation.version, "version")
        return len(operation.input)
    return len(error or b"")


def _check_value(value: SetValue) -> int:
    """Checks a value and returns its size."""
    if check_name(value.name, "value name").startswith(OURS) and value.name != PROGRESS:
        raise InvalidRequest(f"a value name must not begin with {OURS!r}, as {value.name[:60]!r} does")
    check_number(value.number, f"number of value {value.name}", 0, 2**31 - 1)
    return check_bytes(value.value, f"value {value.name}", VALUE_BYTES)


def check_child(spawn: SpawnChild) -> None:
    """Checks a child: that a store can take it, and that it is not one generation too deep."""
    child = spawn.child
    check_name(child.workflow_type, "workflow type")
    check_name(child.task_queue, "task queue")
    check_name(child.version, "version")
    if check_new_run_id(child.run_id, "run id of a child") != child.run_id:
        raise InvalidRequest("run id of a child must be written in lower case")
    if child.external_id is not None:
        check_name(child.external_id, "id")
    if child.on_conflict is OnConflict.RETURN:
        raise InvalidRequest("a child that is spawned has the on_conflict fail, restart_finished or restart_failed")
    if child.policy is ParentPolicy.NONE:
        raise InvalidRequest("a child that is spawned has the policy cancel, abandon or terminate")
    check_tags(child.tags)
    if child.limit_key is not None:
        check_name(child.limit_key, "limit key")
    check_number(child.priority, "priority", 0, PRIORITY_LIMIT)
    if not 1 <= child.depth <= MOST_DEPTH:
        raise InvalidRequest(
            f"{child.workflow_type} spawns itself {MOST_DEPTH} levels deep; that is the most there are"
        )
    check_span(child.delay, "delay", 0, LONGEST)
    for moment, field in ((child.start_at, "start_at"), (child.deadline_at, "deadline")):
        if moment is not None:
            check_instant(moment, field)
    if child.timeout is not None:
        check_span(child.timeout, "timeout", 1, LONGEST)
    if child.retry_policy is not None:
        check_bytes(child.retry_policy, "retry policy", _POLICY_BYTES)
        Retry.decode(child.retry_policy)
    if child.on_failure is not None or child.on_failure_queue is not None:
        check_handler(child.on_failure, child.on_failure_queue)


def _check_moments(operation: Operation, owner: str, *names: str) -> None:
    """Refuses moments that no calendar can show: a row with one could not be displayed."""
    for name in names:
        moment = getattr(operation, name, None)
        if moment is not None:
            check_instant(moment, f"{name} of {owner[:100]}")


def check_registration(registration: Registration) -> None:
    check_id(registration.worker_id, "worker id")
    check_name(registration.namespace, "namespace")
    check_queues(registration.queues)
    check_types(registration.types)
    check_name(registration.hostname, "hostname")
    check_name(registration.version, "version")
    check_number(registration.pid, "pid", 0, 2**31 - 1)
    check_number(registration.concurrency, "concurrency", 1, _CONCURRENCY)
    if len(registration.labels) > _LABELS:
        raise InvalidRequest(f"a worker has at most {_LABELS} labels, not {len(registration.labels)}")
    for name, value in registration.labels.items():
        check_name(name, "label")
        check_text(value, f"label {name}")
        if len(value) > NAME_CHARACTERS:
            raise InvalidRequest(f"label {name} has {len(value)} characters; at most {NAME_CHARACTERS} are allowed")
    check_interfaces(registration.interfaces, _TYPES)
    if registration.queue_limit is not None:
        check_number(registration.queue_limit, "queue concurrency limit", 1, _CONCURRENCY)
    if len(registration.type_limits) > _TYPES:
        limited = len(registration.type_limits)
        raise InvalidRequest(f"a worker limits at most {_TYPES:,} workflow types, not {limited:,}")
    for name, limit in registration.type_limits.items():
        check_name(name, "workflow type")
        check_number(limit, f"concurrency limit of {name}", 1, _CONCURRENCY)
    if len(registration.limits) > _TYPES:
        raise InvalidRequest(f"a worker declares at most {_TYPES:,} limits, not {len(registration.limits):,}")
    for declared in registration.limits:
        check_name(declared.name, "limit name")
        if declared.shares is not None:
            check_name(declared.shares, "limit name")
        for rate in (declared.rate, declared.key_rate):
            if rate is not None:
                check_rate(rate, f"rate of {declared.name}")
        for most in (declared.most, declared.key_most):
            if most is not None:
                check_number(most, f"concurrency limit of {declared.name}", 1, _CONCURRENCY)


def check_poll(poll: Poll) -> None:
    check_name(poll.namespace, "namespace")
    check_id(poll.worker_id, "worker id")
    check_id(poll.token, "token")
    check_queues(poll.queues)
    check_types(poll.types)
    check_number(poll.limit, "limit", 1, _CONCURRENCY)
    check_number(poll.ending, "ending", 0, poll.limit)
    check_number(poll.number, "poll number", 1, 2**31 - 1)
    check_span(poll.wait, "wait", 0, LONGEST)


def check_heartbeat(heartbeat: Heartbeat) -> None:
    check_id(heartbeat.worker_id, "worker id")
    check_home(heartbeat.namespace)
    check_number(heartbeat.heard, "heard", 0, 2**31 - 1)
    check_number(heartbeat.completed, "completed", 0, 2**63 - 1)
    check_number(heartbeat.failed, "failed", 0, 2**63 - 1)
    if len(heartbeat.held) > 10 * _CONCURRENCY:
        raise InvalidRequest(f"a heartbeat lists {len(heartbeat.held):,} runs; nobody drives that many")
    for run_id, token in heartbeat.held:
        check_id(run_id, "run id")
        check_id(token, "token")


def check_queues(queues: tuple[str, ...]) -> None:
    if not queues or len(queues) > _QUEUES:
        raise InvalidRequest(f"a worker serves 1 to {_QUEUES} task queues, not {len(queues)}")
    for queue in queues:
        check_name(queue, "task queue")


def check_types(types: tuple[WorkflowType, ...]) -> None:
    if len(types) > _TYPES:
        raise InvalidRequest(f"a worker offers at most {_TYPES:,} workflow types, not {len(types):,}")
    for offered in types:
        check_name(offered.name, "workflow type")
        if offered.version is not None:
            check_name(offered.version, "version")
        if offered.queue is not None:
            check_name(offered.queue, f"queue of workflow type {offered.name}")


def check_filter(filter: RunFilter) -> None:
    check_name(filter.namespace, "namespace")
    if filter.workflow_type is not None:
        check_name(filter.workflow_type, "workflow type")
    if filter.task_queue is not None:
        check_name(filter.task_queue, "task queue")
    for status in (filter.status, filter.or_status):
        if status is not None and not isinstance(status, RunStatus):
            raise InvalidRequest(f"status must be one of {', '.join(RunStatus)}, not {status!r:.60}")
    if filter.parent_run_id is not None:
        check_id(filter.parent_run_id, "parent run id")
    check_tags(filter.tags)
    if filter.id_prefix is not None:
        check_name(filter.id_prefix, "id_prefix")
    if filter.error is not None:
        check_name(filter.error, "error")
    if filter.schedule_id is not None:
        check_id(filter.schedule_id, "schedule id")
    if filter.created_after is not None:
        check_instant(filter.created_after, "created_after")
    if filter.created_before is not None:
        check_instant(filter.created_before, "created_before")

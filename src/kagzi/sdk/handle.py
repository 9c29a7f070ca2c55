"""A handle on a run: look at it, wait for it, end it, run it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, overload

from kagzi.api.operations import CancelAnswer, CancelRun, Fork, RepeatRun, SendSignal, Started, TerminateRun
from kagzi.api.workflows import WorkflowService
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.instant import SECOND, to_datetime
from kagzi.core.limits import check_name
from kagzi.core.lineage import Lineage, PayloadContext, PayloadKind, lineage_of
from kagzi.core.run import CANCEL_GRACE, Run, RunStatus
from kagzi.core.run_value import OURS, PROGRESS, Progress
from kagzi.core.signal import check_key
from kagzi.errors import NotFound, Unavailable
from kagzi.ids import IdSource
from kagzi.sdk.blocking import Portal, blocking
from kagzi.sdk.patience import patient
from kagzi.sdk.payload import Codec, Reader
from kagzi.sdk.records import (
    Cancellation,
    RunRecord,
    SignalRecord,
    StepRecord,
    run_record,
    signal_record,
    step_record,
)
from kagzi.sdk.run_errors import ended_otherwise
from kagzi.sdk.signal_values import encode_signal, value_codec
from kagzi.sdk.unserved import Unserved
from kagzi.sdk.values import check_value_name

R = TypeVar("R", covariant=True)
T = TypeVar("T")
D = TypeVar("D")

# Arguments of the workflow with this name and version, by position or by name, to bytes.
EncodeInput: TypeAlias = Callable[[str, str, tuple[Any, ...] | Mapping[str, Any], PayloadContext], bytes]

_MISSING: Final[Any] = object()

_WAIT = 3600 * SECOND  # an engine may answer earlier; then we ask again


class Handle(Generic[R]):
    """A run that was started or found. `already_exists` says that a run with this id was there before the start."""

    __slots__ = (
        "_codec",
        "_decode",
        "_encode_input",
        "_end",
        "_engine",
        "_ids",
        "_read",
        "_unserved",
        "already_exists",
        "id",
        "namespace",
    )

    def __init__(
        self,
        engine: Portal,
        namespace: str,
        run_id: str,
        decode: Callable[[bytes, PayloadContext | None], R],
        read: Reader,
        ids: IdSource,
        unserved: Unserved,
        *,
        encode_input: EncodeInput,
        codec: Codec | None = None,
        already_exists: bool = False,
        end: Run | None = None,
    ) -> None:
        self._engine = engine  # of the app, which refuses a use in a foreign event loop, or after its end
        self._ids = ids
        self._unserved = unserved
        self._codec = codec  # the layer around every payload, for what is sent to the run
        self._decode = decode  # the result, to its type
        self._encode_input = encode_input  # arguments of the workflow that has this name and version
        self._read = read  # any payload of the run, to plain data
        self._end = end  # the finished run, once it is known
        self.namespace = namespace
        self.id = run_id
        self.already_exists = already_exists

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    @property
    def portal(self) -> Portal:
        """The portal by which blocking code reaches the app."""
        return self._engine

    def decoded_by(self, decode: Callable[[bytes, PayloadContext | None], T]) -> Handle[T]:
        """The same run, with another type of result."""
        handle: Handle[Any] = self
        handle._decode = decode
        return handle

    async def get(self) -> RunRecord:
        """Everything the engine knows about the run at this moment."""
        return run_record(await self._workflow_service().get(self.namespace, self.id), self._read)

    async def status(self) -> RunStatus:
        return (await self._workflow_service().get(self.namespace, self.id)).status

    async def steps(self) -> tuple[StepRecord, ...]:
        """Every recorded attempt of every step so far, in the order they ended; those that are running come last."""
        steps = await self._workflow_service().steps(self.namespace, self.id)
        lineage = await self._lineage()
        return tuple([step_record(step, self._read, lineage) for step in steps])

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the run and return what its workflow returned.

        Raises WorkflowFailed, WorkflowCancelled or WorkflowTimedOut if the run ended otherwise, and TimeoutError if it
        has not ended after `timeout` (the run goes on; waiting again is fine). An engine that is out of reach for a
        moment is waited for.
        """
        if timeout is None:
            return self._outcome(await self._wait())
        seconds = parse_duration(timeout, "timeout") / SECOND
        try:
            async with asyncio.timeout(seconds):
                return self._outcome(await self._wait())
        except TimeoutError:
            raise TimeoutError(f"run {self.id} has not finished within {seconds:g} s; it goes on") from None

    async def cancel(self, *, grace: Duration | None = None) -> Cancellation:
        """Ask the run to end.

        One that never executed ends at once. In any other a CancelledError is raised where its workflow function waits,
        as if its task had been cancelled, and `finally:` blocks may run steps to clean up; if that has not come to its
        end after `grace` (30 seconds by default), the run is ended as it is. This returns when the request is durable,
        not when the run has ended: for that, await `result()`, which raises WorkflowCancelled.

        The answer is true if the run is cancelled or will be told, and false if it had finished before.
        """
        span = CANCEL_GRACE if grace is None else parse_duration(grace, "grace")
        request = CancelRun(namespace=self.namespace, run_id=self.id, grace=span)
        return _cancellation(await self._workflow_service().cancel(request))

    async def terminate(self, reason: str = "") -> Cancellation:
        """End the run at once, whatever it is doing. Nothing is cleaned up; the reason is kept in the run's error.

        The answer is true if the run is cancelled, and false if it had finished otherwise before.
        """
        request = TerminateRun(namespace=self.namespace, run_id=self.id, reason=reason)
        return _cancellation(await self._workflow_service().terminate(request))

    async def wake(self) -> bool:
        """End the sleep of the run, or its wait for another attempt: what is due by the moment for which it is parked
        is due now.

        Its sleeps end, timeouts run out, steps and the run itself are tried again, and a run that was to start later
        starts. Its history says when that was. The answer is false if the run does not wait for a moment: it is
        running, due already, has finished, or waits for a signal or a child alone.
        """
        return (await self._workflow_service().wake(self.namespace, self.id)).woken

    async def signal(self, name: str, value: Any = None, *, key: str | None = None) -> None:
        """Tell the run something: `await run.signal("approved", True)`. It is durable when this returns.

        Kept until the workflow takes it with `kagzi.wait_signal`, in the order of arrival, also if it waits only later.
        `key` makes a repeat harmless: a second signal with the same key is the first one. Raises Conflict if the run
        has finished.
        """
        await self._workflow_service().signal(
            SendSignal(
                namespace=self.namespace,
                run_id=self.id,
                name=check_name(name, "signal name"),
                value=encode_signal(name, value, self._codec, (await self._lineage()).of(PayloadKind.SIGNAL, name)),
                key=check_key(key, self._ids.token()),
            )
        )

    async def signals(self) -> tuple[SignalRecord, ...]:
        """What the run was told, in the order of arrival; `taken` says whether its workflow has got it. The first 1,000
        are listed."""
        found = await self._workflow_service().signals(self.namespace, self.id)
        lineage = await self._lineage()
        return tuple([signal_record(signal, self._read, lineage) for signal in found])

    @overload
    async def value(self, name: str) -> Any: ...
    @overload
    async def value(self, name: str, type: type[T]) -> T: ...
    @overload
    async def value(self, name: str, type: type[T], *, default: D) -> T | D: ...
    @overload
    async def value(self, name: str, type: Any = ..., *, default: Any = ...) -> Any: ...
    async def value(self, name: str, type: Any = Any, *, default: Any = _MISSING) -> Any:
        """What the run last said by this name: `await run.value("stage", str)`, set by `kagzi.set_value`.

        While it runs, while no worker is up, and after its end. If it has set none: `default`, else NotFound.
        """
        check_value_name(name)
        found = await self._workflow_service().values(self.namespace, self.id, (name,))
        if found:
            context = (await self._lineage()).of(PayloadKind.VALUE, name)
            return value_codec(type, f"value {name!r}", self._codec).decode_result(found[0].value, context)
        if default is _MISSING:
            raise NotFound(f"run {self.id} has set no value {name!r}")
        return default

    async def values(self) -> dict[str, Any]:
        """Everything the run has said about itself with `kagzi.set_value`, by name, as plain data."""
        found = await self._workflow_service().values(self.namespace, self.id)
        said = [each for each in found if not each.name.startswith(OURS)]
        lineage = await self._lineage()
        return {each.name: self._read(each.value, lineage.value(each.name)) for each in said}

    async def progress(self) -> Progress | None:
        """How far the run has come, as `kagzi.progress` said last: `fraction` from 0 to 1, and `message`. None if
        nothing was said."""
        found = await self._workflow_service().values(self.namespace, self.id, (PROGRESS,))
        if not found:
            return None
        context = (await self._lineage()).of(PayloadKind.VALUE, PROGRESS)
        said: Progress = value_codec(Progress, "progress", self._codec).decode_result(found[0].value, context)
        return said

    async def retry(self, *, keep_id: bool = True) -> Handle[R]:
        """Try a finished run again: a new run that keeps what this one has recorded, up to its first step that failed
        for good or to its cancellation, and goes on from there.

        The id that this run was started with goes to the new one: `app.find(id)` and a start with that id give that one
        from then on. With `keep_id=False` it stays here. In everything else this run does not change. If its id has
        gone to another run before, that run is returned (`already_exists`); Conflict if that one has ended badly, too.

        Raises Conflict while the run has not finished.
        """
        return await self._repeat(keep_steps=True, keep_id=keep_id)

    async def rerun(self, *, keep_id: bool = True) -> Handle[R]:
        """Run a finished run again from scratch: a new run with the same input, and with its id as `retry` says. Raises
        Conflict while it has not finished."""
        return await self._repeat(keep_steps=False, keep_id=keep_id)

    async def fork(
        self,
        from_step: str | None = None,
        *,
        input: tuple[Any, ...] | Mapping[str, Any] | None = None,
        version: str | None = None,
    ) -> Handle[R]:
        """Make a new run that goes on from a chosen step of this one, which may be live and does not change:
        `await run.fork(from_step="charge#2", input=(order,), version="3")`.

        What was recorded before the end of that step is kept, and it and everything after it is done again; without a
        step, all. A step is named by its id (`StepRecord.step_id`), or by its name if there is one of it. `input` are
        the arguments, a tuple by position or a dict by name; steps that are kept are not done again for them. The new
        run has no id of yours. NotFound if there is no such step, or it has not ended.
        """
        data = None
        if input is not None:
            run = await self._workflow_service().get(self.namespace, self.id)
            # For the run that it repeats: what repeats the fork has its input, too.
            context = lineage_of(run).of(PayloadKind.INPUT)
            data = self._encode_input(run.workflow_type, version or run.version, input, context)
        request = RepeatRun(
            namespace=self.namespace,
            run_id=self._ids.run_id(),
            of_run_id=self.id,
            keep_steps=from_step is not None,
            keep_id=False,
            fork=Fork(from_step=from_step, input=data, version=version),
        )
        return self._begun_again(await self._workflow_service().repeat(request))

    async def _repeat(self, *, keep_steps: bool, keep_id: bool) -> Handle[R]:
        request = RepeatRun(
            namespace=self.namespace,
            run_id=self._ids.run_id(),
            of_run_id=self.id,
            keep_steps=keep_steps,
            keep_id=keep_id,
        )
        return self._begun_again(await self._workflow_service().repeat(request))

    def _begun_again(self, started: Started) -> Handle[R]:
        return Handle(
            self._engine,
            self.namespace,
            started.run_id,
            self._decode,
            self._read,
            self._ids,
            self._unserved,
            codec=self._codec,
            already_exists=started.already_exists,
            encode_input=self._encode_input,
        )

    def _workflow_service(self) -> WorkflowService:
        return self._engine.audited("workflows", patient(lambda: self._engine().workflows))

    async def _lineage(self) -> Lineage:
        """For whom payloads of the run are sealed. Asked for a codec alone."""
        if self._codec is None:
            return Lineage(self.namespace, self.id)
        return lineage_of(await self._workflow_service().get(self.namespace, self.id))

    async def _wait(self) -> Run:
        if self._end is not None:
            return self._end
        delay = 0.05
        self._unserved.add(self)
        try:
            while True:
                try:
                    run = await self._engine().workflows.wait(self.namespace, self.id, _WAIT)
                except Unavailable:
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, 2.0)
                    continue
                delay = 0.05
                if run.status.finished:
                    return run
        finally:
            self._unserved.remove(self)

    def _outcome(self, run: Run) -> R:
        if run.status is RunStatus.COMPLETED:
            context = None if self._codec is None else lineage_of(run).of(PayloadKind.OUTPUT)
            return self._decode(run.output or b"null", context)
        found = _found(run) if self.already_exists else ""
        context = lineage_of(run).of(PayloadKind.ERROR)
        read = partial(self._read.failure, context=context)
        raise ended_otherwise(run.status, run.error, run.workflow_type, run.run_id, found, read)

    # For code that cannot await.

    get_sync = blocking(get)
    status_sync = blocking(status)
    steps_sync = blocking(steps)
    result_sync = blocking(result)
    cancel_sync = blocking(cancel)
    terminate_sync = blocking(terminate)
    wake_sync = blocking(wake)
    signal_sync = blocking(signal)
    signals_sync = blocking(signals)
    values_sync = blocking(values)
    progress_sync = blocking(progress)
    retry_sync = blocking(retry)
    rerun_sync = blocking(rerun)
    fork_sync = blocking(fork)
    if TYPE_CHECKING:  # what checkers cannot infer from the overloads

        @overload
        def value_sync(self, name: str) -> Any: ...
        @overload
        def value_sync(self, name: str, type: type[T]) -> T: ...
        @overload
        def value_sync(self, name: str, type: type[T], *, default: D) -> T | D: ...
        @overload
        def value_sync(self, name: str, type: Any = ..., *, default: Any = ...) -> Any: ...
        def value_sync(self, name: str, type: Any = ..., *, default: Any = ...) -> Any: ...

    else:
        value_sync = blocking(value)


def _found(run: Run) -> str:
    """Returns a note that nothing was started, so that an old error is not taken for a new one."""
    when = "" if run.finished_at is None else f", and ended {to_datetime(run.finished_at):%Y-%m-%d %H:%M:%S} UTC"
    name = run.external_id or run.former_id
    return (
        f". This run, {run.run_id}, was found by its id {name!r}{when}; nothing was started. "
        f"Go on with it by `await run.retry()`, run it again from scratch by `await run.rerun()`, or start it with "
        f'`.options(id=..., on_conflict="restart_failed")`, which makes a new run in its place'
    )


def _cancellation(answer: CancelAnswer) -> Cancellation:
    return Cancellation(effective=answer.effective, status=answer.status)

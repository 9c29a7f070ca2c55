"""Starting, reading, awaiting, cancelling and repeating runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Final, cast

from msgspec.structs import replace

from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    Fork,
    RepeatRun,
    SendSignal,
    SignalAnswer,
    Started,
    StartRun,
    TerminateRun,
    WakeAnswer,
)
from kagzi.api.reply import Reply
from kagzi.api.workflows import SIGNALS_LISTED, RunFilter
from kagzi.core.duration import LONGEST
from kagzi.core.instant import SECOND, Span, to_datetime
from kagzi.core.limits import (
    DEFAULT_PAGE_SIZE,
    check_id,
    check_name,
    check_new_run_id,
    check_page_size,
    check_step_id,
    check_text,
)
from kagzi.core.page import BY_ID, Cursor, Page, PageTokens, check_token, made_at, neighbour
from kagzi.core.run import Run, RunStatus
from kagzi.core.run_value import RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import BEGIN, Step, StepKind, StepStatus, in_order
from kagzi.engine.adopters import Adopters
from kagzi.engine.batcher import Lanes
from kagzi.engine.checks import (
    StartCheck,
    check_bytes,
    check_filter,
    check_reason,
    check_signal,
    check_span,
    check_value_names,
)
from kagzi.engine.forks import step_to_fork_from
from kagzi.engine.known_runs import KnownRuns
from kagzi.engine.namespaces import Namespaces
from kagzi.engine.patience import Patience, patient
from kagzi.engine.reads import Reads
from kagzi.engine.results import Results
from kagzi.engine.settings import EngineSettings
from kagzi.engine.versions import VersionRegistry
from kagzi.engine.wakeups import Wakeups
from kagzi.errors import Conflict, KagziError, NotFound, Unavailable
from kagzi.store.protocol.runs import RunFacts
from kagzi.store.protocol.store import Store

log = logging.getLogger("kagzi.engine")

_TRIES: Final = 3
_LATE_ENDS: Final = 100  # children that are looked for
_ENDS: Final = {RunStatus.COMPLETED: StepStatus.COMPLETED, RunStatus.CANCELLED: StepStatus.CANCELLED}
_LONG: Final[Span] = 30 * SECOND  # waits for results that may end a second or two late: a timer for each is dear


class Workflows:
    """`api.workflows.WorkflowService` over a store."""

    def __init__(
        self,
        store: Store,
        lanes: Lanes,
        wakeups: Wakeups,
        results: Results,
        known: KnownRuns,
        adopters: Adopters,
        namespaces: Namespaces,
        versions: VersionRegistry,
        settings: EngineSettings,
        patience: Patience,
    ) -> None:
        self._store = store
        self.patience = patience
        self._reads = Reads(store)
        self._submit = lanes.submit
        self._wakeups = wakeups
        self._results = results
        self._known = known
        self._adopters = adopters
        self._namespaces = namespaces
        self._versions = versions
        self._check = StartCheck(settings)
        self._tokens = PageTokens(store.page_secret)
        self._payload_warning = settings.payload_warning
        self._stale = settings.worker_stale
        self._payload_bytes = settings.payload_bytes
        self._loop = asyncio.get_running_loop()

    def start(self, start: StartRun, *, awaited: bool = False) -> Awaitable[Started]:  # noqa: ARG002
        try:
            weight = self._check(start)
            completed = self._versions.completed(start)
        except KagziError as error:
            future: asyncio.Future[Started] = self._loop.create_future()
            future.set_exception(error)
            future.exception()
            return future
        if weight > self._payload_warning:
            about = {"namespace": start.namespace, "run_id": start.run_id, "workflow": start.workflow_type}
            log.warning("the input of run %s (%s) has %d bytes", start.run_id, start.workflow_type, weight, extra=about)
        if completed is None or not self._namespaces.admits(start.namespace):
            return self._loop.create_task(self._start_if_admitted(start, weight))
        return self._start(completed, weight)

    async def admit(self, start: StartRun) -> StartRun:
        """Returns a start as a store takes it, if it may be made; for `start_in`."""
        self._check(start)
        await self._namespaces.admit(start.namespace)
        completed, _ = await self._versions.complete(start)
        return replace(completed, lease=None)

    async def start_in(self, connection: object, start: StartRun) -> Started:
        """Writes an admitted start in the transaction of a connection of the caller's own. It is there, and workers
        hear of it, when that is committed. Suspends only if the connection is an async one."""
        return await self._store.transactions.start_in(connection, start)

    async def get(self, namespace: str, run_id: str) -> Run:
        check_name(namespace, "namespace")
        run_id = check_id(run_id, "run id")
        run = await self._reads.get(namespace, run_id)
        if run is None:
            raise _no_such_run(namespace, run_id)
        return run

    async def get_by_external_id(self, namespace: str, external_id: str) -> Run:
        check_name(namespace, "namespace")
        check_name(external_id, "id")
        run = await self._store.runs.get_by_external_id(namespace, external_id)
        if run is None:
            raise _no_such_id(namespace, external_id)
        return run

    async def list(
        self, filter: RunFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Run]:
        check_filter(filter)
        check_page_size(page_size)
        filter_text = repr(filter)
        cursor = None
        if page_token:
            cursor = self._tokens.read(check_token(page_token), filter_text, BY_ID)
        # One row more than asked for tells whether there is another page.
        found = await self._store.runs.search(filter, cursor, page_size + 1)
        edge = found.searched_until
        more = len(found.runs) > page_size or edge is not None
        items = tuple(found.runs[:page_size])
        if cursor is not None and cursor.backward:
            items = items[::-1]
            newer, older = more, True
        else:
            newer, older = cursor is not None, more

        def token(key: str, backward: bool) -> str:
            return self._tokens.sign(Cursor(key, backward), filter_text)

        next_key = items[-1].run_id if items else None
        prev_key = items[0].run_id if items else None
        if not items and cursor is not None:
            # Beyond the last row in this direction. The way back begins with the run at the cursor itself.
            next_key, prev_key = neighbour(cursor.key, 1), neighbour(cursor.key, -1)
            newer, older = not cursor.backward or more, cursor.backward or more
        if edge is not None and cursor is not None and cursor.backward:
            prev_key = edge
        elif edge is not None:
            next_key = edge
        return Page(
            items,
            token(next_key, False) if older and next_key else None,
            token(prev_key, True) if newer and prev_key else None,
            None if edge is None else made_at(edge),
        )

    async def steps(
        self,
        namespace: str,
        run_id: str,
        *,
        whole: bool = False,
        payloads: bool = True,
        step_id: str | None = None,
    ) -> tuple[Step, ...]:
        check_name(namespace, "namespace")
        run_id = check_id(run_id, "run id")
        if step_id is not None:
            check_step_id(step_id)
        steps = await self._store.runs.steps(namespace, run_id, payloads, step_id)
        if not steps:
            await self.get(namespace, run_id)
        # When the first timers were set is a note of the run's own, and no step.
        if whole:
            return in_order(steps)
        steps = [step for step in steps if step.step_id != BEGIN or step.kind is not StepKind.SIGNAL]
        return in_order(await self._with_late_ends(namespace, run_id, steps, payloads))

    async def _with_late_ends(
        self, namespace: str, run_id: str, steps: Sequence[Step], payloads: bool
    ) -> Sequence[Step]:
        """Returns the steps of a run with the ends of children that have outlived it: nobody has told them to it. One
        that is not there any more has ended somehow, and is shown as abandoned."""
        open_children = [step for step in steps if step.status is StepStatus.RUNNING and step.child_run_id is not None]
        if not open_children or not (await self.get(namespace, run_id)).status.finished:
            return steps
        ends: dict[str, Step] = {}
        for step in open_children[:_LATE_ENDS]:
            child = await self._reads.get(namespace, step.child_run_id or "")
            if child is None:
                ends[step.step_id] = replace(step, status=StepStatus.CANCELLED, finished_at=step.started_at)
            elif child.status.finished:
                ends[step.step_id] = replace(
                    step,
                    status=_ENDS.get(child.status, StepStatus.FAILED),
                    finished_at=child.finished_at,
                    output=child.output if payloads else None,
                    error=child.error,
                )
        return [ends.get(step.step_id, step) for step in steps]

    async def wait(self, namespace: str, run_id: str, timeout: Span) -> Run:
        check_name(namespace, "namespace")
        run_id = check_id(run_id, "run id")
        check_span(timeout, "timeout", 0, LONGEST)
        deadline = self._loop.time() + timeout / SECOND
        # The end of a run driven here passes by here: no need to look first.
        look = not self._may_skip_first_read(namespace, run_id)
        while True:
            # Subscribe before looking, so that an end in between is not missed.
            reply = self._results.expect(namespace, run_id, deadline)
            try:
                if look:
                    run = await self.get(namespace, run_id)
                    if run.status.finished or self._loop.time() >= deadline:
                        return run
                    if self._results.closed:
                        raise Unavailable("the engine was closed while waiting for a run")
                if timeout >= _LONG:
                    finished = await reply  # the pulse ends it
                else:
                    timer = self._loop.call_at(deadline, _expire, reply)
                    try:
                        finished = await reply
                    finally:
                        timer.cancel()
                if finished is not None:
                    return finished
                look = True
            finally:
                self._results.unexpect(namespace, run_id, reply)

    def expect(self, namespace: str, run_id: str) -> Reply[Run | None] | None:
        if not self._may_skip_first_read(namespace, run_id):
            return None
        return self._results.expect(namespace, run_id)

    def unexpect(self, namespace: str, run_id: str, reply: Reply[Run | None]) -> None:
        self._results.unexpect(namespace, run_id, reply)

    async def cancel(self, cancel: CancelRun) -> CancelAnswer:
        check_name(cancel.namespace, "namespace")
        check_span(cancel.grace, "grace", 0, LONGEST)
        cancel = replace(cancel, run_id=check_id(cancel.run_id, "run id"))
        answer = cast("CancelAnswer", await self._submit(cancel))
        if answer.effective and not answer.status.finished and await self._cannot_be_told(cancel):
            terminate = TerminateRun(namespace=cancel.namespace, run_id=cancel.run_id, reason="cancelled")
            return await self.terminate(terminate)
        return answer

    async def _cannot_be_told(self, cancel: CancelRun) -> bool:
        """Says whether the run is, or was last, driven by one of those workers in the field that know nothing of
        cancellations: they name no versions when they register. Nobody would clean up, so such a run is ended at
        once."""
        run = await self._facts(cancel.namespace, cancel.run_id)
        if run.worker_id is None:
            return False
        worker = await self._store.workers.get(run.worker_id, None, self._stale)
        return worker is not None and all(offered.version is None for offered in worker.types)

    async def terminate(self, terminate: TerminateRun) -> CancelAnswer:
        check_name(terminate.namespace, "namespace")
        check_reason(terminate.reason)
        terminate = replace(terminate, run_id=check_id(terminate.run_id, "run id"))
        return cast("CancelAnswer", await self._submit(terminate))

    async def wake(self, namespace: str, run_id: str) -> WakeAnswer:
        check_name(namespace, "namespace")
        run_id = check_id(run_id, "run id")
        answer = await self._store.work.wake(namespace, run_id)
        if answer is None:
            raise _no_such_run(namespace, run_id)
        if answer.woken:
            self._wakeups.available((namespace, answer.task_queue), answer.available_at)
        return answer

    async def signal(self, signal: SendSignal) -> SignalAnswer:
        check_signal(signal, self._payload_bytes)
        if signal.run_id or signal.external_id is None:
            return await self._send(replace(signal, run_id=check_id(signal.run_id, "run id")))
        # The id may be given to another run between reading and sending: then the one that has it now is meant.
        for _ in range(_TRIES):
            run_id = await self._find(signal.namespace, signal.external_id)
            try:
                return await self._send(replace(signal, run_id=run_id))
            except (Conflict, NotFound):
                if await self._find(signal.namespace, signal.external_id) == run_id:
                    raise
        raise Unavailable(f"the id {signal.external_id!r} is being given from run to run; trying again is safe")

    async def _find(self, namespace: str, external_id: str) -> str:
        """Returns the run id of the run that has this id."""
        check_name(namespace, "namespace")
        check_name(external_id, "id")
        run_id = await self._store.runs.find(namespace, external_id)
        if run_id is None:
            raise _no_such_id(namespace, external_id)
        return run_id

    async def _facts(self, namespace: str, run_id: str) -> RunFacts:
        """Returns what is known of a run without reading its payloads."""
        for facts in await self._store.runs.facts_of([(namespace, run_id)]):
            return facts
        raise _no_such_run(namespace, run_id)

    async def _send(self, signal: SendSignal) -> SignalAnswer:
        return cast("SignalAnswer", await self._submit(signal, len(signal.value)))

    async def signals(self, namespace: str, run_id: str, *, after: int = 0) -> tuple[Signal, ...]:
        check_name(namespace, "namespace")
        run_id = check_id(run_id, "run id")
        signals = await self._store.signals.page(namespace, run_id, after, SIGNALS_LISTED)
        if not signals:
            await self.get(namespace, run_id)
        return tuple(signals)

    async def values(
        self, namespace: str, run_id: str, names: Sequence[str] = (), *, after: str = ""
    ) -> tuple[RunValue, ...]:
        check_name(namespace, "namespace")
        run_id = check_id(run_id, "run id")
        check_value_names(names)
        check_text(after, "after")
        values = await self._store.runs.values(namespace, run_id, names, after)
        if not values:
            await self.get(namespace, run_id)
        return tuple(values)

    @patient
    async def repeat(self, repeat: RepeatRun) -> Started:
        check_name(repeat.namespace, "namespace")
        repeat = replace(
            repeat, run_id=check_new_run_id(repeat.run_id, "run id"), of_run_id=check_id(repeat.of_run_id, "run id")
        )
        if repeat.fork is not None:
            repeat = replace(repeat, keep_id=False, fork=await self._check_fork(repeat, repeat.fork))
        # The new run waits in the same queue, whose workers find it within a second even if this goes wrong.
        queue = (repeat.namespace, (await self._facts(repeat.namespace, repeat.of_run_id)).task_queue)
        await self._namespaces.admit(repeat.namespace)  # not before: it would make a namespace that only a typo names
        started = cast("Started", await self._submit(repeat))
        self._wakeups.available(queue, started.available_at)
        return started

    async def _check_fork(self, repeat: RepeatRun, fork: Fork) -> Fork:
        """Returns a fork with the whole id of its step, of which the caller may have given the name alone."""
        if fork.input is not None:
            check_bytes(fork.input, "input", self._payload_bytes)
        if fork.version is not None:
            check_name(fork.version, "version")
            run = await self.get(repeat.namespace, repeat.of_run_id)
            await self._versions.check_known(run.namespace, run.workflow_type, fork.version)
        if fork.from_step is None:
            return fork
        check_text(fork.from_step, "from_step")
        steps = await self.steps(repeat.namespace, repeat.of_run_id)
        return replace(fork, from_step=step_to_fork_from(repeat.of_run_id, fork.from_step, steps))

    def _may_skip_first_read(self, namespace: str, run_id: str) -> bool:
        """Whether a waiter need not read the run first: it is driven here, or was started here a moment ago beside a
        worker and not heard of since. Should that be wrong, the pulse finds out. A run of another namespace is not."""
        driven = self._known.driven(run_id)
        if driven is not None and driven.claim.namespace == namespace and self._known.end_will_pass_here(run_id):
            return True
        started = self._known.started_just_now(namespace, run_id)
        return started is not None and self._wakeups.is_watched((namespace, started.start.task_queue))

    def _start(self, start: StartRun, weight: int) -> Awaitable[Started]:
        # A lease is ours to give; one that came with the request is none.
        later = start.delay or start.start_at is not None or start.signal is not None or start.debounce is not None
        lease = None if later else self._adopters.reserve(start)
        if lease is not start.lease:
            start = replace(start, lease=lease)
        if start.debounce is not None:
            return self._loop.create_task(self._start_debounced(start, weight))
        return cast("Awaitable[Started]", self._submit(start, weight))

    async def _start_debounced(self, start: StartRun, weight: int) -> Started:
        """Says in the log what became of a start of which nothing else is kept than its input, for a while."""
        started = cast("Started", await self._submit(start, weight))
        if started.already_exists and started.status is RunStatus.PENDING and start.debounce is not None:
            log.info(
                "start %s of %s joined run %s, which begins at %s with its input (key %r)",
                start.run_id,
                start.workflow_type,
                started.run_id,
                to_datetime(started.available_at).isoformat(timespec="milliseconds"),
                start.debounce.key,
                extra={"namespace": start.namespace, "run_id": started.run_id, "workflow": start.workflow_type},
            )
        return started

    async def _start_if_admitted(self, start: StartRun, weight: int) -> Started:
        await self._namespaces.admit(start.namespace)
        completed, note = await self._versions.complete(start)
        started = await self._start(completed, weight)
        return replace(started, note=note) if note else started


def _no_such_run(namespace: str, run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id} in namespace {namespace}")


def _no_such_id(namespace: str, external_id: str) -> NotFound:
    return NotFound(f"there is no run with the id {external_id!r} in namespace {namespace}")


def _expire(reply: Reply[Run | None]) -> None:
    if not reply.done():
        reply.settle(None)

"""The side-effect ledger: what step bodies really did, written by the bodies themselves, outside the product.

Every body is checked as it begins: it must be allowed to run now, here, for this lease. The rows of the product are
looked at, never believed alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from kagzi.core.instant import SECOND, Instant
from kagzi.core.limits import SUSPECT_CRASHES
from kagzi.core.run import RunStatus
from kagzi.core.step import StepStatus, step_name
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.worker.bodies import CANCEL_GRACE, current_step
from kagzi.testing.simulation.checks.rows import RunRow, Violation
from kagzi.testing.simulation.faults import Fault
from kagzi.testing.simulation.process import Process

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World

Body = tuple[str, str, int]  # run, step, attempt


class Visit:
    """One execution of a step body."""

    __slots__ = (
        "_ledger",
        "attempt",
        "begun_at",
        "cancelled_at",
        "entries",
        "process",
        "run_attempts",
        "run_id",
        "step_id",
        "task",
        "token",
    )

    def __init__(
        self, ledger: Ledger, process: Process, run_id: str, step_id: str, attempt: int, token: str, begun_at: float
    ) -> None:
        self._ledger = ledger
        self.process = process
        self.run_id = run_id
        self.step_id = step_id
        self.attempt = attempt
        self.token = token
        self.begun_at = begun_at
        self.cancelled_at: float | None = None
        self.task = asyncio.current_task()
        self.entries = 0
        self.run_attempts = 0

    def cancelled(self) -> None:
        """The body was told to stop and cleans up."""
        self.cancelled_at = self.process.loop.time()

    @property
    def awaits_cancellation(self) -> bool:
        """Whether the body will be told to stop in this turn of its loop."""
        return self.cancelled_at is None and self.task is not None and self.task.cancelling() > 0

    def left(self, how: str) -> None:
        self._ledger.left(self, how)

    def crash(self) -> None:
        """The body takes its process down."""
        self._ledger.crash(self)


class Ledger:
    def __init__(self, world: World) -> None:
        self._world = world
        self._entries: Counter[tuple[str, str]] = Counter()
        self._seen: set[tuple[str, str, int, str]] = set()
        self._active: dict[tuple[str, str], list[Visit]] = {}  # by (run, token)
        self.ended: dict[Body, set[str]] = {}
        self.ended_at: dict[Body, Instant] = {}  # by the engine's clock, for the first time
        self._waits: dict[tuple[str, str, int], Instant] = {}
        self._heeded: dict[tuple[str, str], Instant] = {}  # when a wait for a signal was first over
        self._awaited: dict[tuple[str, str], tuple[Execution, Counter[str]]] = {}
        self.bodies = 0

    def enter(self, process: Process, position: int) -> Visit:
        info = current_step.get()
        world = self._world
        worker = world.node_of(process).worker
        held = None if worker is None else worker._held.get(info.run_id)
        if worker is None or held is None:
            raise world.violation(
                f"the body {info.step_id} of run {info.run_id} began in {process.name}, which does not hold the run"
            )
        visit = Visit(self, process, info.run_id, info.step_id, info.attempt, held.token, world.host.time())
        world.log(process.name, "body begins", info.run_id, info.step_id, info.attempt)
        self.bodies += 1
        self._check_once(visit)
        self._check_siblings(visit, None if held.execution is None else held.execution._waiting.keys())
        self._check_lease(visit, position)
        if held.cancelling and held.execution is not None and not held.execution.cancelled:
            raise self._wrong(visit, "began although its worker knows that the run is cancelled")  # (12)
        if worker.slots.is_lent(held):
            raise self._wrong(visit, "began although its run has lent its slot")
        # When a process wakes, a body may be on its way that was started before the worker was told to drain.
        if worker.draining and process.resumed_at != world.host.time():
            raise world.violation(f"the body {info.step_id} of {info.run_id} began although its worker drains")
        self._entries[visit.run_id, visit.step_id] += 1
        visit.entries = self._entries[visit.run_id, visit.step_id]
        self._active.setdefault((visit.run_id, visit.token), []).append(visit)
        return visit

    def left(self, visit: Visit, how: str) -> None:
        world = self._world
        world.log(visit.process.name, f"body {how}", visit.run_id, visit.step_id, visit.attempt)
        active = self._active.get((visit.run_id, visit.token), [])
        if visit in active:
            active.remove(visit)
        body = (visit.run_id, visit.step_id, visit.attempt)
        self.ended.setdefault(body, set()).add(how)
        self.ended_at.setdefault(body, world.clock.now())
        if world.host.time() - visit.begun_at > world.settings.lease / SECOND:
            world.happened(Fault.SLOW_STEP)

    def begin_wait(self, process: Process, run_id: str, kind: str, number: int) -> Callable[[int], None]:
        """A workflow begins to wait; a replay is counted from when it did so first."""
        clock = self._world.clock
        since = self._waits.setdefault((run_id, kind, number), clock.now())

        def over(milliseconds: int) -> None:
            took = clock.now() - since
            if took < milliseconds * SECOND // 1000:
                raise self._world.violation(
                    f"run {run_id} waited for {kind} {number} of {milliseconds} ms and went on after {took / 1000:g} ms"
                    f" [{process.name}]"
                )

        return over

    def copy_waits(self, source: str, copy: str) -> None:
        """A run begins with what another has recorded, and with the waits that this one has begun."""
        for (run_id, kind, number), since in list(self._waits.items()):
            if run_id == source:
                self._waits.setdefault((copy, kind, number), since)
        for (run_id, name), at in list(self._heeded.items()):
            if run_id == source:
                self._heeded.setdefault((copy, name), at)

    def end_heeding(self, process: Process, run_id: str, name: str, due: Instant, heard: str | None) -> None:
        """A workflow has waited for a signal, the only one of its name, and heard it or not. `due` is stamped by a
        worker whose clock may be ahead; what was sent after the wait was first seen to be over had not come before."""
        run = self._world.checker.runs[run_id]
        over = min(due, self._heeded.setdefault((run_id, name), self._world.clock.now()))
        for row in run.signals.values():
            if row.name == name and row.sent_at <= over and heard is None:
                raise self._world.violation(
                    f"run {run_id} did not wait for {row}, which had come before its wait was over at {due} "
                    f"[{process.name}]"
                )
            if row.name == name and row.sent_at > due and heard is not None:
                raise self._world.violation(
                    f"run {run_id} took {row}, which came after its wait was over at {due} [{process.name}]"
                )

    def waits_of(self, execution: Execution) -> Counter[str]:
        """What a workflow waits for, in this life of it, by the names that a park gives to that."""
        lease = (execution.run_id, execution.run.token)
        if lease not in self._awaited or self._awaited[lease][0] is not execution:
            self._awaited[lease] = (execution, Counter())
        return self._awaited[lease][1]

    def check_parked(self, run: RunRow) -> None:
        """A run was parked: what its program waits for wakes it."""
        named = [] if run.waiting_for is None else msgspec.json.decode(run.waiting_for)
        _, awaited = self._awaited.get((run.run_id, run.token or ""), (None, Counter[str]()))
        for wait, count in awaited.items():
            if count > 0 and wait not in named and f"{wait[0]}:*" not in named:
                raise self._world.violation(f"run {run.run_id} waits for {wait}, and only {named} wake it")

    def crash(self, visit: Visit) -> None:
        self._check_taken_along(visit)
        self._world.happened(Fault.POISON, f"{visit.process.name} {visit.run_id}")
        self._world.crash(self._world.node_of(visit.process))

    def _check_taken_along(self, visit: Visit) -> None:
        """A run that kills its worker takes nobody along who was claimed with it and has lost workers before."""
        runs = self._world.checker.runs
        killer = runs.get(visit.run_id)
        if killer is None or killer.token != visit.token:
            return
        most = max(1, min(SUSPECT_CRASHES, self._world.settings.max_crashes - 1))
        for run in runs.values():
            if run is killer or run.status is not RunStatus.RUNNING or run.worker_id != killer.worker_id:
                continue
            if run.crashes >= most and run.token is not None and run.token[8:] == killer.token[8:]:
                raise self._wrong(visit, f"takes run {run.run_id} along, which has lost {run.crashes} workers")

    def _check_once(self, visit: Visit) -> None:
        key = (visit.run_id, visit.step_id, visit.attempt, visit.token)
        if key in self._seen:
            raise self._wrong(visit, "began twice under one lease")
        self._seen.add(key)

    def _check_siblings(self, visit: Visit, awaited: Collection[str] | None) -> None:
        for other in self._active.get((visit.run_id, visit.token), ()):
            if other.awaits_cancellation:
                # Tasks begin in the order in which they were made: this one was made before the other was cancelled.
                continue
            if awaited is not None and other.step_id not in awaited and other.cancelled_at is None:
                raise self._wrong(visit, f"began while {other.step_id} goes on, whose end nobody waits for")
            # Longer than the grace time nobody waits for a body that cleans up.
            at = other.cancelled_at
            if at is not None and self._world.host.time() - at < CANCEL_GRACE / SECOND:
                raise self._wrong(visit, f"began while the cancelled body {other.step_id} still goes on")

    def _check_lease(self, visit: Visit, position: int) -> None:
        run = self._world.checker.runs.get(visit.run_id)
        if run is None:
            raise self._wrong(visit, "began before its run was there")
        visit.run_attempts = run.attempts
        if run.token != visit.token or run.status is not RunStatus.RUNNING:
            self._check_gone(visit)
            return
        if run.last_seq < position:
            raise self._wrong(visit, f"began although event {position} is not durable, only {run.last_seq} are")
        event = run.events.get(visit.step_id)
        if event is not None:
            raise self._wrong(visit, f"began although its result is recorded as event {event.completed_seq}")
        if visit.attempt > 1:
            before = run.steps.get((visit.step_id, visit.attempt - 1))
            if before is None or before.status is not StepStatus.FAILED:
                raise self._wrong(visit, f"is attempt {visit.attempt}, and the failure before it is not durable")
            ended_at = self.ended_at.get((visit.run_id, visit.step_id, visit.attempt - 1))
            if ended_at is not None and before.retry_at is not None and before.finished_at is not None:
                early = ended_at + before.retry_at - before.finished_at - self._world.clock.now()
                if early > 0:
                    raise self._wrong(visit, f"began {early / 1000:g} ms before its time")

    def _check_gone(self, visit: Visit) -> None:
        """A body may begin without its lease for two reasons only."""
        world = self._world
        if visit.process.resumed_at == world.host.time():
            return  # nothing can keep it from beginning in the very moment in which its process wakes from a pause
        revoked_at = world.checker.revoked.get(visit.run_id)
        if revoked_at is not None and world.clock.now() - revoked_at < world.settings.lease:
            return  # a timeout took the run from a good lease; the next heartbeat tells
        raise self._wrong(visit, "began under a lease that is gone")

    def _wrong(self, visit: Visit, what: str) -> Violation:
        return self._world.violation(
            f"the body {step_name(visit.step_id)} ({visit.step_id}, attempt {visit.attempt}) of run {visit.run_id} "
            f"{what} [{visit.process.name}]"
        )

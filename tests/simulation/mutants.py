"""Bugs to be planted, each a patch of its own. What breaks a rule of `sdk/replay/execution.py` is planted as in
`tests/sdk/replay`; here it has to show in a whole system."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from kagzi.api.operations import CancelStep, Chunk, ChunkAnswer, Operation
from kagzi.api.workers import Claim, Heartbeat, HeartbeatAnswer
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.step import Step
from kagzi.engine.lock_lane import LockLane
from kagzi.engine.wakeups import Wakeups
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.replay.tasks import Timer
from kagzi.sdk.signature import Signature
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.engine_clock import Bounds, EngineClock
from kagzi.sdk.worker.worker import Worker
from kagzi.store.protocol.overview import Horizon
from kagzi.store.sqlite import chunks, claims
from kagzi.store.sqlite.statements import SQL

Patch = pytest.MonkeyPatch


def say_instead(patch: Patch, statement: str, old: str, new: str) -> None:
    """Change a statement of the store."""
    assert old in SQL[statement], f"{statement} does not say {old!r} any more"
    patch.setitem(SQL, statement, SQL[statement].replace(old, new))  # type: ignore[arg-type]


# The store.


def drop_the_fence(patch: Patch) -> None:
    read = chunks._read_leases

    def blind(connection: sqlite3.Connection, chunks: list[tuple[int, Chunk]]) -> Any:
        leases = read(connection, chunks)
        for _, chunk in chunks:
            lease = leases.get((chunk.namespace, chunk.run_id))
            if lease is not None:
                lease.token = chunk.token
        return leases

    patch.setattr(chunks, "_all_held", lambda *_: False)
    patch.setattr(chunks, "_read_leases", blind)
    say_instead(patch, "finish_runs", "AND r.token = ended.token ", "")
    say_instead(patch, "release_runs", "AND r.token = released.token", "")


def count_claims_as_failures(patch: Patch) -> None:
    counted = "executions = executions + 1"
    say_instead(patch, "claim_runs", counted, f"{counted}, attempts = attempts + 1")


def keep_the_token_of_a_dead_lease(patch: Patch) -> None:
    say_instead(patch, "recover_run", "token = NULL, ", "")


def claim_under_the_token_of_the_poll(patch: Patch) -> None:
    """A poll that comes twice then revives what was written under its first lease."""
    say_instead(patch, "claim_runs", "printf('%08x', executions + 1) || substr(?3, 9)", "?3")


def claim_before_the_time(patch: Patch) -> None:
    say_instead(patch, "find_due_runs", "claim_key <= ?3", "claim_key <= ?3 + 300000")


def recover_before_the_lease_ends(patch: Patch) -> None:
    say_instead(patch, "find_dead_leases", "r.lease_expires_at <= ?1", "r.lease_expires_at <= ?1 + 400000")


def overwrite_results(patch: Patch) -> None:
    for statement in ("write_steps", "complete_steps"):
        where = SQL[statement].rindex("WHERE")
        say_instead(patch, statement, SQL[statement][where:], "WHERE true")


def claim_without_the_newest_event(patch: Patch) -> None:
    """As when history is read in the same statement as the claim, or not at all because of a counter."""
    read = claims.read_history

    def stale(connection: sqlite3.Connection, namespace: str, run_ids: Any) -> dict[str, tuple[Step, ...]]:
        histories = read(connection, namespace, run_ids)
        return {run_id: tuple(_without_the_last(steps)) for run_id, steps in histories.items()}

    patch.setattr(claims, "read_history", stale)


def _without_the_last(steps: tuple[Step, ...]) -> list[Step]:
    last = max((step.completed_seq or 0 for step in steps), default=0)
    return [step for step in steps if not last or step.completed_seq != last]


def forget_to_count_crashes(patch: Patch) -> None:
    say_instead(patch, "recover_run", "crashes = ?3", "crashes = crashes + 0 * ?3")


# The engine.


def wake_only_by_notification(patch: Patch) -> None:
    def heard_only(self: Wakeups, horizon: Horizon) -> None:
        self._clock.heard(horizon.now)

    patch.setattr(Wakeups, "read", heard_only)
    patch.setattr(Wakeups, "_arm", lambda *_: None)


# The worker.


def apply_an_operation_after_a_refused_one(patch: Patch) -> None:
    def go_on(self: Attempt, error: BaseException | None) -> None:
        if self._last is not None and not self._outbox:
            self._leave()
        elif self.execution is not None:
            self.execution.durable(0)
            self._flush()

    patch.setattr(Attempt, "_refused", go_on)


def park_before_siblings_finish(patch: Patch) -> None:
    def idle(self: Execution) -> bool:
        return self.outcome is None and not self._wanted and not self.loop.evicting and self.next_due() is not None

    patch.setattr(Execution, "idle", property(idle))


def start_bodies_behind_a_park(patch: Patch) -> None:
    wait = Attempt._wait

    def unstopped(self: Attempt, execution: Execution) -> None:
        self._stop_execution = lambda: None  # type: ignore[method-assign]
        try:
            wait(self, execution)
        finally:
            self.__dict__.pop("_stop_execution", None)

    patch.setattr(Attempt, "_wait", unstopped)


def several_chunks_in_flight(patch: Patch) -> None:
    flush = Attempt._flush

    def impatient(self: Attempt) -> None:
        self._in_flight = 0
        flush(self)

    patch.setattr(Attempt, "_flush", impatient)


def end_before_the_last_events(patch: Patch) -> None:
    end = Attempt._end

    def overtaken(self: Attempt, operation: Operation) -> None:
        self._outbox.clear()
        end(self, operation)

    patch.setattr(Attempt, "_end", overtaken)


def record_after_the_end(patch: Patch) -> None:
    committed = Attempt._committed

    def afterthought(self: Attempt, commit: Any) -> None:
        ended = self._last is not None and not self._outbox and not self.gone
        if ended and not commit.cancelled() and commit.exception() is None and not hasattr(self, "thought"):
            self.thought = True  # type: ignore[attr-defined]
            self._outbox.append(CancelStep(step_id="afterthought", started_at=self.now(), finished_at=self.now()))
        committed(self, commit)

    patch.setattr(Attempt, "_committed", afterthought)


def trust_every_lease(patch: Patch) -> None:
    patch.setattr(Attempt, "lease_is_safe", lambda *_: True)


def count_leases_from_their_arrival(patch: Patch) -> None:
    hold = Worker._hold

    def fresh(self: Worker, claim: Claim, bounds: Bounds, _: Span) -> Attempt:
        return hold(self, claim, bounds, self.monotonic())

    patch.setattr(Worker, "_hold", fresh)


def count_renewed_leases_from_the_answer(patch: Patch) -> None:
    renewed = Worker.renewed

    def fresh(self: Worker, sent: Heartbeat, at: Span, answer: HeartbeatAnswer) -> None:
        renewed(self, sent, at, answer)
        for run_id, token in sent.held:
            attempt = self._held.get(run_id)
            if attempt is not None and attempt.token == token and run_id not in answer.lost:
                attempt.leased_at = self.monotonic()

    patch.setattr(Worker, "renewed", fresh)


def acknowledge_what_is_locked(patch: Patch) -> None:
    patch.setattr(LockLane, "add", lambda _, write, reply, since: reply.settle(ChunkAnswer.DONE))  # noqa: ARG005


def lose_what_is_locked(patch: Patch) -> None:
    patch.setattr(LockLane, "add", lambda *_: None)


def count_time_from_the_arrival_of_the_claim(patch: Patch) -> None:
    def naive(_self: EngineClock, _sent: Span, now: Instant, received: Span, _waited: Span = 0) -> Bounds:
        return Bounds(now - received, now - received)

    patch.setattr(EngineClock, "heard", naive)


def fire_timers_by_the_latest_time(patch: Patch) -> None:
    patch.setattr(Attempt, "passed", Attempt.now)


def count_first_timers_from_the_start_of_the_run(patch: Patch) -> None:
    patch.setattr(Execution, "_set_off", lambda self: self.loop.drain())


def drain_by_failing_steps(patch: Patch) -> None:
    """A body that is stopped because its worker leaves counts as a failed attempt."""
    hand_back = Attempt.hand_back

    def fail_first(self: Attempt) -> None:
        for call in list(self._bodies):
            if self.execution is not None:
                self.execution.step_raised(call, RuntimeError("the worker stops"))
        hand_back(self)

    patch.setattr(Attempt, "hand_back", fail_first)


# The kernel, where the patch of `tests/sdk/replay` does not fit.


def restart_sleeps_on_replay(patch: Patch) -> None:
    call_at = WorkflowLoop.call_at

    def from_now(self: WorkflowLoop, when: float, *args: Any, **kwargs: Any) -> Timer:
        if not self.execution._live:
            when += max(0, self.execution._effects.now() - self.now) / SECOND
        return call_at(self, when, *args, **kwargs)

    patch.setattr(WorkflowLoop, "call_at", from_now)


def values_are_not_rebuilt(patch: Patch) -> None:
    patch.setattr(Signature, "settle_result", lambda self, value: (self.encode_result(value), value))


MUTANTS: list[Callable[[Patch], None]] = [
    drop_the_fence,
    count_claims_as_failures,
    keep_the_token_of_a_dead_lease,
    claim_under_the_token_of_the_poll,
    claim_before_the_time,
    recover_before_the_lease_ends,
    overwrite_results,
    claim_without_the_newest_event,
    forget_to_count_crashes,
    wake_only_by_notification,
    apply_an_operation_after_a_refused_one,
    park_before_siblings_finish,
    start_bodies_behind_a_park,
    several_chunks_in_flight,
    end_before_the_last_events,
    record_after_the_end,
    trust_every_lease,
    count_leases_from_their_arrival,
    count_renewed_leases_from_the_answer,
    acknowledge_what_is_locked,
    lose_what_is_locked,
    count_time_from_the_arrival_of_the_claim,
    fire_timers_by_the_latest_time,
    count_first_timers_from_the_start_of_the_run,
    drain_by_failing_steps,
    restart_sleeps_on_replay,
    values_are_not_rebuilt,
]

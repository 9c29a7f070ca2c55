"""Rows of the store as the checks see them, read by themselves."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
from msgspec import Struct

from kagzi.api.workers import Poll
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind, StepStatus
from kagzi.testing.simulation.signals import SignalRow
from kagzi.testing.simulation.values import ValueRow


class Violation(AssertionError):
    """The world is in a state in which it must never be."""


class StepRow(Struct, frozen=True):
    step_id: str
    attempt: int
    kind: StepKind
    status: StepStatus
    completed_seq: int | None
    started_at: Instant
    finished_at: Instant | None
    retry_at: Instant | None
    timeout_at: Instant | None
    input_hash: int
    generation: int
    output: bytes | None
    error: bytes | None
    child_run_id: str | None


class RunRow(Struct):
    """A run as it was after the last transaction that touched it."""

    run_id: str
    namespace: str
    token: str | None
    worker_id: str | None
    claim_key: int | None
    available_at: Instant | None
    lease_expires_at: Instant | None
    lease_length: int | None
    started_at: Instant | None
    finished_at: Instant | None
    deadline_at: Instant | None
    attempts: int
    executions: int
    crashes: int
    crashed_seq: int | None
    poll: int | None
    inbox_seq: int
    cancel_requested: int
    cancel_deadline: Instant | None
    status: RunStatus
    output: bytes | None
    error: bytes | None
    external_id: str | None
    workflow_type: str
    task_queue: str
    input: bytes | None
    waiting_for: str | None
    on_failure: str | None
    handles_run_id: str | None
    parent_run_id: str | None
    parent_step_id: str | None
    parent_policy: str | None
    has_children: int | None
    depth: int | None
    former_id: str | None
    superseded_by: str | None
    incarnation: int | None
    schedule_group_id: str | None
    scheduled_for: Instant | None
    timezone: str | None
    created_at: Instant
    version: str
    held_key: int | None
    limit_name: str | None
    limit_key: str | None
    origin_run_id: str | None
    signals: dict[str, SignalRow] = {}
    values: dict[str, ValueRow] = {}
    steps: dict[tuple[str, int], StepRow] = {}
    events: dict[str, StepRow] = {}
    last_seq: int = 0
    tokens: list[str] = []  # every token the run was claimed under, oldest first


_RUN_COLUMNS = ", ".join(RunRow.__struct_fields__[:-6])
_VALUE_COLUMNS = ", ".join(ValueRow.__struct_fields__)
_SIGNAL_COLUMNS = ", ".join(SignalRow.__struct_fields__)
_STEP_COLUMNS = ", ".join(StepRow.__struct_fields__)


def read_run(connection: sqlite3.Connection, run_id: str, old: RunRow | None, steps: bool) -> RunRow:
    row = connection.execute(
        f"SELECT {_RUN_COLUMNS} FROM workflow_runs WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    new = RunRow(*row)
    new.status = RunStatus(new.status)
    if old is not None:
        new.steps, new.events, new.last_seq, new.tokens = old.steps, old.events, old.last_seq, old.tokens
    if new.token is not None and (not new.tokens or new.tokens[-1] != new.token):
        if new.token in new.tokens:
            raise wrong(run_id, f"was claimed again under the token {new.token}")
        new.tokens = [*new.tokens, new.token]
    if steps:
        _read_steps(connection, new)
    rows = connection.execute(f"SELECT {_SIGNAL_COLUMNS} FROM signals WHERE run_id = ?", (run_id,))
    new.signals = {row[0]: SignalRow(*row) for row in rows}
    rows = connection.execute(f"SELECT {_VALUE_COLUMNS} FROM run_values WHERE run_id = ?", (run_id,))
    new.values = {row[0]: ValueRow(*row) for row in rows}
    return new


def _read_steps(connection: sqlite3.Connection, run: RunRow) -> None:
    rows = connection.execute(
        f"SELECT {_STEP_COLUMNS} FROM step_runs WHERE run_id = ?",
        (run.run_id,),
    ).fetchall()
    run.steps = {(row[0], row[1]): _step(row) for row in rows}
    events = [step for step in run.steps.values() if step.completed_seq is not None]
    events.sort(key=_seq)
    run.events = {step.step_id: step for step in events}
    run.last_seq = len(events)
    if [step.completed_seq for step in events] != list(range(1, len(events) + 1)):
        raise wrong(run.run_id, f"has the events {[step.completed_seq for step in events]}")
    if sum(step.kind is StepKind.CANCEL for step in events) > 1:
        raise wrong(run.run_id, "was told more than once that it is cancelled")
    at = run.started_at or 0
    for step in events:
        if step.finished_at is None or step.finished_at < at:
            raise wrong(run.run_id, f"saw event {step.completed_seq} before the one that came before it")
        at = step.finished_at


def wrong(run_id: str, what: str) -> Violation:
    return Violation(f"run {run_id} {what}")


def _step(row: tuple[Any, ...]) -> StepRow:
    step_id, attempt, kind, status, *rest = row
    return StepRow(step_id, attempt, StepKind(kind), StepStatus(status), *rest)


def _seq(step: StepRow) -> int:
    return step.completed_seq or 0


def same_but_timeouts(old: RunRow, new: RunRow) -> bool:
    """A timeout nobody waits for any more may be forgotten even after the end."""
    return old.steps.keys() == new.steps.keys() and all(
        step == old.steps[key] or msgspec.structs.replace(old.steps[key], timeout_at=None) == step
        for key, step in new.steps.items()
    )


def difference(old: RunRow, new: RunRow) -> str:
    was, now = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    return ", ".join(
        f"{field} {was[field]!r:.60} -> {now[field]!r:.60}"
        for field in was
        if was[field] != now[field] and field not in ("steps", "events", "tokens", "signals", "values")
    )


def of_poll(token: str | None, poll: Poll) -> bool:
    return token is not None and token[8:] == poll.token[8:]

"""Explains why a signal was not stored, in the same words for every store."""

from __future__ import annotations

from kagzi.api.operations import Answer, SendSignal, SignalAnswer
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.signal import MOST_UNTAKEN
from kagzi.errors import Conflict, LimitExceeded, NotFound


def unsent(
    signal: SendSignal,
    status: RunStatus | None,
    task_queue: str,
    available_at: Instant,
    known: tuple[int, str] | None,
) -> Answer:
    """Answers a signal that was not stored. `status` is None if there is no such run; `known` are number and name of
    the signal that has its key."""
    if status is None:
        return NotFound(f"there is no run {signal.run_id} in namespace {signal.namespace}")
    if known is not None:
        seq, name = known
        if name != signal.name:
            return Conflict(
                f"run {signal.run_id} has a signal {name!r} with the key {signal.key!r}; "
                f"a signal {signal.name!r} needs another one"
            )
        return SignalAnswer(
            run_id=signal.run_id,
            seq=seq,
            status=status,
            repeated=True,
            task_queue=task_queue,
            available_at=available_at,
        )
    if status.finished:
        return Conflict(f"run {signal.run_id} is {status} and takes no signals")
    return LimitExceeded.lasting(
        f"{MOST_UNTAKEN:,} signals wait in the inbox of run {signal.run_id}; send more when it has taken some"
    )

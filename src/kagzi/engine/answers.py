"""Answers to writes: who waits for them, and what follows from a commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from kagzi.api.operations import Answer, Chunk, Write
from kagzi.api.reply import Reply
from kagzi.errors import KagziError, LimitExceeded, Locked, Unavailable
from kagzi.store.protocol.changes import Applied

log = logging.getLogger("kagzi.engine")

Settled = Callable[[list[Write], Applied], None]
GiveAnswers = Callable[[list[Write], list[Reply[Any]], Applied], None]
Broken = set[tuple[str, str]]  # (run_id, token) of leases with a chunk that failed

# How long an engine that is being closed waits for what it has to write, in seconds.
CLOSING_PATIENCE: Final = 5.0


def give_answers(settled: Settled | None) -> GiveAnswers:
    """Returns how callers get the answers to their writes; `settled` hears of them first."""

    def give(writes: list[Write], replies: list[Reply[Any]], applied: Applied) -> None:
        if settled is not None:
            try:
                settled(writes, applied)
            except Exception:
                log.exception("bookkeeping after a commit failed")
        for reply, answer in zip(replies, applied.answers, strict=True):
            try:
                reply.settle(_for_caller(answer) if isinstance(answer, Exception) else answer)
            except Exception:
                log.exception("what follows from a commit failed")

    return give


def leases_broken(writes: Sequence[Write], answers: Sequence[Answer]) -> Broken:
    """Returns the leases of chunks that failed: what comes behind would leave a hole in the history of their run."""
    return {
        (write.run_id, write.token)
        for write, answer in zip(writes, answers, strict=True)
        if isinstance(answer, Exception) and isinstance(write, Chunk)
    }


def refused(writes: Sequence[Write], error: Exception) -> Applied:
    return Applied([error] * len(writes), [])


def after_failure() -> Unavailable:
    return Unavailable("an earlier write of this run failed, so this one was not made")


def describe(write: Write) -> str:
    """Returns what a write is, for the log."""
    named = write.operations if isinstance(write, Chunk) else (write,)
    kinds = ", ".join(type(each).__name__ for each in named)
    return f"{kinds} of run {write.run_id}"


def _for_caller(error: Exception) -> KagziError:
    """Makes an exception of the caller's own, since one that many raise collects all their tracebacks."""
    if isinstance(error, Unavailable) and not isinstance(error, LimitExceeded):
        kind = Locked if isinstance(error, Locked) else Unavailable
        fresh: KagziError = kind(str(error) or "the database is out of reach; trying again is safe")
    elif isinstance(error, KagziError):
        return error
    else:
        fresh = KagziError(f"the write failed for a reason nobody foresaw ({type(error).__name__}); the log has more")
    fresh.__cause__ = error
    return fresh

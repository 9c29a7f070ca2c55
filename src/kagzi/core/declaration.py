"""Schedules that code declares, and which declaration counts. Pure, for both databases.

Of two versions of the code that are both at work, the one whose worker started last rules, and is remembered. Workers
look again now and then: when the worker that rules is gone, one of another mind takes over. So nothing goes to and fro
during a deploy, and soon after it the new code rules. What a person has changed stays until it is reset.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from kagzi.core.instant import Span
from kagzi.core.schedule import DEFAULT_CATCHUP, Overlap


class Declaration(Struct, frozen=True, kw_only=True):
    """What code says about one schedule. `hash` tells it from another declaration of the same name."""

    name: str
    workflow_type: str
    task_queue: str
    cron_expr: str
    timezone: str = "UTC"
    input: bytes = b"[]"
    max_catchup: int = DEFAULT_CATCHUP
    overlap: Overlap = Overlap.ALLOW
    jitter: Span = 0
    priority: int = 0
    timeout: Span | None = None
    retry_policy: bytes | None = None
    on_failure: str | None = None
    on_failure_queue: str | None = None
    limit_key: str | None = None  # whose share of limits its runs take
    hash: str


class Standing(Struct, frozen=True, kw_only=True):
    """A schedule of the declared name, as its row says under its lock."""

    hash: str | None  # None: a person has made it
    declared_by: str | None
    declarer_live: bool
    changed_by_hand: bool


class Verdict(StrEnum):
    """What becomes of a declaration."""

    CREATED = "created"  # there was none of this name
    SAME = "same"  # nothing to do
    CONFIRMED = "confirmed"  # as it is, and now this worker's
    TAKEN_OVER = "taken over"
    OTHERS = "others"  # a live worker declares it otherwise
    CHANGED_BY_HAND = "changed by hand"
    MADE_BY_HAND = "made by hand"


def judge(standing: Standing, hash: str, worker_id: str, *, starting: bool) -> Verdict:
    """Decides which declaration counts: that of this worker, which starts or looks again, or the one that is there."""
    if standing.hash is None:
        return Verdict.MADE_BY_HAND
    if standing.changed_by_hand:
        return Verdict.CHANGED_BY_HAND
    mine = standing.declared_by == worker_id
    if standing.hash == hash:
        return Verdict.SAME if mine or (standing.declarer_live and not starting) else Verdict.CONFIRMED
    return Verdict.TAKEN_OVER if starting or mine or not standing.declarer_live else Verdict.OTHERS


def warning(verdict: Verdict, name: str) -> str | None:
    """Returns what the authors of a declaration should know about it, to be logged where it was made."""
    match verdict:
        case Verdict.CHANGED_BY_HAND:
            return (
                f"schedule {name!r} was changed by a person, and stays so: what the code declares is not used. "
                f"`kagzi schedules reset {name}` brings it back"
            )
        case Verdict.MADE_BY_HAND:
            return (
                f"schedule {name!r} was made by a person, and stays so: what the code declares is not used. `kagzi "
                f"schedules reset {name}` hands it over to the code; or declare it under another name"
            )
        case Verdict.CREATED | Verdict.SAME | Verdict.CONFIRMED | Verdict.TAKEN_OVER | Verdict.OTHERS:
            return None
        case _:
            assert_never(verdict)

"""A schedule: what is known about it, and the decision which of its firings are due. Pure, for both databases.

    fired_until            first                                  now
    ───────┴──────●─────────●───────●───────●───────●──────●───────┼────▶
            (watermark)     └──── skipped ──┘└── the newest max_catchup,
                                                 oldest first, a few a turn

Nothing at or before the watermark is fired by the clock again, whatever became of the runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, assert_never

from msgspec import Struct

from kagzi.core.cron import Times, upcoming
from kagzi.core.instant import SECOND, Instant, Span, to_datetime
from kagzi.errors import InvalidRequest

DEFAULT_CATCHUP: Final = 100
MOST_SCHEDULES: Final = 10_000  # of a namespace
MOST_CATCHUP: Final = 10_000
LONGEST_JITTER: Final[Span] = 24 * 3600 * SECOND
MOST_BACKFILLED: Final = 1000
MOST_PREVIEWED: Final = 100
DEFAULT_PREVIEWED: Final = 10

FIRED_AT_ONCE: Final = 20  # of one schedule in a turn; then others have theirs
MOST_COUNTED: Final = 10_000  # skipped firings that are counted one by one
# What is no later than this is on time, and fires although nothing is caught up on.
ON_TIME: Final[Span] = 60 * SECOND
AFTER_ERROR: Final[Span] = 60 * SECOND
WHILE_DISABLED: Final[Span] = 30 * SECOND


class Overlap(StrEnum):
    """What a firing does while a run of the same schedule is live."""

    ALLOW = "allow"
    SKIP = "skip"
    CANCEL_PREVIOUS = "cancel_previous"
    BUFFER = "buffer"


class SkipReason(StrEnum):
    """Why a firing did not become a run."""

    CATCHUP = "catchup"  # missed, and more than are caught up on
    OVERLAP = "overlap"  # the run before was still live
    PAUSED = "paused"  # it was due, or waited for the run before, when the schedule was paused or changed


class Schedule(Struct, frozen=True, kw_only=True):
    """What is known about a schedule. Instants are microseconds (see `core.instant`)."""

    namespace: str
    schedule_id: str
    name: str | None
    workflow_type: str
    task_queue: str
    version: str  # '' is the default one at the time of firing
    cron_expr: str
    timezone: str
    enabled: bool
    input: bytes
    max_catchup: int
    overlap: Overlap
    jitter: Span
    priority: int
    timeout: Span | None
    retry_policy: bytes | None
    created_at: Instant
    updated_at: Instant
    next_fire_at: Instant | None  # None while paused
    last_fired_at: Instant | None
    last_run_id: str | None
    total_runs: int
    successful_runs: int
    failed_runs: int
    skipped_runs: int
    buffered_for: Instant | None = None
    error: str | None = None  # why it could not fire the last time
    pause_reason: str | None = None
    declared: bool = False  # by code
    tags: dict[str, str] = {}  # of the runs it fires
    changed_by_hand: bool = False  # a person has changed what code declares
    abandoned: bool = False  # code has declared it, and no live worker does
    on_failure: str | None = None  # the workflow that is started if a run of it fails
    on_failure_queue: str | None = None
    limit_key: str | None = None  # whose share of limits its runs take


class ScheduleCounts(Struct, frozen=True):
    """How many schedules there are, and what became of their firings: the sums of their counters."""

    total: int
    enabled: int
    runs: int
    successful: int
    failed: int
    skipped: int  # firings


class Skip(Struct, frozen=True, kw_only=True):
    """Firings in a row that did not become runs."""

    first_at: Instant
    last_at: Instant
    count: int  # or at least this many, from MOST_COUNTED on
    reason: SkipReason
    at: Instant = 0  # when that was decided


class Template(Struct, frozen=True, kw_only=True):
    """What decides about the firings of one schedule, read under its lock."""

    schedule_id: str
    next_fire_at: Instant | None
    fired_until: Instant
    kept_until: Instant | None  # up to here it was decided what is caught up on
    max_catchup: int
    overlap: Overlap
    jitter: Span
    buffered_for: Instant | None
    live: bool  # whether a run of it is


class Firing(Struct, frozen=True, kw_only=True):
    """What a turn makes of one schedule."""

    fire: tuple[Instant, ...] = ()  # in this order
    cancel_live: bool = False  # before that
    skipped: tuple[Skip, ...] = ()
    buffered_for: Instant | None = None
    fired_until: Instant = 0
    kept_until: Instant | None = None
    next_fire_at: Instant | None = None
    look_at: Instant | None = None  # when the coordinator looks at it again


def decide(times: Times, template: Template, now: Instant, counted: int = MOST_COUNTED) -> Firing:
    """Returns which instants fire now, which are skipped for good, and when to look again.

    `counted` bounds how many skipped ones are counted one by one.
    """
    kept, skipped, kept_until = _kept(times, template, now, counted)
    turn, later = kept[:FIRED_AT_ONCE], kept[FIRED_AT_ONCE:]
    handled = turn[-1:] or [skip.last_at for skip in skipped[-1:]]
    fired_until = max([template.fired_until, *handled])
    following = later[0] if later else _following(times, template, fired_until)
    fire, buffered_for, cancel_live = list(turn), template.buffered_for, False
    match template.overlap:
        case Overlap.ALLOW:
            pass
        case Overlap.BUFFER:
            # What waits is the oldest; what comes later waits in its place.
            waiting = [at for at in (template.buffered_for, *turn) if at is not None]
            fire, waiting = ([], waiting) if template.live else (waiting[:1], waiting[1:])
            skipped += [_overlapping(at) for at in waiting[:-1]]
            buffered_for = waiting[-1] if waiting else None
        case Overlap.SKIP:
            if template.live and turn:
                fire, skipped = [], [*skipped, *(_overlapping(at) for at in turn)]
        case Overlap.CANCEL_PREVIOUS:
            cancel_live = bool(template.live and turn)
        case overlap:
            assert_never(overlap)
    return Firing(
        fire=tuple(fire),
        cancel_live=cancel_live,
        skipped=tuple(skipped),
        buffered_for=buffered_for,
        fired_until=fired_until,
        kept_until=kept_until if later else None,
        next_fire_at=following,
        look_at=now if later else following,
    )


def _kept(
    times: Times, template: Template, now: Instant, counted: int
) -> tuple[list[Instant], list[Skip], Instant | None]:
    """Returns the due instants that become runs, oldest first, those that do not, and up to where that was decided."""
    first = template.next_fire_at
    if first is None or first > now:
        return [], [], None
    if template.kept_until is not None and first <= template.kept_until:
        # Decided in an earlier turn: going back through thousands each time would be work for nothing.
        ahead = [first, *upcoming(times, first, FIRED_AT_ONCE)]
        return [at for at in ahead if at <= template.kept_until], [], template.kept_until
    second = times.after(first)
    if second is None or second > now:
        newest, older = first, None  # as nearly always
    else:
        newest, older = times.until(now) or first, first
    most = template.max_catchup if template.overlap is Overlap.ALLOW else min(template.max_catchup, 1)
    if now - newest <= ON_TIME:
        most = max(most, 1)
    kept: list[Instant] = []
    at: Instant | None = newest
    while len(kept) < most and at is not None and at >= first:
        kept.append(at)
        at = _before(times, at, first) if older is not None else None
    kept.reverse()
    if at is None:
        return kept, [], newest
    return kept, [_missed(times, first, at, counted)], newest


def _before(times: Times, at: Instant, first: Instant) -> Instant | None:
    """Returns the firing before this one; the first may be none of the expression's."""
    if at <= first:
        return None
    before = times.until(at - 1)
    return first if before is None or before < first else before


def unfired(times: Times, first: Instant, now: Instant) -> Skip:
    """Returns the firings, from this one on, that were due when their schedule was paused or changed, and will not be
    fired."""
    return _missed(times, first, max(first, times.until(now) or first), MOST_COUNTED, SkipReason.PAUSED)


def _missed(times: Times, first: Instant, last: Instant, counted: int, reason: SkipReason = SkipReason.CATCHUP) -> Skip:
    count, at = 1, last
    while count < counted and (before := _before(times, at, first)) is not None:
        count, at = count + 1, before
    return Skip(first_at=first, last_at=last, count=count, reason=reason)


def _overlapping(at: Instant) -> Skip:
    return Skip(first_at=at, last_at=at, count=1, reason=SkipReason.OVERLAP)


def _following(times: Times, template: Template, fired_until: Instant) -> Instant | None:
    """Returns the next firing after the watermark. One that somebody has chosen stays the next one."""
    if template.next_fire_at is not None and template.next_fire_at > fired_until:
        return template.next_fire_at
    return times.after(fired_until)


def delay_of(schedule_id: str, instant: Instant, jitter: Span) -> Span:
    """Returns how long after its instant a firing begins: the same in every process, up to the jitter."""
    if jitter <= 0:
        return 0
    digest = hashlib.blake2b(f"{schedule_id}:{instant}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (jitter + 1)


def firing_id(schedule_id: str, instant: Instant) -> str:
    """Returns the id of the run that a firing becomes: a label for people, not what keeps it from firing twice."""
    return f"{schedule_id}:{to_datetime(instant).isoformat().replace('+00:00', 'Z')}"


def backfilled(times: Times, since: Instant, until: Instant) -> Iterator[Instant]:
    """Yields the instants from `since` to before `until`, oldest first; InvalidRequest if there are too many."""
    if until <= since:
        raise InvalidRequest("backfill: `until` must be later than `since`")
    found, at = 0, since - 1
    while (following := times.after(at)) is not None and following < until:
        if found == MOST_BACKFILLED:
            raise InvalidRequest(
                f"backfill: there are more than {MOST_BACKFILLED:,} firings between these; ask for a shorter time, "
                f"for example until {to_datetime(at).isoformat()}"
            )
        yield following
        found, at = found + 1, following


def check_catchup(value: object, field: str = "max_catchup") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_CATCHUP:
        raise InvalidRequest(f"{field} must be a whole number from 0 to {MOST_CATCHUP:,}, not {value!r:.60}")
    return value


def check_overlap(value: object) -> Overlap:
    for overlap in Overlap:
        if overlap == value:
            return overlap
    raise InvalidRequest(f"overlap must be one of {', '.join(Overlap)}, not {value!r:.60}")


def check_count(value: object) -> int:
    """Returns how many firings a preview shows."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_PREVIEWED:
        raise InvalidRequest(f"count must be a whole number from 1 to {MOST_PREVIEWED}, not {value!r:.60}")
    return value


def check_jitter(value: object) -> Span:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LONGEST_JITTER:
        raise InvalidRequest(f"jitter must be from 0 to 24 hours, not {value!r:.60} microseconds")
    return value

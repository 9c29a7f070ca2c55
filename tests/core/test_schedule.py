"""Which firings of a schedule are due, which are skipped, and which wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kagzi.core.cron import parse_times
from kagzi.core.instant import SECOND, Instant
from kagzi.core.schedule import (
    FIRED_AT_ONCE,
    MOST_BACKFILLED,
    Firing,
    Overlap,
    Skip,
    SkipReason,
    Template,
    backfilled,
    check_catchup,
    check_jitter,
    check_overlap,
    decide,
    delay_of,
    firing_id,
)
from kagzi.errors import InvalidRequest

MINUTE = 60 * SECOND
TIMES = parse_times("* * * * *")


def template(
    first: Instant | None,
    *,
    fired_until: Instant | None = None,
    kept_until: Instant | None = None,
    catchup: int = 100,
    overlap: Overlap = Overlap.ALLOW,
    buffered_for: Instant | None = None,
    live: bool = False,
) -> Template:
    return Template(
        schedule_id="s",
        next_fire_at=first,
        fired_until=(first or 0) - MINUTE if fired_until is None else fired_until,
        kept_until=kept_until,
        max_catchup=catchup,
        overlap=overlap,
        jitter=0,
        buffered_for=buffered_for,
        live=live,
    )


def minute(n: float) -> Instant:
    return round(n * MINUTE)


def missed(first: int, last: int, reason: SkipReason = SkipReason.CATCHUP) -> Skip:
    return Skip(first_at=minute(first), last_at=minute(last), count=last - first + 1, reason=reason)


def test_nothing_is_due_before_its_time() -> None:
    firing = decide(TIMES, template(minute(5)), minute(5) - 1)
    assert firing == Firing(fired_until=minute(4), next_fire_at=minute(5), look_at=minute(5))


def test_what_is_due_fires_and_the_watermark_moves_with_it() -> None:
    firing = decide(TIMES, template(minute(5)), minute(5))
    assert firing == Firing(fire=(minute(5),), fired_until=minute(5), next_fire_at=minute(6), look_at=minute(6))


def test_the_newest_missed_ones_fire_oldest_first_and_the_rest_is_on_record() -> None:
    firing = decide(TIMES, template(minute(5), catchup=3), minute(14.5))
    assert firing.fire == (minute(12), minute(13), minute(14))
    assert firing.skipped == (missed(5, 11),)
    assert (firing.fired_until, firing.next_fire_at) == (minute(14), minute(15))


def test_without_catching_up_what_is_on_time_fires_and_what_is_late_does_not() -> None:
    assert decide(TIMES, template(minute(5), catchup=0), minute(6)).fire == (minute(6),)
    late = decide(parse_times("@hourly"), template(minute(60), catchup=0), minute(62))
    assert late.fire == ()
    assert [(skip.first_at, skip.count) for skip in late.skipped] == [(minute(60), 1)]
    assert (late.fired_until, late.next_fire_at) == (minute(60), minute(120))


def test_a_long_list_is_fired_in_turns_and_none_of_it_is_decided_anew() -> None:
    seen: list[Instant] = []
    now = minute(1000.5)
    state = template(minute(1), catchup=50)
    skipped: list[Skip] = []
    for _ in range(3):
        firing = decide(TIMES, state, now)
        assert len(firing.fire) <= FIRED_AT_ONCE
        seen += firing.fire
        skipped += firing.skipped
        state = template(firing.next_fire_at, fired_until=firing.fired_until, kept_until=firing.kept_until, catchup=50)
        now += 7 * MINUTE  # newer ones do not push out what was kept
    assert seen == [minute(n) for n in range(951, 1001)]
    assert skipped == [missed(1, 950)]
    # What came meanwhile is next.
    assert decide(TIMES, state, now).fire[0] == minute(1001)


def test_a_schedule_that_is_months_late_is_not_counted_for_ever() -> None:
    every_second = parse_times("* * * * * *")
    late = decide(every_second, template(SECOND, catchup=2), 90 * 86_400 * SECOND, counted=500)
    assert len(late.fire) == 2
    assert late.skipped[0].count == 500
    assert late.skipped[0].first_at == SECOND


def test_a_chosen_next_firing_comes_instead_of_what_the_expression_says() -> None:
    chosen = minute(7) + 1234
    assert decide(TIMES, template(chosen, fired_until=minute(4)), minute(7)).next_fire_at == chosen
    firing = decide(TIMES, template(chosen, fired_until=minute(4)), minute(8.5))
    assert firing.fire == (chosen, minute(8))
    assert firing.skipped == ()


def test_a_clock_that_steps_back_fires_nothing_again() -> None:
    assert decide(TIMES, template(minute(10), fired_until=minute(9)), minute(3)).fire == ()


def test_skip_lets_the_live_run_go_on() -> None:
    firing = decide(TIMES, template(minute(5), overlap=Overlap.SKIP, live=True), minute(5))
    assert firing.fire == ()
    assert firing.skipped == (missed(5, 5, SkipReason.OVERLAP),)
    assert firing.fired_until == minute(5)
    assert decide(TIMES, template(minute(5), overlap=Overlap.SKIP), minute(5)).fire == (minute(5),)


def test_of_many_missed_ones_only_the_newest_fires_where_they_would_exclude_each_other() -> None:
    for overlap in (Overlap.SKIP, Overlap.CANCEL_PREVIOUS, Overlap.BUFFER):
        firing = decide(TIMES, template(minute(5), overlap=overlap), minute(9.5))
        assert firing.fire == (minute(9),)
        assert firing.skipped == (missed(5, 8),)


def test_cancel_previous_ends_the_live_run() -> None:
    assert decide(TIMES, template(minute(5), overlap=Overlap.CANCEL_PREVIOUS, live=True), minute(5)).cancel_live
    assert not decide(TIMES, template(minute(5), overlap=Overlap.CANCEL_PREVIOUS), minute(5)).cancel_live
    assert not decide(TIMES, template(minute(5), overlap=Overlap.CANCEL_PREVIOUS, live=True), minute(4)).cancel_live


def test_a_buffered_firing_waits_for_the_run_before_and_a_later_one_takes_its_place() -> None:
    buffer = Overlap.BUFFER
    first = decide(TIMES, template(minute(5), overlap=buffer, live=True), minute(5))
    assert (first.fire, first.buffered_for, first.skipped) == ((), minute(5), ())
    second = decide(TIMES, template(minute(6), overlap=buffer, live=True, buffered_for=minute(5)), minute(6))
    assert (second.fire, second.buffered_for) == ((), minute(6))
    assert second.skipped == (missed(5, 5, SkipReason.OVERLAP),)
    # The run has ended before the next one is due.
    third = decide(TIMES, template(minute(7), overlap=buffer, buffered_for=minute(6)), minute(6.5))
    assert (third.fire, third.buffered_for, third.next_fire_at) == ((minute(6),), None, minute(7))
    assert third.fired_until == minute(6)
    # Or just when it is: the one that waits goes first.
    both = decide(TIMES, template(minute(7), overlap=buffer, buffered_for=minute(6)), minute(7))
    assert (both.fire, both.buffered_for) == ((minute(6),), minute(7))


@settings(deadline=None, max_examples=200)
@given(
    expression=st.sampled_from(["* * * * *", "*/7 * * * *", "every 90s", "0 * * * *"]),
    overlap=st.sampled_from(list(Overlap)),
    catchup=st.integers(0, 30),
    pauses=st.lists(st.integers(0, 90 * MINUTE), min_size=1, max_size=12),
    lives=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_each_due_instant_fires_once_is_on_record_or_waits(
    expression: str, overlap: Overlap, catchup: int, pauses: list[int], lives: list[bool]
) -> None:
    times = parse_times(expression)
    now = 1_700_000_000 * SECOND
    begun, state = now, template(times.after(now), fired_until=now, catchup=catchup, overlap=overlap)
    fired: list[Instant] = []
    skipped = 0
    for pause, live in zip(pauses, lives, strict=False):
        now += pause
        firing = decide(times, template_with(state, live), now)
        fired += firing.fire
        skipped += sum(skip.count for skip in firing.skipped)
        state = Template(
            schedule_id="s",
            next_fire_at=firing.next_fire_at,
            fired_until=firing.fired_until,
            kept_until=firing.kept_until,
            max_catchup=catchup,
            overlap=overlap,
            jitter=0,
            buffered_for=firing.buffered_for,
            live=False,
        )
        due = 0
        at = begun
        while (at := times.after(at) or 0) <= now:
            due += 1
        later = 0
        while state.next_fire_at is not None and (at := times.after(firing.fired_until + later) or 0) <= now:
            later = at - firing.fired_until
            due -= 1
        assert len(fired) == len(set(fired))
        assert len(fired) + skipped + (state.buffered_for is not None) == due


def template_with(state: Template, live: bool) -> Template:
    return template(
        state.next_fire_at,
        fired_until=state.fired_until,
        kept_until=state.kept_until,
        catchup=state.max_catchup,
        overlap=state.overlap,
        buffered_for=state.buffered_for,
        live=live,
    )


def test_jitter_is_the_same_everywhere_and_within_bounds() -> None:
    delays = [delay_of("s", minute(n), 30 * SECOND) for n in range(500)]
    assert delays == [delay_of("s", minute(n), 30 * SECOND) for n in range(500)]
    assert 0 <= min(delays) < SECOND
    assert 29 * SECOND < max(delays) <= 30 * SECOND
    assert delay_of("s", minute(1), 0) == 0
    assert delay_of("s", minute(1), 1) in (0, 1)


def test_the_id_of_a_firing_tells_its_instant() -> None:
    assert firing_id("01", 1_700_000_000 * SECOND) == "01:2023-11-14T22:13:20Z"


def test_a_backfill_has_its_beginning_and_not_its_end() -> None:
    assert list(backfilled(TIMES, minute(3), minute(5))) == [minute(3), minute(4)]
    assert list(backfilled(TIMES, minute(3.5), minute(3.6))) == []


@pytest.mark.parametrize(("since", "until"), [(minute(5), minute(5)), (minute(5), minute(4)), (0, minute(9000))])
def test_a_backfill_without_end_or_backwards_is_refused(since: Instant, until: Instant) -> None:
    with pytest.raises(InvalidRequest, match="backfill"):
        list(backfilled(TIMES, since, until))


def test_a_backfill_of_as_many_as_are_allowed_is() -> None:
    assert len(list(backfilled(TIMES, 0, minute(MOST_BACKFILLED)))) == MOST_BACKFILLED


@pytest.mark.parametrize("value", [-1, 10_001, True, "3", 1.5, None])
def test_catch_up_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="max_catchup must be a whole number from 0 to 10,000"):
        check_catchup(value)


def test_other_wrong_values_are_refused() -> None:
    assert check_overlap("skip") is Overlap.SKIP
    with pytest.raises(InvalidRequest, match="overlap must be one of allow, skip, cancel_previous, buffer"):
        check_overlap("sometimes")
    with pytest.raises(InvalidRequest, match="jitter"):
        check_jitter(25 * 3600 * SECOND)

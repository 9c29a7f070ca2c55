"""`app.schedules` without an engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from kagzi import InvalidRequest, Kagzi


def test_preview_needs_no_engine_and_answers_in_the_zone() -> None:
    app = Kagzi("postgresql://nobody@nowhere.invalid/none")
    start = datetime(2026, 3, 7, 12, tzinfo=UTC)
    found = app.schedules.preview("30 2 * * *", tz="America/New_York", count=2, after=start)
    assert [at.isoformat() for at in found] == ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"]
    assert found[0].tzinfo == ZoneInfo("America/New_York")


def test_preview_begins_now() -> None:
    (at,) = Kagzi("memory://").schedules.preview("every 1h", count=1)
    assert timedelta(0) < at - datetime.now(UTC) <= timedelta(hours=1)


def test_preview_refuses_what_it_cannot_show() -> None:
    schedules = Kagzi("memory://").schedules
    with pytest.raises(InvalidRequest, match="cron: Bad hour '25'"):
        schedules.preview("0 25 * * *")
    with pytest.raises(InvalidRequest, match="count"):
        schedules.preview("@daily", count=101)
    with pytest.raises(InvalidRequest, match="after must be a datetime with a time zone"):
        schedules.preview("@daily", after=datetime(2026, 1, 1))
    with pytest.raises(
        InvalidRequest, match=r"after must be a datetime with a time zone, for example .*, not '2026-01-01'"
    ):
        schedules.preview("@daily", after="2026-01-01")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean tz"):
        schedules.preview("@daily", tzz="UTC")  # type: ignore[call-arg]

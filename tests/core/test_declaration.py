"""Whose word counts about a schedule that code declares."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.core.declaration import Standing, Verdict, judge, warning

STANDING = {"hash": "one", "declared_by": "other", "declarer_live": True, "changed_by_hand": False}


@pytest.mark.parametrize(
    ("standing", "hash", "starting", "verdict"),
    [
        ({}, "one", True, Verdict.CONFIRMED),
        ({}, "one", False, Verdict.SAME),
        ({"declarer_live": False}, "one", False, Verdict.CONFIRMED),
        ({"declared_by": "me"}, "one", False, Verdict.SAME),
        ({}, "two", True, Verdict.TAKEN_OVER),
        ({}, "two", False, Verdict.OTHERS),
        ({"declarer_live": False}, "two", False, Verdict.TAKEN_OVER),
        ({"declared_by": None, "declarer_live": False, "hash": ""}, "two", False, Verdict.TAKEN_OVER),
        ({"changed_by_hand": True, "declarer_live": False}, "two", True, Verdict.CHANGED_BY_HAND),
        ({"changed_by_hand": True}, "one", True, Verdict.CHANGED_BY_HAND),
        ({"hash": None, "declared_by": None}, "two", True, Verdict.MADE_BY_HAND),
    ],
)
def test_whose_word_counts(standing: dict[str, Any], hash: str, starting: bool, verdict: Verdict) -> None:
    assert judge(Standing(**STANDING | standing), hash, "me", starting=starting) is verdict
    told = warning(verdict, "nightly")
    assert (told is not None) == (verdict in (Verdict.CHANGED_BY_HAND, Verdict.MADE_BY_HAND))
    assert told is None or "kagzi schedules reset nightly" in told

"""`kagzi schedules`, as it is typed."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_preview_shows_local_time_and_utc_and_what_daylight_saving_moves(shell: Shell) -> None:
    done = shell("schedules", "preview", "30 2 * * *", "--tz", "Europe/Berlin", "--after", "2026-03-27", "--count", "3")
    assert done.code == 0, done
    first, _, third = (line.split("\t") for line in done.out.splitlines())
    assert first == ["Fri 2026-03-27 02:30:00 +0100 CET", "2026-03-27T01:30:00.000Z", ""]
    assert third == [
        "Sun 2026-03-29 03:00:00 +0200 CEST",
        "2026-03-29T01:00:00.000Z",
        "moved: the time it names does not exist on this day",
    ]


def test_preview_as_json(shell: Shell) -> None:
    done = shell("schedules", "preview", "every 15m", "--after", "2026-03-27T12:01+00:00", "--count", "2", "--json")
    assert [firing["at"] for firing in done.json["firings"]] == ["2026-03-27T12:15:00.000Z", "2026-03-27T12:30:00.000Z"]


def test_preview_says_what_is_wrong(shell: Shell) -> None:
    for arguments, told in (
        (["61 * * * *"], "Bad minute '61' in '61 * * * *'"),
        (["@daily", "--tz", "Europe/Berlim"], "did you mean 'Europe/Berlin'?"),
        (["@daily", "--after", "tomorrow"], "is no moment"),
        (["@daily", "--count", "101"], "1<=x<=100"),
    ):
        done = shell("schedules", "preview", *arguments)
        assert done.code == 2, done
        assert told in done.err
        assert done.out == ""

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


def test_a_schedule_from_beginning_to_end(shell: Shell) -> None:
    shell("migrate")
    made = shell(
        "schedules", "create", "nightly", "checkout", "0 2 * * *", "--tz", "Europe/Berlin", "--input", '["42", 1]'
    )
    assert made.code == 0, made
    schedule_id = made.out.strip()
    assert "schedule nightly fires next at" in made.err
    taken = shell("schedules", "create", "nightly", "checkout", "@daily")
    assert taken.code == 5, taken
    for wrong, told in (
        (("create", "other", "checkout", "0 2 * *"), "the expression: '0 2 * *' has 4 fields"),
        (("update", "nightly", "--cron", "@nightly"), "--cron: '@nightly' is not known"),
    ):
        refused = shell("schedules", *wrong)
        assert (refused.code, told in refused.err) == (2, True), refused

    (listed,) = shell("schedules", "list", "--json").json["schedules"]
    assert (listed["schedule_id"], listed["cron"], listed["input"]) == (schedule_id, "0 2 * * *", ["42", 1])
    assert "nightly" in shell("schedules", "list").out
    changed = shell("schedules", "update", "nightly", "--cron", "every 15m", "--overlap", "skip", "--json").json
    assert (changed["cron"], changed["overlap"], changed["tz"]) == ("every 15m", "skip", "Europe/Berlin")

    assert "paused" in shell("schedules", "pause", "nightly", "--reason", "holidays").err
    shown = shell("schedules", "show", "nightly", "--json").json
    assert (shown["enabled"], shown["pause_reason"], shown["skips"]) == (False, "holidays", [])
    assert "holidays" in shell("schedules", "show", "nightly").out
    run_id = shell("schedules", "trigger", "nightly").out.strip()
    assert shell("schedules", "resume", "nightly").code == 0
    backfill = ("schedules", "backfill", "nightly", "--since", "2026-01-01", "--until", "2026-01-01T01:00")
    assert shell(*backfill, "--json").json == {"started": 4, "existing": 0}
    assert "4 firings had become runs before" in shell(*backfill).err
    runs = shell("schedules", "runs", "nightly", "--json").json["runs"]
    assert len(runs) == 5
    assert runs[-1]["run_id"] == run_id

    assert shell("schedules", "delete", "nightly").code == 0
    assert shell("schedules", "show", "nightly").code == 3
    assert len(shell("schedules", "runs", schedule_id, "--json").json["runs"]) == 5
    actions = [entry["action"] for entry in shell("audit", "--json").json["entries"]]
    assert actions[0] == "schedules delete"
    assert {"schedules create", "schedules update", "schedules pause", "schedules trigger"} <= set(actions)

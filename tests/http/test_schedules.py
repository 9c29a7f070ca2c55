"""Schedules over HTTP."""

from __future__ import annotations

from tests.http.support import Client

ROUTE = "/api/v1/schedules"


async def test_a_schedule_from_beginning_to_end(client: Client) -> None:
    body = {"workflow": "report", "name": "nightly", "cron": "0 2 * * *", "tz": "Europe/Berlin", "input": ["logs"]}
    made = await client.post(ROUTE, body, status=201)
    assert (made["name"], made["queue"], made["overlap"], made["catchup"]) == ("nightly", "default", "allow", 100)
    status, problem = await client.problem("POST", ROUTE, json=body)
    assert status == 409
    assert "there is a schedule named 'nightly' already" in problem["detail"]

    (listed,) = (await client.get(ROUTE))["schedules"]
    assert listed == made
    changed = await client.post(f"{ROUTE}/nightly", {"cron": "every 15m", "jitter": "30s", "overlap": "skip"})
    assert (changed["cron"], changed["jitter"], changed["overlap"], changed["tz"]) == (
        "every 15m",
        30,
        "skip",
        "Europe/Berlin",
    )
    paused = await client.post(f"{ROUTE}/nightly/pause", {"reason": "holidays"})
    assert (paused["enabled"], paused["next_fire_at"], paused["pause_reason"]) == (False, None, "holidays")
    run = await client.post(f"{ROUTE}/nightly/trigger", {}, status=201)
    assert (await client.post(f"{ROUTE}/nightly/resume", {}))["enabled"]
    span = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T01:00:00Z"}
    assert await client.post(f"{ROUTE}/nightly/backfill", span) == {"started": 4, "existing": 0}
    runs = (await client.get(f"{ROUTE}/nightly/runs"))["runs"]
    assert len(runs) == 5
    assert runs[-1]["run_id"] == run["run_id"]
    shown = await client.get(f"{ROUTE}/{made['schedule_id']}")
    assert (shown["total_runs"], shown["skips"]) == (5, [])

    assert await client.post(f"{ROUTE}/nightly/delete", {}) == {"deleted": True}
    status, _ = await client.problem("GET", f"{ROUTE}/nightly")
    assert status == 404


async def test_preview(client: Client) -> None:
    preview = await client.get(
        "/api/v1/schedule-preview", cron="30 2 * * *", tz="Europe/Berlin", after="2026-03-28T12:00:00Z", count="1"
    )
    (firing,) = preview["firings"]
    assert (firing["at"], firing["local"]) == ("2026-03-29T01:00:00.000Z", "2026-03-29T03:00:00+02:00")
    assert "moved" in firing["note"]


async def test_bad_input_is_told_with_its_field(client: Client) -> None:
    for body, told in (
        ({"workflow": "w", "cron": "61 * * * *"}, "cron: Bad minute '61'"),
        ({"workflow": "w", "cron": "@daily", "tz": "Mars/Olympus"}, "time zone"),
        ({"workflow": "w", "cron": "@daily", "catchup": 10_001}, "catchup: it takes a whole number from 0 to 10,000"),
        ({"workflow": "w", "cron": "@daily", "catchup": "all"}, "catchup: it takes a whole number from 0 to 10,000"),
        ({"workflow": "w", "cron": "@daily", "overlap": "never"}, "overlap"),
        ({"workflow": "w"}, "cron"),
    ):
        status, problem = await client.problem("POST", ROUTE, json=body)
        assert status == 400
        assert told in problem["detail"], problem
    assert (await client.get(ROUTE))["schedules"] == []


async def test_the_field_of_a_wrong_time_has_the_name_it_was_sent_by(client: Client) -> None:
    await client.post(ROUTE, {"workflow": "w", "name": "nightly", "cron": "@daily"}, status=201)
    for field, value in (("cron", "@nightly"), ("tz", "Mars/Olympus")):
        body = {"workflow": "w", "cron": "@daily", field: value}
        assert (await client.problem("POST", ROUTE, json=body))[1]["field"] == field
        assert (await client.problem("POST", f"{ROUTE}/nightly", json={field: value}))[1]["field"] == field
        query = "&".join(f"{name}={body[name]}" for name in ("cron", "tz") if name in body)
        assert (await client.problem("GET", f"/api/v1/schedule-preview?{query}"))[1]["field"] == field

"""Runs over HTTP, from start to end, on both databases."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi
from kagzi.api.operations import Chunk, CompleteRun, FailRun
from kagzi.cli import output
from kagzi.core.failure import Failure
from kagzi.engine.local import LocalEngine
from kagzi.http import runs
from kagzi.store import searching
from tests.engine.test_events import Worker
from tests.http.support import Client

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def make_app(url: str) -> Kagzi:
    app = Kagzi(url)

    @app.step(retry=kagzi.Retry.none)
    async def weigh(cents: int) -> int:
        if cents < 0:
            raise ValueError("less than nothing")
        return cents * 2

    @app.workflow(name="weigh_twice")
    async def weigh_twice(cents: int) -> int:
        return await weigh(await weigh(cents))

    @app.workflow(name="tells")
    async def tells() -> None:
        kagzi.set_value("stage", {"at": [1, "ü"]})
        kagzi.progress(0.25, "a quarter")

    @app.workflow(name="sleepy")
    async def sleepy() -> None:
        await asyncio.sleep(3600)

    return app


async def test_a_run_from_start_to_end(client: Client, url: str) -> None:
    app = make_app(url)
    async with app, app.worker():
        started = await client.post("/api/v1/runs", {"workflow": "weigh_twice", "input": [21]}, status=201)
        assert not started["already_exists"]
        run = await client.get(f"/api/v1/runs/{started['run_id']}", wait="20s")
        assert (run["status"], run["input"], run["output"], run["error"]) == ("COMPLETED", [21], 84, None)
        assert run["created_at"] <= run["started_at"] <= run["finished_at"]
        steps = (await client.get(f"/api/v1/runs/{started['run_id']}/steps"))["steps"]
        assert [(step["step_id"], step["status"], step["output"]) for step in steps] == [
            ("weigh", "COMPLETED", None),
            ("weigh#2", "COMPLETED", None),
        ]
        steps = (await client.get(f"/api/v1/runs/{started['run_id']}/steps", payloads="true"))["steps"]
        assert [step["output"] for step in steps] == [42, 84]
        failed = await client.post("/api/v1/runs", {"workflow": "weigh_twice", "input": {"cents": -1}}, status=201)
        run = await client.get(f"/api/v1/runs/{failed['run_id']}", wait="20s")
        assert run["status"] == "FAILED"
        assert run["error"]["type"] == "builtins.ValueError"
        assert run["error"]["message"] == "less than nothing"
        for verb in ("retry", "rerun"):
            again = await client.post(f"/api/v1/runs/{failed['run_id']}/{verb}", status=201)
            assert again["run_id"] != failed["run_id"]
            run = await client.get(f"/api/v1/runs/{again['run_id']}", wait="20s")
            assert (run["status"], run["input"]) == ("FAILED", {"cents": -1})


async def test_a_run_is_found_by_the_id_of_its_caller_wherever_its_run_id_is_taken(client: Client, url: str) -> None:
    app = make_app(url)
    ours = "/api/v1/runs/order%2F42"
    async with app, app.worker():
        body = {"workflow": "weigh_twice", "input": [-1], "id": "order/42"}
        run_id = (await client.post("/api/v1/runs", body, status=201))["run_id"]
        assert (await client.get(ours, wait="20s"))["run_id"] == run_id
        assert [step["name"] for step in (await client.get(f"{ours}/steps"))["steps"]] == ["weigh"]
        for verb in ("retry", "rerun"):
            again = await client.post(f"{ours}/{verb}", {"keep_id": False}, status=201)
            assert again["run_id"] != run_id
        for verb in ("cancel", "terminate"):
            ended = await client.post(f"{ours}/{verb}")
            assert (ended["run_id"], ended["effective"]) == (run_id, False)
        # The id goes to the run that takes its place, which has failed in turn when it is started again.
        again = await client.post(f"{ours}/retry", status=201)
        new = await client.get(ours, wait="20s")
        old = await client.get(f"/api/v1/runs/{run_id}")
        assert (new["run_id"], new["origin"], new["id"]) == (again["run_id"], run_id, "order/42")
        assert (old["superseded_by"], old["former_id"], old["id"]) == (new["run_id"], "order/42", None)
        third = await client.post("/api/v1/runs", body | {"on_conflict": "restart_failed"}, status=201)
        assert (third["already_exists"], (await client.get(ours))["origin"]) == (False, new["run_id"])
        status, problem = await client.problem(
            "POST", "/api/v1/runs", json={"workflow": "weigh_twice", "on_conflict": "restart_failed"}
        )
        assert (status, problem["field"]) == (400, "on_conflict")
    status, problem = await client.problem("GET", "/api/v1/runs/order-43")
    assert (status, problem["detail"]) == (404, "there is no run with the id 'order-43' in namespace default")


async def test_what_a_run_says_about_itself_is_read_by_anybody_who_may_look(client: Client, url: str) -> None:
    app = make_app(url)
    async with app, app.worker():
        body = {"workflow": "tells", "input": [], "id": "talker"}
        run_id = (await client.post("/api/v1/runs", body, status=201))["run_id"]
        assert (await client.get("/api/v1/runs/talker", wait="20s"))["status"] == "COMPLETED"
    for named in (run_id, "talker"):
        said = await client.get(f"/api/v1/runs/{named}/values")
        assert [(each["name"], each["value"]) for each in said["values"]] == [("stage", {"at": [1, "ü"]})]
        assert (said["progress"]["fraction"], said["progress"]["message"]) == (0.25, "a quarter")
    silent = (await client.post("/api/v1/runs", {"workflow": "w", "input": []}, status=201))["run_id"]
    assert await client.get(f"/api/v1/runs/{silent}/values") == {"values": [], "progress": None}
    assert (await client.problem("GET", f"/api/v1/runs/{UNKNOWN}/values"))[0] == 404


async def test_a_signal_that_cannot_be_names_its_field_and_is_not_kept(client: Client) -> None:
    run_id = (await client.post("/api/v1/runs", {"workflow": "w", "id": "order"}, status=201))["run_id"]
    for body, field in (
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"name": "a\0"}, "name"),
        ({"name": "x", "key": 5}, "key"),
        ({"name": "x", "key": "~mine"}, "key"),
        ({"name": "x", "on_parent_end": "cancle"}, "on_parent_end"),
    ):
        status, problem = await client.problem("POST", f"/api/v1/runs/{run_id}/signals", json=body)
        assert (status, problem["field"]) == (400, field), body
    body = {"workflow": "w", "id": "order", "signal": {"name": "x", "key": "~mine"}}
    assert (await client.problem("POST", "/api/v1/runs", json=body))[0] == 400
    for address in (f"/api/v1/runs/{run_id}/signals?namespace=elsewhere", f"/api/v1/runs/{UNKNOWN}/signals"):
        assert (await client.problem("POST", address, json={"name": "x"}))[0] == 404
    assert (await client.get(f"/api/v1/runs/{run_id}/signals"))["signals"] == []


async def test_the_documents_are_those_of_the_command_line(client: Client, engine: LocalEngine) -> None:
    started = await client.post("/api/v1/runs", {"workflow": "w", "input": {"a": [1.50, None, "ü"]}}, status=201)
    run = await engine.workflows.get("default", started["run_id"])
    document = await client.get(f"/api/v1/runs/{run.run_id}")
    assert document["why"].startswith("Waiting for a worker: no worker that is online serves queue default")
    assert output.run_details(run, (), (), document["why"]) == document | {
        "steps": [],
        "signals": [],
        "values": {},
        "progress": None,
        "children": [],
    }
    listed = (await client.get("/api/v1/runs"))["runs"]
    assert listed == [output.run_summary(run)]


@pytest.mark.parametrize(
    "input",
    [
        "null",
        "[]",
        '{"x":12345678901234567890.123456789}',
        '[1e3,"\\u0000"]',
        '"ü"',
        "[[[[[1]]]]]",
        "340282366920938463463",
    ],
)
async def test_payloads_are_kept_to_the_last_digit(quick: Client, memory: LocalEngine, input: str) -> None:
    body = f'{{"workflow": "w", "input": {input}}}'.encode()
    response = await quick.send("POST", "/api/v1/runs", content=body, headers={"content-type": "application/json"})
    run_id = response.json()["run_id"]
    assert (await memory.workflows.get("default", run_id)).input == input.encode()
    answer = await quick.send("GET", f"/api/v1/runs/{run_id}")
    assert f'"input":{input},' in answer.text


async def test_payloads_that_are_not_json(quick: Client, memory: LocalEngine) -> None:
    body = {"workflow": "w", "input_base64": "AP/+"}
    started = await quick.post("/api/v1/runs", body, status=201)
    assert (await memory.workflows.get("default", started["run_id"])).input == b"\x00\xff\xfe"
    assert (await quick.get(f"/api/v1/runs/{started['run_id']}"))["input"] == {"base64": "AP/+"}
    worker = Worker(memory)
    shop = await quick.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201)
    claim = await worker.claim()
    done = CompleteRun(output=b"\xff")
    await memory.workers.commit(Chunk(namespace="default", run_id=claim.run_id, token=claim.token, operations=(done,)))
    assert (await quick.get(f"/api/v1/runs/{shop['run_id']}"))["output"] == {"base64": "/w=="}


async def test_a_failed_run_and_what_handles_it_name_each_other(quick: Client, memory: LocalEngine) -> None:
    start = {"workflow": "ship", "queue": "shop", "on_failure": "notify_ops"}
    run_id = (await quick.post("/api/v1/runs", start, status=201))["run_id"]
    claim = await Worker(memory).claim()
    failed = FailRun(error=Failure.of(ValueError, "sunk").encode())
    await memory.workers.commit(Chunk(namespace="default", run_id=run_id, token=claim.token, operations=(failed,)))
    (handler,) = (await quick.get(f"/api/v1/runs/{run_id}"))["handled_by"]
    assert (handler["workflow"], handler["status"]) == ("notify_ops", "PENDING")
    shown = await quick.get(f"/api/v1/runs/{handler['run_id']}")
    assert (shown["handles_run_id"], shown["handled_by"]) == (run_id, [])


async def test_starting_again_finds_the_first(client: Client) -> None:
    body = {"workflow": "w", "input": [1], "id": "order-1"}
    first = await client.post("/api/v1/runs", body, status=201)
    second = await client.post("/api/v1/runs", body)
    assert second == first | {"already_exists": True}
    status, problem = await client.problem("POST", "/api/v1/runs", json=body | {"input": [2]})
    assert (status, problem["code"]) == (409, "CONFLICT")
    status, problem = await client.problem("POST", "/api/v1/runs", json=body | {"on_conflict": "fail"})
    assert (status, problem["code"]) == (409, "CONFLICT")
    assert first["run_id"] in problem["detail"]
    # The header makes the same promise.
    for key in ("abc", '"abc"'):
        again = await client.send("POST", "/api/v1/runs", json={"workflow": "w"}, headers={"Idempotency-Key": key})
        assert again.status_code == (201 if key == "abc" else 200)
        assert again.headers["location"] == f"/api/v1/runs/{again.json()['run_id']}"
    found = (await client.get("/api/v1/runs", id="abc"))["runs"]
    assert [run["id"] for run in found] == ["abc"]
    assert (await client.get("/api/v1/runs", id="nobody"))["runs"] == []
    # An id in the body decides.
    both = await client.send("POST", "/api/v1/runs", json=body, headers={"Idempotency-Key": "other"})
    assert both.json()["run_id"] == first["run_id"]
    # With a run id made by the caller, what is sent twice gets the same answer twice.
    mine = {"workflow": "w", "run_id": "01900000-0000-7000-8000-00000000000a"}
    for _ in range(2):
        assert (await client.post("/api/v1/runs", mine, status=201))["run_id"] == mine["run_id"]
    # Another start cannot have it.
    for other in ({"workflow": "v"}, {"id": "mine"}, {"queue": "shop"}, {"input": [2]}):
        status, problem = await client.problem("POST", "/api/v1/runs", json=mine | other)
        assert (status, problem["code"]) == (409, "CONFLICT")
        assert mine["run_id"] in problem["detail"]
    assert len((await client.get("/api/v1/runs"))["runs"]) == 3


async def test_everything_a_start_can_say(client: Client, engine: LocalEngine) -> None:
    body = {
        "workflow": "w",
        "queue": "shop",
        "version": "7",
        "priority": 3,
        "delay": "1h",
        "timeout": 7200.5,
        "deadline": "2199-01-31T12:00:00+02:00",
        "retry": {"attempts": 2, "first": "250ms", "factor": 1.0, "cap": "1m", "give_up_on": ["builtins.KeyError"]},
        "id": "x",
        "tags": {"batch": "7"},
    }
    started = await client.post("/api/v1/runs", body, status=201)
    run = await client.get(f"/api/v1/runs/{started['run_id']}")
    assert (run["queue"], run["version"], run["priority"], run["id"]) == ("shop", "7", 3, "x")
    assert run["tags"] == {"batch": "7"}
    created, available, deadline = (kagzi_instant(run[name]) for name in ("created_at", "available_at", "deadline_at"))
    assert available - created == pytest.approx(3600, abs=0.01)
    assert deadline - created == pytest.approx(7200.5, abs=0.01)  # the earlier of both
    at = await client.post("/api/v1/runs", {"workflow": "w", "start_at": "2199-01-01T00:00:00Z"}, status=201)
    assert (await client.get(f"/api/v1/runs/{at['run_id']}"))["available_at"] == "2199-01-01T00:00:00.000Z"
    status, problem = await client.problem("POST", "/api/v1/runs", json=body | {"start_at": "2199-01-01T00:00:00Z"})
    assert (status, problem["code"]) == (400, "INVALID_ARGUMENT")
    assert "delay and start_at are both given" in problem["detail"]
    status, problem = await client.problem("POST", "/api/v1/runs", json={"workflow": "w", "tags": {"a=b": "7"}})
    assert (status, problem["field"]) == (400, "tags")


async def test_debounced_starts_become_one_run(client: Client) -> None:
    body = {"workflow": "w", "input": [1], "debounce": {"wait": "1h", "most": "2h", "key": "d-7"}}
    first = await client.post("/api/v1/runs", body, status=201)
    second = await client.post("/api/v1/runs", body | {"input": [2]})
    assert second == first | {"already_exists": True}
    run = await client.get(f"/api/v1/runs/{first['run_id']}")
    assert run["input"] == [2]
    told = run["debounced"]
    assert (told["key"], told["starts"], told["first_at"]) == ("d-7", 2, run["created_at"])
    assert told["last_at"] >= told["first_at"]
    assert told["last_start_id"] not in (None, run["run_id"])
    assert kagzi_instant(run["available_at"]) - kagzi_instant(run["created_at"]) == pytest.approx(3600, abs=60)
    for field, wrong in (
        ("debounce", {"id": "x"}),
        ("debounce", {"delay": "1s"}),
        ("debounce.wait", {"debounce": {"wait": 0}}),
        ("debounce.most", {"debounce": {"wait": "1h", "most": "1m"}}),
    ):
        status, problem = await client.problem("POST", "/api/v1/runs", json=body | wrong)
        assert (status, problem["field"]) == (400, field), problem
    assert len((await client.get("/api/v1/runs"))["runs"]) == 1


def kagzi_instant(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


async def test_pages_go_both_ways(client: Client) -> None:
    ids = [(await client.post("/api/v1/runs", {"workflow": f"w{n % 2}"}, status=201))["run_id"] for n in range(7)]
    newest_first = ids[::-1]
    pages: list[Any] = [await client.get("/api/v1/runs", limit=3)]
    while pages[-1]["next"]:
        pages.append(await client.get("/api/v1/runs", limit=3, page=pages[-1]["next"]))
    assert [[run["run_id"] for run in page["runs"]] for page in pages] == [
        newest_first[:3],
        newest_first[3:6],
        newest_first[6:],
    ]
    back = await client.get("/api/v1/runs", limit=3, page=pages[2]["prev"])
    assert [run["run_id"] for run in back["runs"]] == newest_first[3:6]
    assert pages[0]["prev"] is None
    some = await client.get("/api/v1/runs", workflow="w1", status="PENDING", queue="default")
    assert [run["run_id"] for run in some["runs"]] == newest_first[1::2]
    # A token belongs to its filter.
    status, problem = await client.problem(
        "GET", "/api/v1/runs", params={"limit": 3, "page": pages[0]["next"], "workflow": "w1"}
    )
    assert (status, problem["code"]) == (400, "INVALID_ARGUMENT")
    assert (await client.get("/api/v1/runs", created_after="2199-01-01T00:00:00Z"))["runs"] == []
    assert len((await client.get("/api/v1/runs", created_before="2199-01-01T00:00:00Z"))["runs"]) == 7


async def test_a_search_says_how_far_it_came(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "BITES", (1,))
    for workflow in ("rare", "common"):
        await client.post("/api/v1/runs", {"workflow": workflow}, status=201)
    page = await client.get("/api/v1/runs", workflow="rare")
    assert page["runs"] == []
    assert page["searched_until"] is not None
    page = await client.get("/api/v1/runs", workflow="rare", page=page["next"])
    assert [run["workflow"] for run in page["runs"]] == ["rare"]
    assert (await client.get("/api/v1/runs"))["searched_until"] is None


async def test_pages_of_steps(client: Client, url: str) -> None:
    app = Kagzi(url)

    @app.step
    async def one(number: int) -> int:
        return number

    @app.workflow(name="many")
    async def many() -> None:
        for number in range(5):
            await one(number)

    async with app, app.worker():
        run_id = (await client.post("/api/v1/runs", {"workflow": "many"}, status=201))["run_id"]
        await client.get(f"/api/v1/runs/{run_id}", wait="20s")
    path = f"/api/v1/runs/{run_id}/steps"
    first = await client.get(path, limit=2)
    second = await client.get(path, limit=2, page=first["next"])
    third = await client.get(path, limit=2, page=second["next"])
    found = [[step["step_id"] for step in page["steps"]] for page in (first, second, third)]
    assert found == [["one", "one#2"], ["one#3", "one#4"], ["one#5"]]
    assert third["next"] is None
    assert await client.get(path, limit=2, page=third["prev"]) == second
    assert (await client.get(path, name="two"))["steps"] == []
    assert (await client.problem("GET", path, params={"name": "two", "page": first["next"]}))[0] == 400


async def test_ending_runs(client: Client, engine: LocalEngine) -> None:
    waiting = (await client.post("/api/v1/runs", {"workflow": "w"}, status=201))["run_id"]
    assert await client.post(f"/api/v1/runs/{waiting}/cancel", {"grace": "5s"}) == {
        "run_id": waiting,
        "effective": True,
        "status": "CANCELLED",
    }
    other = (await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201))["run_id"]
    worker = Worker(engine)
    claim = await worker.claim()
    assert claim.run_id == other
    status, problem = await client.problem("POST", f"/api/v1/runs/{other}/retry", json={})
    assert (status, problem["code"]) == (409, "CONFLICT")
    ended = await client.post(f"/api/v1/runs/{other}/terminate", {"reason": "no more"})
    assert (ended["effective"], ended["status"]) == (True, "CANCELLED")
    run = await client.get(f"/api/v1/runs/{other}")
    assert "no more" in run["error"]["message"]
    done = (await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201))["run_id"]
    await worker.commit(await worker.claim(), CompleteRun(output=b"1"))
    later = (await client.post("/api/v1/runs", {"workflow": "ship", "delay": "1h"}, status=201))["run_id"]
    for woken in (True, False):
        assert await client.post(f"/api/v1/runs/{later}/wake") == {
            "run_id": later,
            "woken": woken,
            "status": "PENDING",
        }
    late = await client.post(f"/api/v1/runs/{done}/cancel")
    assert (late["effective"], late["status"]) == (False, "COMPLETED")
    mine = {"run_id": "01900000-0000-7000-8000-00000000000b"}
    for _ in range(2):
        assert (await client.post(f"/api/v1/runs/{done}/rerun", mine, status=201))["run_id"] == mine["run_id"]


async def test_runs_driven_by_workers_in_the_field_end_at_once(quick: Client, memory: LocalEngine) -> None:
    """They cannot be told about a cancellation; the same as over gRPC."""
    run_id = (await quick.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201))["run_id"]
    await Worker(memory).claim()
    assert (await quick.post(f"/api/v1/runs/{run_id}/cancel"))["status"] == "CANCELLED"


@pytest.mark.parametrize("verb", ["", "/steps", "/cancel", "/terminate", "/retry", "/rerun"])
async def test_what_is_not_there(quick: Client, verb: str) -> None:
    method, more = ("GET", {}) if verb in ("", "/steps") else ("POST", {"json": {}})
    for unknown in (UNKNOWN, "nonsense"):
        status, problem = await quick.problem(method, f"/api/v1/runs/{unknown}{verb}", **more)
        assert (status, problem["code"]) == (404, "NOT_FOUND")


async def test_waiting_takes_as_long_as_it_takes(quick: Client, memory: LocalEngine) -> None:
    run_id = (await quick.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201))["run_id"]
    assert (await quick.get(f"/api/v1/runs/{run_id}", wait="50ms"))["status"] == "PENDING"
    waiting = asyncio.create_task(quick.get(f"/api/v1/runs/{run_id}", wait="30s"))
    worker = Worker(memory)
    await worker.commit(await worker.claim(), CompleteRun(output=b"[1]"))
    async with asyncio.timeout(25):
        assert (await waiting)["output"] == [1]


async def test_nobody_waits_for_ever(quick: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LONGEST_WAIT_SECONDS", 0.1)
    run_id = (await quick.post("/api/v1/runs", {"workflow": "w"}, status=201))["run_id"]
    async with asyncio.timeout(10):
        assert (await quick.get(f"/api/v1/runs/{run_id}", wait="1h"))["status"] == "PENDING"


async def test_gzip(quick: Client, memory: LocalEngine) -> None:
    import gzip

    data = gzip.compress(json.dumps({"workflow": "w", "input": ["x" * 100_000]}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await quick.send("POST", "/api/v1/runs", content=data, headers=headers)
    assert response.status_code == 201
    assert len((await memory.workflows.get("default", response.json()["run_id"])).input) > 100_000


async def test_runs_are_found_by_tag_id_and_error(quick: Client, memory: LocalEngine) -> None:
    for number in range(3):
        body = {"workflow": "w", "id": f"order-{number}", "tags": {"batch": str(number % 2)}}
        await quick.post("/api/v1/runs", body, status=201)

    async def ids(**query: str) -> list[str]:
        return [run["id"] for run in (await quick.get("/api/v1/runs", **query))["runs"]]

    assert await ids(tag="batch=0") == ["order-2", "order-0"]
    assert await ids(tag="batch=0", id_prefix="order-2") == ["order-2"]
    assert await ids(error="CardDeclined") == []
    assert await ids(schedule="nightly") == []
    status, problem = await quick.problem("GET", "/api/v1/runs?tag=batch")
    assert (status, problem["field"]) == (400, "tag")


async def test_children_are_found_by_either_id_of_their_parent(client: Client, url: str) -> None:
    app = make_app(url)

    @app.workflow(name="leaf")
    async def leaf() -> None: ...

    @app.workflow(name="tree")
    async def tree() -> None:
        await leaf.run()

    async with app, app.worker():
        run = await tree.options(id="tree-1").start()
        await run.result(timeout=20)
        for parent in (run.id, "tree-1"):
            (child,) = (await client.get("/api/v1/runs", parent=parent))["runs"]
            assert (child["workflow"], child["parent_run_id"]) == ("leaf", run.id)
        for nobody in (UNKNOWN, "tree-2"):
            assert (await client.get("/api/v1/runs", parent=nobody))["runs"] == []


async def test_runs_are_forked_and_moved(client: Client, url: str) -> None:
    app = make_app(url)
    async with app, app.worker():
        body = {"workflow": "weigh_twice", "input": [7], "id": "scales"}
        run_id = (await client.post("/api/v1/runs", body, status=201))["run_id"]
        assert (await client.get("/api/v1/runs/scales", wait="20s"))["status"] == "COMPLETED"
        steps = (await client.get("/api/v1/runs/scales/steps"))["steps"]
        fork = await client.post("/api/v1/runs/scales/fork", {"from_step": steps[1]["step_id"]}, status=201)
        ended = await client.get(f"/api/v1/runs/{fork['run_id']}", wait="20s")
        assert (ended["status"], ended["origin"], ended["id"]) == ("COMPLETED", run_id, None)
        other = await client.post("/api/v1/runs/scales/fork", {"input": [8]}, status=201)
        assert (await client.get(f"/api/v1/runs/{other['run_id']}", wait="20s"))["input"] == [8]
        status, problem = await client.problem("POST", "/api/v1/runs/scales/fork", json={"from_step": "nobody"})
        assert (status, "weigh" in problem["detail"]) == (404, True)
    await client.post("/api/v1/runs", {"workflow": "weigh_twice", "input": [1], "version": "0"}, status=201)
    move = {"workflow": "weigh_twice", "from_version": "0", "to_version": "1"}
    assert await client.post("/api/v1/versions/move", move | {"dry_run": True}) == {"moved": 1, "after": None}
    assert await client.post("/api/v1/versions/move", move) == {"moved": 1, "after": None}
    for wrong in (move | {"to_version": "7"}, move | {"to_version": "0"}, move | {"after": "[1]"}):
        assert (await client.problem("POST", "/api/v1/versions/move", json=wrong))[0] == 400
    # Whatever else is given, that the versions are equal is about the versions.
    _, problem = await client.problem("POST", "/api/v1/versions/move", json=move | {"to_version": "0", "after": "[1]"})
    assert problem["field"] == "to_version"

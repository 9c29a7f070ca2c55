"""Workers, queues, namespaces, counts, probes and metrics."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest

from kagzi.api.operations import CompleteRun
from kagzi.connect import make_store
from kagzi.core import load as loads
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.core.worker import WorkerStatus
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.http import limits
from kagzi.http.app import address
from kagzi.store.postgres import overview as postgres_overview
from kagzi.store.sqlite import overview as sqlite_overview
from kagzi.version import __version__
from tests.engine.test_events import Worker
from tests.http.support import Client, serving

UNKNOWN = "01900000-0000-7000-8000-000000000000"


async def test_a_worker_that_is_not_heard_of_is_gone_although_nobody_has_marked_it(url: str) -> None:
    settings = EngineSettings(worker_stale=1)  # a microsecond, and no coordinator that would notice
    async with LocalEngine(make_store(url), settings=settings) as engine, serving(engine) as port:
        worker = Worker(engine)
        async with Client(port.url) as client:
            await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201)
            await worker.claim()
            (found,) = (await client.get("/api/v1/workers"))["workers"]
            assert (found["worker_id"], found["status"]) == (worker.worker_id, "OFFLINE")
            assert (await client.get("/api/v1/workers", status="ONLINE"))["workers"] == []
            assert (await client.get("/api/v1/stats"))["workers_by_status"] == {"OFFLINE": 1}
            status, _ = await client.problem("POST", f"/api/v1/workers/{worker.worker_id}/drain", json={})
            assert status == 409
            metrics = (await client.http.get("/metrics")).text
        (row,) = await engine.store.workers.rows("default")
        assert row.status is WorkerStatus.ONLINE
    assert 'kagzi_workers{namespace="default",status="online"} 0.0' in metrics
    assert 'kagzi_workers{namespace="default",status="offline"} 1.0' in metrics


async def test_workers_and_queues(client: Client, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201)
    await client.post("/api/v1/runs", {"workflow": "later", "queue": "quiet", "delay": "1h"}, status=201)
    worker = Worker(engine)
    claim = await worker.claim()
    (found,) = (await client.get("/api/v1/workers"))["workers"]
    assert (found["worker_id"], found["status"], found["active"]) == (worker.worker_id, "ONLINE", 1)
    assert (found["queues"], found["workflows"]) == (["shop"], [{"workflow": "ship", "version": None}])
    assert await client.get(f"/api/v1/workers/{worker.worker_id}") == found
    assert (await client.get("/api/v1/workers", queue="quiet"))["workers"] == []
    assert (await client.get("/api/v1/workers", status="DRAINING"))["workers"] == []

    quiet, shop = (await client.get("/api/v1/queues"))["queues"]
    assert (shop["queue"], shop["pending"], shop["running"], shop["ready"], shop["workers"]) == ("shop", 2, 1, 2, 1)
    assert shop["oldest_ready_seconds"] >= 0
    assert shop["oldest_ready_at"] is not None
    assert (quiet["queue"], quiet["pending"], quiet["ready"], quiet["workers"]) == ("quiet", 1, 0, 0)
    assert quiet["oldest_ready_at"] is None

    await worker.commit(claim, CompleteRun(output=b"1"))
    stats = await client.get("/api/v1/stats")
    assert stats["runs_by_status"] == {"PENDING": 3, "COMPLETED": 1}
    assert stats["runs_by_workflow"] == {"ship": 3, "later": 1}
    assert stats["workers_by_status"] == {"ONLINE": 1}
    workflows = (await client.get("/api/v1/workflows"))["workflows"]
    assert [(each["workflow"], each["runs"], each["live"], each["queues"]) for each in workflows] == [
        ("later", 1, 1, ["quiet"]),
        ("ship", 3, 2, ["shop"]),
    ]

    drained = await client.post(f"/api/v1/workers/{worker.worker_id}/drain")
    assert drained["status"] == "DRAINING"
    for module in (loads, sqlite_overview, postgres_overview):
        monkeypatch.setattr(module, "QUEUES_OF_NAMESPACE", 1)
    engine._opened.load._until = 0.0  # it would be read again in two seconds
    counted, unknown = (await client.get("/api/v1/queues"))["queues"]
    assert (counted["ready"] is None, unknown["ready"], unknown["oldest_ready_seconds"]) == (False, None, None)
    assert unknown["pending"] == shop["pending"]  # what else is known of it
    assert [queue["workers"] for queue in (await client.get("/api/v1/queues"))["queues"]] == [0, 0]
    assert (await client.post(f"/api/v1/workers/{worker.worker_id}/drain"))["status"] == "DRAINING"
    await engine.workers.deregister(worker.worker_id)
    status, problem = await client.problem("POST", f"/api/v1/workers/{worker.worker_id}/drain", json={})
    assert (status, problem["code"]) == (409, "CONFLICT")
    for method, path in (("GET", ""), ("POST", "/drain")):
        more = {} if method == "GET" else {"json": {}}
        assert (await client.problem(method, f"/api/v1/workers/{UNKNOWN}{path}", **more))[0] == 404
        assert (await client.problem(method, f"/api/v1/workers/nobody{path}", **more))[0] == 400


async def test_namespaces(client: Client) -> None:
    made = await client.post(
        "/api/v1/namespaces", {"namespace": "shop", "display_name": "Shop", "description": "sells"}, status=201
    )
    assert (made["namespace"], made["display_name"], made["enabled"]) == ("shop", "Shop", True)
    status, problem = await client.problem("POST", "/api/v1/namespaces", json={"namespace": "shop"})
    assert (status, problem["code"]) == (409, "CONFLICT")
    changed = await client.post("/api/v1/namespaces/shop", {"description": "sells more"})
    assert (changed["display_name"], changed["description"]) == ("Shop", "sells more")
    assert await client.get("/api/v1/namespaces/shop") == changed
    first = await client.get("/api/v1/namespaces", limit=1)
    rest = await client.get("/api/v1/namespaces", limit=1, page=first["next"])
    assert [each["namespace"] for each in first["namespaces"] + rest["namespaces"]] == ["default", "shop"]
    assert not (await client.post("/api/v1/namespaces/shop/disable"))["enabled"]
    status, problem = await client.problem("POST", "/api/v1/runs?namespace=shop", json={"workflow": "w"})
    assert (status, problem["code"]) == (409, "NAMESPACE_DISABLED")
    assert (await client.post("/api/v1/namespaces/shop/enable"))["enabled"]
    started = await client.post("/api/v1/runs?namespace=shop", {"workflow": "w"}, status=201)
    # What is in one namespace is not in another, by whatever name it is asked for.
    for namespace in ("default", "nowhere"):
        assert (await client.get("/api/v1/runs", namespace=namespace))["runs"] == []
        there = await client.problem("GET", f"/api/v1/runs/{started['run_id']}?namespace={namespace}")
        assert there[0] == 404
    assert (await client.problem("GET", "/api/v1/namespaces/nowhere"))[0] == 404


@pytest.mark.parametrize(
    "name", ["a b/c", "50%", "%2F", "a%2Fb", "..", ".", "a?b#c", "ü", "a//b", "shop/disable", "+", ";"]
)
async def test_whatever_a_namespace_is_called_it_can_be_reached(quick: Client, name: str) -> None:
    await quick.post("/api/v1/namespaces", {"namespace": name}, status=201)
    address = f"/api/v1/namespaces/{quote(name, safe='').replace('.', '%2E')}"
    assert (await quick.get(address))["namespace"] == name
    assert (await quick.post(address, {"description": "odd"}))["description"] == "odd"
    assert not (await quick.post(f"{address}/disable"))["enabled"]
    listed = {each["namespace"]: each["enabled"] for each in (await quick.get("/api/v1/namespaces"))["namespaces"]}
    assert listed == {"default": True, name: False}


async def test_a_name_is_decoded_once_and_never_becomes_a_way(quick: Client) -> None:
    for path in (
        "/api/v1/namespaces/shop%252Fdisable",  # the name shop%2Fdisable
        "/api/v1/namespaces/default/..%2f..%2fruns",
        "/api/v1/namespaces/default%2Fdisable",
        "/api/v1/namespaces/%2e%2e/disable",
        "/api/v1%2Fruns",
        "/api/v1/runs%2F",
        "//api/v1/runs",
    ):
        url = quick.http.base_url.copy_with(raw_path=path.encode())
        for method in ("GET", "POST"):
            response = await quick.http.request(method, url, json={})
            assert response.url.raw_path == path.encode()
            assert response.status_code in (404, 405), (method, path, response.text)
    assert address(b"/api/v1/x/../runs") == "/api/v1/x/../runs"  # which httpx would not send
    assert (await quick.get("/api/v1/namespaces/default"))["enabled"]
    status, problem = await quick.problem("GET", "/api/v1/namespaces/%ff")
    assert (status, problem["field"]) == (400, "namespace")
    # Another spelling of the same address (RFC 3986, 6.2.2.2).
    other = await quick.http.get("/%61pi/v1/%6eamespaces/d%65fault")
    assert other.json() == await quick.get("/api/v1/namespaces/default")


async def test_probes(quick: Client, memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await quick.get("/livez") == {"status": "alive"}
    ready = await quick.get("/readyz")
    assert ready["ready"]
    assert [part["name"] for part in ready["components"]] == ["database", "migrations", "coordinator", "workers"]
    health = await quick.get("/api/v1/health")
    assert health["status"] == "healthy"
    assert await quick.get("/api/v1/server") == {"name": "kagzi", "version": __version__, "api": "v1"}
    head = await quick.send("HEAD", "/livez")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("database", HealthStatus.UNHEALTHY, 503),
        ("migrations", HealthStatus.UNHEALTHY, 503),
        ("database", HealthStatus.DEGRADED, 200),
        ("coordinator", HealthStatus.UNHEALTHY, 200),
        ("workers", HealthStatus.UNHEALTHY, 200),
    ],
)
async def test_ready_is_who_can_serve(
    memory: LocalEngine, monkeypatch: pytest.MonkeyPatch, name: str, status: HealthStatus, code: int
) -> None:
    async def health() -> Health:
        return Health((ComponentHealth(name, status, "postgresql://user@db.internal:5432/x refused"),))

    monkeypatch.setattr(memory, "health", health)
    async with serving(memory) as port, Client(port.url) as client:
        response = await client.send("GET", "/readyz")
        assert response.status_code == code
        assert response.json()["status"] == status
        if (name, status) == ("database", HealthStatus.UNHEALTHY):
            # Whoever asks from outside need not know where the database is.
            assert "internal" not in response.text
            assert "internal" not in (await client.send("GET", "/api/v1/health")).text


async def test_not_ready_while_the_server_is_not(memory: LocalEngine) -> None:
    async with serving(memory, ready=lambda: False) as port, Client(port.url) as client:
        response = await client.send("GET", "/readyz")
        assert (response.status_code, response.json()["ready"]) == (503, False)
        assert (await client.send("GET", "/livez")).status_code == 200


async def test_probes_share_a_look_at_the_database(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    check = memory.health

    async def health() -> Health:
        nonlocal looks
        looks += 1
        return await check()

    monkeypatch.setattr(memory, "health", health)
    monkeypatch.setattr(limits, "HEALTH_SECONDS", 60.0)
    async with serving(memory) as port, Client(port.url) as client:
        for _ in range(20):
            await client.get("/readyz")
    assert looks == 1


async def test_probes_are_not_kept_waiting(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def health() -> Health:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(memory, "health", health)
    monkeypatch.setattr(limits, "PROBE_SECONDS", 0.1)
    async with serving(memory) as port, Client(port.url) as client:
        for _ in range(2):
            response = await client.send("GET", "/readyz")
            assert (response.status_code, response.json()["status"]) == (503, "unhealthy")
        assert await client.get("/livez")


async def test_metrics(quick: Client) -> None:
    await quick.post("/api/v1/runs", {"workflow": "w"}, status=201)
    response = await quick.send("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'kagzi_runs_started_total{namespace="default",workflow="w"} 1' in response.text


async def test_requests_are_counted_by_their_route_and_never_by_their_path(quick: Client) -> None:
    for number in range(3):
        await quick.problem("GET", f"/api/v1/runs/{number}")
    await quick.problem("GET", "/nowhere/in/particular")
    await quick.problem("DELETE", "/api/v1/runs")
    text = (await quick.send("GET", "/metrics")).text
    counted = {line.partition("{")[2] for line in text.splitlines() if line.startswith("kagzi_http_requests_total{")}
    assert counted == {
        'method="GET",route="/api/v1/runs/{run_id}",status="404"} 3.0',
        'method="GET",route="",status="404"} 1.0',
        'method="DELETE",route="/api/v1/runs",status="405"} 1.0',
    }
    assert 'kagzi_http_seconds_count{method="GET",route="/api/v1/runs/{run_id}"} 3.0' in text


async def test_versions(client: Client, engine: LocalEngine) -> None:
    assert await client.get("/api/v1/versions") == {"versions": [], "more": False}
    worker = Worker(engine)
    started = await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201)
    assert (await client.get(f"/api/v1/runs/{started['run_id']}"))["version"] == "1"
    await worker.claim()
    every, one = (await client.get("/api/v1/versions", workflow="ship"))["versions"]
    assert (every["version"], every["workers_online"], every["queues"]) == (None, 1, ["shop"])
    assert (one["version"], one["default"], one["running"], one["workers_online"]) == ("1", True, 1, 1)
    chosen = await client.post("/api/v1/versions", {"workflow": "ship", "version": "2"})
    assert [each["version"] for each in chosen["versions"] if each["chosen"]] == ["2"]
    started = await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201)
    assert (await client.get(f"/api/v1/runs/{started['run_id']}"))["version"] == "2"
    named = await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop", "version": "1"}, status=201)
    assert (await client.get(f"/api/v1/runs/{named['run_id']}"))["version"] == "1"
    status, problem = await client.problem("POST", "/api/v1/versions", json={"workflow": "none", "version": "2"})
    assert status == 400
    assert "no worker has ever offered workflow none" in problem["detail"]
    forced = await client.post("/api/v1/versions", {"workflow": "none", "version": "2", "force": True})
    assert [(each["version"], each["default"]) for each in forced["versions"]] == [("2", True)]
    assert (await client.post("/api/v1/versions", {"workflow": "none"}))["versions"] == []

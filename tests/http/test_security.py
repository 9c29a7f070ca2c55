"""Who may do what over HTTP, and what nobody may."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kagzi.access import ACTIONS, Gate, Role
from kagzi.api.keys import AuditFilter
from kagzi.api.operations import TerminateRun
from kagzi.engine.local import LocalEngine
from kagzi.http import limits
from kagzi.http.door import is_local
from kagzi.http.port import HttpPort
from kagzi.http.reading import _inflate
from kagzi.http.routes import ROUTES
from tests.engine.support import WORKER, new_registration
from tests.http.support import Client, serving, until_waited_for

UNKNOWN = "01900000-0000-7000-8000-000000000000"


class Guarded:
    def __init__(self, engine: LocalEngine, port: HttpPort, gate: Gate) -> None:
        self.engine = engine
        self.port = port
        self.gate = gate

    async def key(self, role: Role, namespace: str | None = None) -> str:
        made = await self.engine.keys.create(name="test", role=role, namespace=namespace, actor="test")
        await self.gate._read()  # rather than wait a second
        return made.text

    async def client(self, role: Role | None, namespace: str | None = None) -> Client:
        return Client(self.port.url, None if role is None else await self.key(role, namespace))


@pytest.fixture
async def guarded(engine: LocalEngine) -> AsyncIterator[Guarded]:
    for namespace in ("a", "b"):
        await engine.namespaces.create(namespace)
    async with serving(engine) as port:
        made = Guarded(engine, port, port._gate)
        await made.key(Role.ADMIN)
        yield made


def call_of(route: Any, namespace: str | None = None) -> tuple[str, str, dict[str, Any]]:
    ids = dict.fromkeys(("run_id", "worker_id", "schedule_id", "job_id"), UNKNOWN)
    path = route.path.format(**ids, queue="q", workflow="w", namespace=namespace or "a")
    more: dict[str, Any] = {}
    if "namespace" in route.query.__struct_fields__ and namespace is not None:
        more["params"] = {"namespace": namespace}
    if route.body is not None:
        more["json"] = {"workflow": "w"} if path.endswith("/runs") else {}
    return route.method, path, more


async def test_every_route_asks_for_a_key(guarded: Guarded) -> None:
    async with await guarded.client(None) as nobody, Client(guarded.port.url, "kgz_nonsense") as fool:
        for route in ROUTES:
            method, path, more = call_of(route)
            for client in (nobody, fool):
                response = await client.send(method, path, **more)
                if route.public:
                    assert response.status_code == 200
                else:
                    assert (response.status_code, response.json()["code"]) == (401, "UNAUTHENTICATED"), route.action
                    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_every_role_may_do_what_the_table_says(guarded: Guarded) -> None:
    for role in Role:
        async with await guarded.client(role, "a") as client:
            for route in ROUTES:
                if route.public or route.streams:
                    continue
                method, path, more = call_of(route, "a")
                response = await client.send(method, path, **more)
                rule = ACTIONS[route.action]
                allowed = role in rule.roles and not rule.everywhere
                assert (response.status_code == 403) is not allowed, (role, route.action, response.text)


async def test_namespaces_are_fully_apart(guarded: Guarded) -> None:
    async with await guarded.client(Role.ADMIN, "a") as a, await guarded.client(Role.ADMIN, "b") as b:
        run = await a.post("/api/v1/runs", {"workflow": "w", "input": ["secret"], "id": "mine"}, status=201)
        assert (await a.get(f"/api/v1/runs/{run['run_id']}"))["namespace"] == "a"
        assert (await b.get("/api/v1/runs"))["runs"] == []
        assert (await b.get("/api/v1/runs", id="mine"))["runs"] == []
        await guarded.engine.workers.register(new_registration(namespace="a"))
        assert (await b.get("/api/v1/workers"))["workers"] == []
        await b.post("/api/v1/runs", {"workflow": "w", "delay": "1h"}, status=201)
        for client, ready in ((a, 1), (b, 0)):
            (queue,) = [each for each in (await client.get("/api/v1/queues"))["queues"] if each["queue"] == "default"]
            assert (queue["pending"], queue["ready"]) == (1, ready)
        schedule = await a.post("/api/v1/schedules", {"workflow": "w", "cron": "@yearly", "name": "mine"}, status=201)
        assert (await b.get("/api/v1/schedules"))["schedules"] == []
        assert (await b.problem("GET", "/api/v1/schedules/mine"))[0] == 404
        for route in ROUTES:
            if any(f"{{{named}}}" in route.path for named in ("run_id", "worker_id", "schedule_id")):
                # A foreign id answers exactly like an unknown one.
                answers = []
                for run_id, worker_id, schedule_id in (
                    (run["run_id"], WORKER, schedule["schedule_id"]),
                    (UNKNOWN, UNKNOWN, UNKNOWN),
                ):
                    body: dict[str, str] = {"name": "go"} if route.path.endswith("/signals") else {}
                    if route.path.endswith("/backfill"):
                        body = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
                    more = {} if route.body is None else {"json": body}
                    path = route.path.format(run_id=run_id, worker_id=worker_id, schedule_id=schedule_id)
                    status, problem = await b.problem(route.method, path, **more)
                    del problem["request_id"]
                    for id in (run_id, worker_id, schedule_id):
                        problem = {name: str(value).replace(id, "ID") for name, value in problem.items()}
                    answers.append((status, problem))
                assert answers[0] == answers[1]
                assert answers[0][0] == 404
            if not route.public:
                method, path, more = call_of(route, "a")
                if "params" in more or "{namespace}" in route.path:
                    status, problem = await b.problem(method, path, **more)
                    assert (status, problem["code"]) == (403, "PERMISSION_DENIED"), route.action
        assert (await a.get(f"/api/v1/runs/{run['run_id']}"))["status"] == "PENDING"
        assert (await a.get(f"/api/v1/workers/{WORKER}"))["status"] == "ONLINE"
        assert (await a.get("/api/v1/schedules/mine"))["enabled"]
        # The same id in another namespace is another run.
        other = await b.post("/api/v1/runs", {"workflow": "other", "id": "mine"}, status=201)
        assert other["run_id"] != run["run_id"]


async def test_what_health_tells_of_all_namespaces_is_not_for_those_who_see_one(guarded: Guarded) -> None:
    async with await guarded.client(Role.VIEWER, "a") as tenant, await guarded.client(Role.VIEWER) as operator:
        told = (await tenant.get("/api/v1/health"))["components"] + (await tenant.get("/readyz"))["components"]
        assert {part["message"] for part in told} == {""}
        assert all(part["message"] for part in (await operator.get("/api/v1/health"))["components"])


async def test_with_keys_namespaces_are_made_by_administrators(guarded: Guarded) -> None:
    async with await guarded.client(Role.CLIENT) as client:
        status, problem = await client.problem("POST", "/api/v1/runs?namespace=new", json={"workflow": "w"})
        assert (status, problem["code"]) == (404, "NOT_FOUND")
        for path in ("/api/v1/runs?namespace=", "/api/v1/namespaces/"):
            status, problem = await client.problem("GET", path + "x" * 256)
            assert (status, problem["field"]) == (400, "namespace")


async def test_streams_end_with_their_key(guarded: Guarded) -> None:
    made = await guarded.engine.keys.create(name="x", role=Role.VIEWER, namespace="a", actor="test")
    await guarded.gate._read()
    async with Client(guarded.port.url, made.text) as client:
        async with client.http.stream("GET", "/api/v1/events") as response:
            assert response.status_code == 200
            await guarded.engine.keys.revoke(made.key.key_id, actor="test")
            await guarded.gate._read()
            async with asyncio.timeout(30):
                async for _ in response.aiter_bytes():
                    pass
        assert (await client.problem("GET", "/api/v1/events"))[0] == 401


async def test_a_job_that_moves_runs_takes_the_right_to_move_runs(guarded: Guarded) -> None:
    job = {"action": "move", "runs": {"workflow": "w"}, "from_version": "1", "version": "2"}
    async with await guarded.client(Role.CLIENT, "a") as client:
        status, problem = await client.problem("POST", "/api/v1/jobs", json=job)
        assert (status, problem["code"]) == (403, "PERMISSION_DENIED")
        body = {"action": "fork", "runs": {"workflow": "w"}, "created_by": "cli:root"}
        made = await client.post("/api/v1/jobs", body, status=201)
        assert made["created_by"].startswith("key:")
    async with await guarded.client(Role.ADMIN, "a") as admin:
        status, problem = await admin.problem("POST", "/api/v1/jobs", json=job)
        assert (status, problem["detail"]) == (
            400,
            "no worker has ever offered version 2 of workflow w in namespace a; known are none",
        )


async def test_changes_are_written_down(guarded: Guarded) -> None:
    async with await guarded.client(Role.ADMIN, "a") as client:
        run_id = (await client.post("/api/v1/runs", {"workflow": "w"}, status=201))["run_id"]
        await client.post(f"/api/v1/runs/{run_id}/cancel", headers={"x-request-id": "req-1"})
        await client.problem("POST", f"/api/v1/runs/{UNKNOWN}/terminate", json={})
    async with await guarded.client(Role.VIEWER, "a") as client:
        headers = {"x-request-id": "req-2"}
        await client.problem("POST", f"/api/v1/runs/{run_id}/rerun?namespace=a", json={}, headers=headers)
    async with asyncio.timeout(30):
        while True:
            entries = (await guarded.engine.audit.list(AuditFilter(namespace="a"))).items
            found = {(entry.action, entry.target, entry.result) for entry in entries if entry.action.startswith("POST")}
            if len(found) >= 3:
                break
            await asyncio.sleep(0.05)
    assert found == {
        ("POST /api/v1/runs/{run_id}/cancel", f"run {run_id}", "OK"),
        ("POST /api/v1/runs/{run_id}/terminate", f"run {UNKNOWN}", "NOT_FOUND"),
        ("POST /api/v1/runs/{run_id}/rerun", f"run {run_id}", "PERMISSION_DENIED"),
    }
    assert {"req-1", "req-2"} <= {entry.request_id for entry in entries}


async def written(engine: LocalEngine) -> set[tuple[str, str | None, str, str]]:
    await engine.audit.close()
    entries = (await engine.audit.list(AuditFilter(), page_size=100)).items
    return {(entry.action, entry.namespace, entry.target, entry.result) for entry in entries}


async def test_the_audit_log_says_which_namespace_and_worker_was_changed(memory: LocalEngine) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        await client.post("/api/v1/namespaces", {"namespace": "shop"}, status=201)
        await client.post("/api/v1/namespaces/shop/disable")
        await client.problem("POST", "/api/v1/namespaces", json={"name": "shop"})
        await client.problem("POST", f"/api/v1/workers/{UNKNOWN}/drain?namespace=shop", json={})
    assert await written(memory) == {
        ("POST /api/v1/namespaces", "shop", "namespace shop", "OK"),
        ("POST /api/v1/namespaces/{namespace}/disable", "shop", "namespace shop", "OK"),
        ("POST /api/v1/namespaces", None, "", "INVALID_ARGUMENT"),
        ("POST /api/v1/workers/{worker_id}/drain", "shop", f"worker {UNKNOWN}", "NOT_FOUND"),
    }


async def test_a_change_that_was_cut_off_is_not_said_to_have_been_made(
    memory: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.sleep(60)

    async with serving(memory) as port, Client(port.url) as client:
        monkeypatch.setattr(memory.namespaces, "create", never)
        asking = asyncio.create_task(client.problem("POST", "/api/v1/namespaces", json={"namespace": "shop"}))
        await begun.wait()
        await port.stop(grace=0.0)
        assert (await asking)[0] == 503
    assert await written(memory) == {("POST /api/v1/namespaces", "shop", "namespace shop", "CANCELLED")}


async def test_a_key_may_be_written_with_or_without_its_scheme(guarded: Guarded) -> None:
    key = await guarded.key(Role.VIEWER, "a")
    async with await guarded.client(None) as client:
        for header in (f"Bearer {key}", f"bearer  {key}", key):
            response = await client.send("GET", "/api/v1/runs", headers={"authorization": header})
            assert response.status_code == 200, header
        for header in (f"Basic {key}", f"Bearer{key}", "Bearer"):
            status, problem = await client.problem("GET", "/api/v1/runs", headers={"authorization": header})
            assert status == 401
            assert "not known" in problem["detail"]


# Browsers.


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "", "[::ffff:1.2.3.4]"]
)
async def test_names_of_others_do_not_lead_here(quick: Client, host: str) -> None:
    """DNS rebinding: a page makes its own name point to 127.0.0.1 and is then of the same origin as we are."""
    for path in ("/api/v1/runs", "/metrics"):
        status, problem = await quick.problem("GET", path, headers={"host": host})
        assert (status, problem["code"]) == (421, "MISDIRECTED_REQUEST")


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "LOCALHOST", "127.0.0.1", "127.9.9.9:80", "[::1]:8420"])
def test_names_of_this_machine(host: str) -> None:
    assert is_local(host, frozenset())


async def test_with_keys_any_name_will_do(guarded: Guarded) -> None:
    async with await guarded.client(Role.VIEWER) as client:
        response = await client.send("GET", "/api/v1/runs", headers={"host": "kagzi.example"})
        assert response.status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin-1",
        "application/jsonx",
        "text/plain; application/json",
    ],
)
async def test_no_form_can_change_anything(quick: Client, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    status, problem = await quick.problem("POST", "/api/v1/runs", content=b'{"workflow": "w"}', headers=headers)
    assert (status, problem["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert (await quick.get("/api/v1/runs"))["runs"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_pages_of_other_sites_are_refused(quick: Client, headers: dict[str, str]) -> None:
    status, problem = await quick.problem("POST", "/api/v1/runs", json={"workflow": "w"}, headers=headers)
    assert (status, problem["code"]) == (403, "CROSS_SITE")
    own = {"origin": str(quick.http.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    await quick.post("/api/v1/runs", {"workflow": "w"}, status=201, headers=own)


async def test_there_is_no_cors(quick: Client) -> None:
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    response = await quick.send("OPTIONS", "/api/v1/runs", headers=headers)
    assert response.status_code == 405
    answer = await quick.send("GET", "/api/v1/runs", headers=headers)
    for each in (response, answer):
        assert not [name for name in each.headers if name.startswith("access-control")]


# Limits.


@pytest.mark.parametrize("body", [b"{", b'{"workflow": ""}', b'{"workflow": "w", "queue": 5}', b" " * 2_000_000])
async def test_a_body_that_is_refused_gives_its_room_back(memory: LocalEngine, body: bytes) -> None:
    async with serving(memory, payload_bytes=1000) as port, Client(port.url) as client:
        for content in (body, body, body):
            response = await client.http.post(
                "/api/v1/runs", content=content, headers={"content-type": "application/json"}
            )
            assert response.status_code in (400, 413), response.text
        assert not port._gate._bytes._taken


async def test_bodies_are_bounded(memory: LocalEngine) -> None:
    async with serving(memory, payload_bytes=1000) as port, Client(port.url) as client:
        limit = port._body_bytes
        headers = {"content-type": "application/json"}

        async def chunks() -> AsyncIterator[bytes]:
            yield b'{"workflow": "w", "input": "'
            for _ in range(limit // 1000 + 1):
                yield b"x" * 1000
            yield b'"}'

        bomb = gzip.compress(b" " * 20_000_000)
        assert len(bomb) < limit
        for content, more in (
            (b" " * (limit + 1), {}),
            (chunks(), {}),
            (bomb, {"content-encoding": "gzip"}),
        ):
            status, problem = await client.problem("POST", "/api/v1/runs", content=content, headers=headers | more)
            assert (status, problem["code"]) == (413, "PAYLOAD_TOO_LARGE")
        for content, coding in ((b"not gzip", "gzip"), (gzip.compress(b"{}")[:-4], "gzip")):
            status, problem = await client.problem(
                "POST", "/api/v1/runs", content=content, headers=headers | {"content-encoding": coding}
            )
            assert (status, problem["code"]) == (400, "INVALID_ARGUMENT")
        status, _ = await client.problem(
            "POST", "/api/v1/runs", content=b"", headers=headers | {"content-encoding": "br"}
        )
        assert status == 415
        assert (await client.get("/api/v1/runs"))["runs"] == []


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    assert len(_inflate(zlib.decompressobj(wbits=31), bomb, 1000)) == 1000


async def answer_to_a_body_cut_short(port: int, promised: int, *, seconds: float) -> bytes:
    """The first line of the answer to a body that says how long it is and of which one byte comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /api/v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        + f"content-length: {promised}\r\n\r\n{{".encode()
    )
    async with asyncio.timeout(seconds):
        line = await reader.readline()
    writer.close()
    return line


async def test_a_body_that_says_it_is_too_large_is_not_waited_for(memory: LocalEngine) -> None:
    async with serving(memory) as port:
        assert b"413" in await answer_to_a_body_cut_short(port.port, 999999999, seconds=5)


async def test_requests_of_one_key_are_bounded_and_end_with_it(memory: LocalEngine) -> None:
    async with serving(memory, calls_per_key=1) as port:
        made = await memory.keys.create(name="x", role=Role.CLIENT, namespace="default", actor="test")
        async with Client(port.url, made.text) as client:
            run_id = (await client.post("/api/v1/runs", {"workflow": "w"}, status=201))["run_id"]
            waiting = asyncio.create_task(client.problem("GET", f"/api/v1/runs/{run_id}?wait=60s"))
            await until_waited_for(memory, run_id)
            for path in ("/api/v1/runs", "/api/v1/events"):
                status, problem = await client.problem("GET", path)
                assert (status, problem["code"]) == (429, "LIMIT_EXCEEDED")
            await memory.keys.revoke(made.key.key_id, actor="test")
            await port._gate._read()
            async with asyncio.timeout(5):
                assert (await waiting)[0] == 401


async def test_a_payload_that_is_too_large(memory: LocalEngine) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        body = {"workflow": "w", "input": "x" * (memory.settings.payload_bytes + 1)}
        status, problem = await client.problem("POST", "/api/v1/runs", json=body)
        assert (status, problem["code"]) == (413, "PAYLOAD_TOO_LARGE")


async def test_headers_are_bounded(quick: Client) -> None:
    large = {"x-much": "x" * (limits.HEADER_BYTES + 1)}
    assert (await quick.problem("GET", "/livez", headers=large))[0] == 431
    assert (await quick.problem("GET", "/livez", params={"x": "x" * limits.TARGET_BYTES}))[0] == 414
    # So large that they do not even arrive as a whole.
    try:
        answer = await quick.http.get("/livez", headers={"x-much": "x" * 1_000_000})
        assert answer.status_code in (400, 431)
    except httpx.TransportError:
        pass  # hung up on in the middle
    assert await quick.get("/livez")


async def test_requests_under_way_are_bounded(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS", 2)
    async with serving(memory) as port, Client(port.url) as client:
        run_id = (await client.post("/api/v1/runs", {"workflow": "w"}, status=201))["run_id"]
        waiting = [asyncio.create_task(client.get(f"/api/v1/runs/{run_id}", wait="60s")) for _ in range(2)]
        await until_waited_for(memory, run_id, 2)
        status, problem = await client.problem("GET", f"/api/v1/runs/{run_id}")
        assert (status, problem["code"]) == (429, "LIMIT_EXCEEDED")
        assert await client.get("/livez")
        await memory.workflows.terminate(TerminateRun(namespace="default", run_id=run_id))
        assert [run["status"] for run in await asyncio.gather(*waiting)] == ["CANCELLED"] * 2
        assert await client.get(f"/api/v1/runs/{run_id}")


async def test_a_server_with_its_hands_full_still_says_that_it_lives(
    memory: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUESTS", 1)
    monkeypatch.setattr(limits, "STREAMS", 1)
    async with serving(memory) as port, Client(port.url) as client:
        run_id = (await client.post("/api/v1/runs", {"workflow": "w"}, status=201))["run_id"]
        waiting = asyncio.create_task(client.get(f"/api/v1/runs/{run_id}", wait="60s"))
        await until_waited_for(memory, run_id)
        async with client.http.stream("GET", "/api/v1/events"):
            status, problem = await client.problem("GET", "/api/v1/stats")
            assert (status, problem["code"]) == (429, "LIMIT_EXCEEDED")
            assert await client.get("/livez")
            assert await client.get("/readyz")
        await memory.workflows.terminate(TerminateRun(namespace="default", run_id=run_id))
        await waiting


async def test_requests_have_a_deadline(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 0.05)

    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    async with serving(memory) as port, Client(port.url) as client:
        monkeypatch.setattr(memory.admin, "count_runs", never)
        status, problem = await client.problem("GET", "/api/v1/stats")
        assert (status, problem["code"]) == (504, "TIMEOUT")


async def test_a_body_that_never_comes(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 0.2)
    async with serving(memory) as port:
        assert b"504" in await answer_to_a_body_cut_short(port.port, 100, seconds=30)


async def test_a_request_that_never_comes(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        assert await client.get("/livez")
        monkeypatch.setattr(limits, "HEADER_SECONDS", 0.2)
        silent, writer = await asyncio.open_connection("127.0.0.1", port.port)
        halting, other = await asyncio.open_connection("127.0.0.1", port.port)
        other.write(b"GET /livez HTTP/1.1\r\nhost: loc")
        async with asyncio.timeout(30):
            for reader in (silent, halting):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        # Patience is for requests, not for connections: the one that has answered before them is there after them.
        (kept,) = client.http._transport._pool.connections  # type: ignore[attr-defined]
        assert await client.get("/livez")
        assert client.http._transport._pool.connections == [kept]  # type: ignore[attr-defined]
        for each in (writer, other):
            each.close()


# What others see of us.


async def test_errors_nobody_foresaw_say_nothing(
    memory: LocalEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("SELECT secret FROM /etc/passwd")

    async with serving(memory) as port, Client(port.url) as client:
        monkeypatch.setattr(memory.workflows, "get", broken)
        response = await client.send("GET", f"/api/v1/runs/{UNKNOWN}")
        assert (response.status_code, response.json()["code"]) == (500, "INTERNAL")
        assert "SELECT" not in response.text
        assert response.headers["x-request-id"] in response.json()["detail"]
        assert any(record.exc_info and response.headers["x-request-id"] in record.message for record in caplog.records)


async def test_request_ids_and_the_log(quick: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kagzi.http")
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    response = await quick.send("GET", "/api/v1/server", headers={"x-request-id": "abc-1", "traceparent": trace})
    assert response.headers["x-request-id"] == "abc-1"
    (record,) = [record for record in caplog.records if record.name == "kagzi.http"]
    assert record.request_id == "abc-1"  # type: ignore[attr-defined]
    assert record.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"  # type: ignore[attr-defined]
    assert record.message.startswith("GET /api/v1/server 200 in ")
    for bad in ("x" * 101, "a b", "a\tb", ""):
        answer = await quick.send("GET", "/livez", headers={"x-request-id": bad})
        assert answer.headers["x-request-id"] not in (bad, "abc-1")


async def test_a_run_started_over_http_is_part_of_its_callers_trace(quick: Client, memory: LocalEngine) -> None:
    from tests.engine.test_events import Worker

    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for header, expected in ((trace, trace), ("nonsense", None)):
        body = {"workflow": "ship", "queue": "shop"}
        await quick.post("/api/v1/runs", body, status=201, headers={"traceparent": header})
        worker = Worker(memory)
        claim = await worker.claim()
        assert claim.trace_context == expected
        await memory.workers.deregister(worker.worker_id)
        await quick.post(f"/api/v1/runs/{claim.run_id}/terminate")


async def test_not_http_at_all(memory: LocalEngine) -> None:
    async with serving(memory) as port, httpx.AsyncClient(trust_env=False) as client:
        for data in (
            b"\x16\x03\x01\x02\x00\x01",
            b"GET\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x00" * 100_000,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(data)
            async with asyncio.timeout(30):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 4") or not answer
            writer.close()
        assert (await client.get(f"{port.url}/livez")).status_code == 200

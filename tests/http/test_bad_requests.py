"""Every route is sent nonsense: only documented answers, nothing written, nothing given away, and it serves on."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec
import pytest

from kagzi.api.admin import WorkerFilter
from kagzi.api.workers import Registration
from kagzi.api.workflows import RunFilter
from kagzi.core.page import Cursor, PageTokens
from kagzi.core.worker import WorkflowType
from kagzi.engine.local import LocalEngine
from kagzi.http import limits
from kagzi.http.routes import ROUTES, Route
from tests.campaigns import length
from tests.http.support import Client

CALLS = length(500, 2_500)
UNKNOWN = "01900000-0000-7000-8000-000000000000"
WORKER = "01900000-0000-7000-8000-000000000001"
DOCUMENTED = {200, 201, 400, 403, 404, 405, 409, 413, 414, 415, 421, 431}
# What must never be in an answer: statements, paths of files, names of modules, addresses of databases.
HERE = str(Path(__file__).parents[2]).lower()
TELLTALE = ("select ", "insert ", "sqlite", "postgres", "asyncpg", HERE, "/tmp/", ".py", "traceback", "0x7f")

WORDS = [
    "",
    " ",
    "\0",
    "a\0b",
    "'; DROP TABLE workflow_runs; --",
    "../../etc/passwd",
    "%00",
    "\ud800",
    "ü" * 300,
    "x" * 256,
    "x" * 5000,
    "null",
    "-1",
    "0",
    "1e309",
    "9" * 40,
    "9223372036854775808",
    "NaN",
    "true",
    "RUNNING",
    "running",
    "\r\nset-cookie: x=1",
    "${jndi:ldap://x}",
    "<script>alert(1)</script>",
    "2026-01-31T12:00:00",
    "2026-02-31T12:00:00Z",
    "99999-01-01T00:00:00Z",
    "1969-01-01T00:00:00Z",
    "-5s",
    "1000000000 weeks",
    "{}",
    "[]",
    UNKNOWN,
    UNKNOWN.upper(),
    UNKNOWN[:-1],
    f"{{{UNKNOWN}}}",
]
VALUES: list[Any] = [
    *WORDS,
    None,
    True,
    -1,
    0,
    1.5,
    2**31,
    2**63,
    2**64,
    -(2**70),
    10**400,
    1e308,
    [],
    {},
    [[]],
    {"a": 1},
    [None] * 1000,
]
BODIES: list[bytes] = [
    b"",
    b"\0",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{",
    b"{}}",
    b"{,}",
    b'{"a":1,"a":2}',
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b'{"workflow": "\xff"}',
    b'{"workflow": "w", "input": "\xc3"}',
    b'{"workflow": "w", "input": NaN}',
    b'{"workflow": "w", "input": 01}',
    b'{"workflow": "w", "input": "\\ud800"}',
    b'{"workflow": "w", "input": "\\x"}',
    b'{"workflow": "w", "input": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b"[" * 100_000,
    b'{"workflow": "w", "input": 1' + b"0" * 5000 + b".0.0}",
    b'{"workflow": "a\\u0000b"}',
    b'{"__class__": "os.system"}',
]


class Fuzzer:
    def __init__(self, seed: int, run_id: str) -> None:
        self.random = random.Random(seed)
        # What is real may be used as well, where it cannot do harm: in another namespace.
        self.ids = [UNKNOWN, WORKER, run_id, *WORDS]

    def call(self, route: Route) -> tuple[str, str, dict[str, Any]]:
        pick = self.random
        path = route.path
        for name in ("run_id", "worker_id", "namespace"):
            value = pick.choice(self.ids if name != "namespace" else WORDS)
            path = path.replace(f"{{{name}}}", quote(value.encode("utf-8", "surrogatepass"), safe=""))
        more: dict[str, Any] = {"params": self.query(route), "headers": self.headers(route)}
        method = route.method
        if pick.random() < 0.05:
            method = pick.choice(["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FROB", "POST", "GET"])
        if route.body is not None or pick.random() < 0.05:
            more["content"] = self.body(route)
        return method, path, more

    def query(self, route: Route) -> str:
        pick = self.random
        names = [*route.query.__struct_fields__, "nonsense", "a[]", ""]
        pairs = []
        for _ in range(pick.choice([0, 1, 1, 2, 3])):
            value = self.token() if pick.random() < 0.2 else pick.choice(WORDS)
            pairs.append(f"{pick.choice(names)}={quote(value.encode('utf-8', 'surrogatepass'), safe='')}")
        if "namespace" in route.query.__struct_fields__ and not any(pair.startswith("namespace=") for pair in pairs):
            pairs.append("namespace=elsewhere")
        if pick.random() < 0.05:
            pairs.append(pick.choice(["%", "%zz", "%ff", "&&&", "=", "x=1&x=2", "a=%c3"]))
        return "&".join(pairs)

    def token(self) -> str:
        pick = self.random
        forged = base64.urlsafe_b64encode(pick.randbytes(pick.choice([0, 15, 16, 17, 40]))).decode()
        # Before they were signed with a secret of the database, this was their key.
        signed = PageTokens(b"kagzi page tokens").sign(
            Cursor(pick.choice(["x", "1:1", "-1", "9" * 30])),
            pick.choice(["namespaces", "steps 'elsewhere'", "workers WorkerFilter()"]),
        )
        return pick.choice([forged, signed])

    def body(self, route: Route) -> bytes:
        pick = self.random
        if route.body is None or pick.random() < 0.25:
            return pick.choice(BODIES)
        document: dict[str, Any] = {}
        for name in route.body.__struct_fields__:
            if pick.random() < 0.4:
                document[name] = pick.choice(VALUES)
        if pick.random() < 0.2:
            document[pick.choice(WORDS)] = pick.choice(VALUES)
        return json.dumps(document).encode("utf-8", "surrogatepass")

    def headers(self, route: Route) -> dict[str, str]:
        pick = self.random
        headers = {"content-type": "application/json"} if route.body is not None else {}
        if pick.random() < 0.2:
            hostile = {
                "content-type": ["text/plain", "application/json; charset=utf-16", ""],
                "content-encoding": ["gzip", "br", "identity", "gzip, gzip"],
                "x-request-id": ["x" * 500, "<b>"],
                "traceparent": ["00-0-0-0", "ff" * 50, "00-" + "0" * 32 + "-" + "0" * 16 + "-00"],
                "tracestate": ["x" * 2000],
                "idempotency-key": ["", '""', "x" * 300, "a" * 255],
                "last-event-id": ["x" * 300],
                "authorization": ["Bearer", "Basic eDp4", "Bearer kgz_0123456789abcdef_" + "0" * 64],
                "origin": ["null", "http://evil.example"],
                "host": ["evil.example", "localhost"],
                "accept": ["text/html", "*/*;q=0"],
            }
            name = pick.choice(list(hostile))
            headers[name] = pick.choice(hostile[name])
        return headers


async def rows(engine: LocalEngine) -> tuple[Any, ...]:
    """Everything that a request could have changed."""
    namespaces = (await engine.namespaces.list(page_size=100)).items
    runs = await engine.admin.count_runs(None, live=True)
    worker = await engine.admin.get_worker(WORKER)
    return (
        [(each.namespace, each.display_name, each.description, each.enabled) for each in namespaces],
        sorted((run.workflow_type, run.task_queue, run.status, run.count) for run in runs),
        worker.status,
    )


@pytest.fixture
async def prepared(client: Client, engine: LocalEngine) -> str:
    """A run and a worker of the namespace `default`; everything else is asked for in others."""
    await engine.workers.register(
        Registration(
            worker_id=WORKER,
            namespace="default",
            queues=("shop",),
            types=(WorkflowType("ship"),),
            hostname="h",
            pid=1,
            version="1",
            concurrency=1,
        )
    )
    await engine.namespaces.create("elsewhere")
    return (await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201))["run_id"]  # type: ignore[no-any-return]


async def test_nonsense(
    client: Client, engine: LocalEngine, prepared: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROBE_SECONDS", 60.0)  # an honest probe says no on a machine that is too busy
    fuzzer = Fuzzer(20_26, prepared)
    routes = [route for route in ROUTES if not route.streams]
    seen: Counter[int] = Counter()
    before = await rows(engine)
    # What differs between databases shows in fewer calls than what differs between routes.
    calls = CALLS if url.startswith("sqlite") else CALLS // 3
    for number in range(calls):
        route = routes[number % len(routes)]
        method, path, more = fuzzer.call(route)
        response = await client.http.request(method, path, **more)
        said = f"{method} {path} {more} -> {response.status_code} {response.text[:500]}"
        seen[response.status_code] += 1
        assert response.status_code in DOCUMENTED, said
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json" or method == "HEAD", said
            problem = response.json()
            assert problem["status"] == response.status_code
            answer = response.text.lower().replace("/etc/passwd", "").replace("drop table workflow_runs", "")
            assert not [word for word in TELLTALE if word in answer], said
        if response.status_code >= 400 and method != "GET":
            assert await rows(engine) == before, said
        elif response.status_code < 400 and method != "GET":
            before = await rows(engine)
    assert await rows(engine) == before
    # It met with refusals of every kind, and not with them alone.
    assert {200, 400, 404, 405, 415} <= seen.keys() or (calls < CALLS and {200, 400, 404} <= seen.keys()), seen
    assert seen[400] > calls / 4
    assert (await client.get(f"/api/v1/runs/{prepared}"))["status"] == "PENDING"
    assert (await client.get("/readyz"))["ready"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "workflow"),
        ({"workflow": ""}, "workflow"),
        ({"workflow": 1}, "workflow"),
        ({"workflow": "x" * 256}, "workflow"),
        ({"workflow": "a\0b"}, "workflow"),
        ({"workflow": "w", "queue": "\0"}, "queue"),
        ({"workflow": "w", "wrong": 1}, "wrong"),
        ({"workflow": "w", "priority": -1}, "priority"),
        ({"workflow": "w", "priority": 10**30}, "priority"),
        ({"workflow": "w", "delay": "-1s"}, "delay"),
        ({"workflow": "w", "delay": 1e300}, "delay"),
        ({"workflow": "w", "delay": True}, "delay"),
        ({"workflow": "w", "timeout": "soon"}, "timeout"),
        ({"workflow": "w", "timeout": 0}, "timeout"),
        ({"workflow": "w", "start_at": "2026-01-31T12:00:00"}, "start_at"),
        ({"workflow": "w", "deadline": "1912-01-01T00:00:00Z"}, "deadline"),
        ({"workflow": "w", "retry": {"attempts": 0}}, "retry"),
        ({"workflow": "w", "retry": {"jitter": 2}}, "retry.jitter"),
        ({"workflow": "w", "input_base64": "!"}, "input_base64"),
        ({"workflow": "w", "input": [1], "input_base64": "AA=="}, "input_base64"),
        ({"workflow": "w", "on_conflict": "restart"}, "on_conflict"),
        ({"workflow": "w", "on_failure": "notify@ops"}, "on_failure"),
        ({"workflow": "w", "run_id": "zap"}, "run_id"),
        ({"workflow": "w", "run_id": "0190a5f2-7c3e-4d31-9a51-0c8e6b1f2a44"}, "run_id"),
    ],
)
async def test_the_field_is_named(quick: Client, body: dict[str, Any], field: str) -> None:
    status, problem = await quick.problem("POST", "/api/v1/runs", json=body)
    assert (status, problem["code"]) == (400, "INVALID_ARGUMENT"), problem
    assert problem["field"] == field, problem
    assert field.partition(".")[0] in problem["detail"]
    assert (await quick.get("/api/v1/runs"))["runs"] == []


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"workflow": "w", "workflow": "v"}', "workflow"),
        ('{"workflow": "w", "\\u0077orkflow": "v"}', "workflow"),
        ('{"workflow": "w", "retry": {"attempts": 1, "attempts": 9}}', "attempts"),
        ('{"workflow": "w", "input": [{"cents": 1, "cents": 100}]}', "cents"),
    ],
)
async def test_a_key_given_twice_is_refused(quick: Client, body: str, key: str) -> None:
    json = {"content-type": "application/json"}
    status, problem = await quick.problem("POST", "/api/v1/runs", content=body, headers=json)
    assert (status, problem["field"], problem["detail"]) == (400, key, f"{key} is given twice")
    assert (await quick.get("/api/v1/runs"))["runs"] == []


async def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(quick: Client) -> None:
    """Otherwise what a proxy took for the rest of its body would be the next request here."""
    url = quick.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        b"POST /api/v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    )
    async with asyncio.timeout(10):
        said = await reader.read()
    writer.close()
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"AMBIGUOUS_LENGTH"' in said
    assert b"connection: close" in said.lower()
    assert said.count(b"HTTP/1.1") == 1


def enum_parameters() -> list[tuple[str, str, str, list[str]]]:
    """Method, path, field and what it may be, of every parameter and field of a body that is one of a few words."""
    return [
        (route.method, route.path, field.name, [member.value for member in option])
        for route in ROUTES
        for kind in (route.query, route.body)
        if kind is not None
        for field in msgspec.structs.fields(kind)
        for option in parts(field.type)
        if isinstance(option, type) and issubclass(option, Enum)
    ]


def parts(annotation: Any) -> list[Any]:
    return [annotation, *[part for argument in get_args(annotation) for part in parts(argument)]]


@pytest.mark.parametrize(("method", "path", "field", "words"), enum_parameters())
async def test_what_a_parameter_may_be_is_listed(
    quick: Client, method: str, path: str, field: str, words: list[str]
) -> None:
    others = {} if "job" in path else {"workflow": "w"}
    body = {"json": {**others, field: "FOO"}} if method == "POST" else {"params": {field: "FOO"}}
    status, problem = await quick.problem(method, path, **body)
    assert (status, problem["field"]) == (400, field)
    assert problem["detail"] == f"{field}: Invalid enum value 'FOO'; there are {', '.join(words)}"


def test_there_are_parameters_of_a_few_words() -> None:
    assert {(path, field) for _, path, field, _ in enum_parameters()} == {
        ("/api/v1/job-preview", "action"),
        ("/api/v1/jobs", "action"),
        ("/api/v1/runs", "status"),
        ("/api/v1/runs", "on_conflict"),
        ("/api/v1/schedules", "overlap"),
        ("/api/v1/schedules/{schedule_id}", "overlap"),
        ("/api/v1/workers", "status"),
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"runs": {"workflow": "w"}, "from_step": "x"}, "from_step"),
        ({"runs": {"workflow": "w"}, "version": "2"}, "version"),
        ({"action": "fork", "runs": {"tags": {"a": "b"}}, "version": "2"}, "version"),
        ({"action": "fork", "runs": {"workflow": "w"}, "version": "2"}, "version"),  # nobody has offered it
        ({"action": "move", "runs": {"workflow": "w"}, "version": "2"}, "from_version"),
        ({"action": "fork", "runs": {"status": "RUNNING"}}, "runs"),
        ({"runs": {"created_after": "yesterday"}}, "runs.created_after"),
        ({"runs": {"tags": {"": "x"}}}, "runs.tags"),
        ({"runs": {}}, "runs"),
    ],
)
async def test_what_is_wrong_with_a_job_is_named(quick: Client, body: dict[str, Any], field: str) -> None:
    for path in ("jobs", "job-preview"):
        status, problem = await quick.problem("POST", f"/api/v1/{path}", json={"action": "retry"} | body)
        assert (status, problem["field"]) == (400, field), problem


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=ten", "limit"),
        ("limit=5&limit=5", "limit"),
        ("status=DEAD", "status"),
        ("queue=", "queue"),
        ("queue=%00", "queue"),
        ("workflow=" + "x" * 256, "workflow"),
        ("created_after=yesterday", "created_after"),
        ("pages=1", "pages"),
        ("id=x&status=FAILED", "id"),
        ("namespace=", "namespace"),
        ("namespace=%00", "namespace"),
        ("page=abc", "page"),
    ],
)
async def test_the_parameter_is_named(quick: Client, query: str, field: str) -> None:
    status, problem = await quick.problem("GET", f"/api/v1/runs?{query}")
    assert (status, problem["code"], problem["field"]) == (400, "INVALID_ARGUMENT", field), problem


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", f"/api/v1/runs/{'x' * 256}", "run_id"),
        ("GET", "/api/v1/runs/a%00b?wait=1s", "run_id"),
        ("GET", "/api/v1/runs/a%00b/steps", "run_id"),
        ("POST", "/api/v1/runs/a%00b/cancel", "run_id"),
        ("POST", "/api/v1/runs/a%00b/terminate", "run_id"),
        ("POST", "/api/v1/runs/a%00b/rerun", "run_id"),
        ("GET", "/api/v1/workers/zz", "worker_id"),
        ("POST", "/api/v1/workers/zz/drain", "worker_id"),
        ("GET", f"/api/v1/namespaces/{'x' * 256}", "namespace"),
        ("GET", f"/api/v1/events?run_id={'x' * 256}", "run_id"),
        ("GET", "/api/v1/runs?status=null", "status"),
        ("GET", "/api/v1/workers?page=abc", "page"),
        ("GET", "/api/v1/namespaces?page=abc", "page"),
    ],
)
async def test_the_part_of_the_address_is_named(quick: Client, method: str, path: str, field: str) -> None:
    status, problem = await quick.problem(method, path, **({"json": {}} if method == "POST" else {}))
    assert (status, problem["code"], problem["field"]) == (400, "INVALID_ARGUMENT", field), problem


async def test_what_is_wrong_with_a_request_about_a_run_is_named(quick: Client) -> None:
    run_id = (await quick.post("/api/v1/runs", {"workflow": "w"}, status=201))["run_id"]
    _, problem = await quick.problem("GET", f"/api/v1/runs/{run_id}/steps?page=abc")
    assert problem["field"] == "page"
    _, problem = await quick.problem("POST", f"/api/v1/runs/{run_id}/retry", json={"run_id": "zap"})
    assert problem["field"] == "run_id"
    _, problem = await quick.problem("POST", f"/api/v1/runs/{run_id}/terminate", json={"reason": "x" * 2001})
    assert problem["field"] == "reason"


@pytest.mark.parametrize(
    "text",
    [
        r"\ud800",
        r"\uDC00",
        r"\ud800\ud800",
        r"\ud83d\ude00\ud83d",
        r"\ud800 and more, however much that is",
        r"\ud800ü",
    ],
)
async def test_half_a_surrogate_pair_is_called_that(quick: Client, text: str) -> None:
    for field in ("input", "id"):
        body = f'{{"workflow": "w", "{field}": "{text}"}}'.encode()
        headers = {"content-type": "application/json"}
        status, problem = await quick.problem("POST", "/api/v1/runs", content=body, headers=headers)
        assert status == 400
        assert "half a surrogate pair" in problem["detail"], problem
        assert "truncated" not in problem["detail"]


async def test_whole_pairs_and_what_only_looks_like_half_of_one(quick: Client) -> None:
    for text in (r"\ud83d\ude00", r"\\ud800"):
        body = f'{{"workflow": "w", "input": "{text}"}}'.encode()
        response = await quick.send("POST", "/api/v1/runs", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 201, response.text
    broken = rb'{"workflow": "w", "input": "\ud83d\ude00'
    _, problem = await quick.problem(
        "POST", "/api/v1/runs", content=broken, headers={"content-type": "application/json"}
    )
    assert "truncated" in problem["detail"]


async def test_what_could_have_been_said_is_listed(quick: Client) -> None:
    _, problem = await quick.problem("GET", "/api/v1/runs?status=pending")
    assert "PENDING, RUNNING, SLEEPING" in problem["detail"]
    _, problem = await quick.problem("POST", "/api/v1/runs", json={"workflow": "w", "on_conflict": "ignore"})
    assert problem["detail"].endswith("there are return, fail, restart_finished, restart_failed")


@pytest.mark.parametrize("key", ["", "x", "\0", "'", UNKNOWN[:-1], "9" * 100])
async def test_page_tokens_that_were_made_up(client: Client, engine: LocalEngine, key: str) -> None:
    """Whoever can read the database can sign; what is signed and makes no sense is bad input like any other."""
    filters = {
        "/api/v1/runs": repr(RunFilter()),
        "/api/v1/workers": f"workers {WorkerFilter()!r}",
        "/api/v1/namespaces": "namespaces",
    }
    for path, text in filters.items():
        for backward in (False, True):
            token = engine.page_tokens.sign(Cursor(key, backward), text)
            response = await client.send("GET", path, params={"page": token})
            assert response.status_code == (200 if path == "/api/v1/namespaces" and key not in ("", "\0") else 400)
            if response.status_code == 400:
                assert "malformed" in response.json()["detail"]
            # The key that they had before is in the source of old versions for everybody to read.
            token = PageTokens(b"kagzi page tokens").sign(Cursor(key, backward), text)
            status, problem = await client.problem("GET", path, params={"page": token})
            assert status == 400
            assert "does not belong to this listing; start again without a token" in problem["detail"]


async def test_what_is_known_is_listed_for_those_who_say_something_else(quick: Client) -> None:
    _, problem = await quick.problem("GET", "/api/v1/runs?queu=x")
    assert "queu is not known here; there are" in problem["detail"]
    assert " queue," in problem["detail"]
    _, problem = await quick.problem("POST", "/api/v1/runs", json={"workflow": "w", "retry": {"tries": 3}})
    assert problem["detail"] == "tries is not known here"

"""A server's HTTP port over a real engine, and a client that sees to it that every answer is as the document says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from kagzi.access import Gate
from kagzi.access.gate import CALLS_PER_KEY
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.http import openapi
from kagzi.http.door import Door
from kagzi.http.port import HttpPort
from kagzi.http.routes import ROUTES
from kagzi.ports.keyless import Keyless

DOCUMENT: dict[str, Any] = json.loads(openapi.document(ROUTES))
_REGISTRY: Any = Registry().with_resource("urn:kagzi", Resource.from_contents(DOCUMENT, DRAFT202012))
_VALIDATORS: dict[str, Any] = {}


@asynccontextmanager
async def engine_on(url: str, **settings: Any) -> AsyncIterator[LocalEngine]:
    # Nobody beats for the workers of these tests, however long they take.
    engine = connect(url, **{"tick": SECOND // 10, "worker_stale": 3600 * SECOND} | settings)
    assert isinstance(engine, LocalEngine)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def serving(
    engine: LocalEngine, *, calls_per_key: int = CALLS_PER_KEY, **options: Any
) -> AsyncIterator[HttpPort]:
    gate = Gate(engine.keys, engine.namespaces, audit=engine.audit, calls_per_key=calls_per_key)
    usual: dict[str, Any] = {"ready": lambda: True, "door": Door(Keyless.LOCAL)}
    port = HttpPort(engine, gate=gate, audit=engine.audit, **usual | options)
    await port.start()
    try:
        yield port
    finally:
        async with asyncio.timeout(30):
            await port.stop(grace=5.0)
        await gate.close()


async def until_waited_for(engine: LocalEngine, run_id: str, count: int = 1) -> None:
    """Until so many wait at this engine for the end of a run."""
    async with asyncio.timeout(60):
        while engine.results.waiters("default", run_id) < count:
            await asyncio.sleep(0.01)


class Client:
    """Sends requests and checks answers against the OpenAPI document."""

    def __init__(self, url: str, key: str | None = None, **options: Any) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False, **options)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def get(self, path: str, **query: Any) -> Any:
        response = await self.send("GET", path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None, *, status: int = 200, **more: Any) -> Any:
        response = await self.send("POST", path, json={} if body is None else body, **more)
        assert response.status_code == status, response.text
        return response.json()

    async def problem(self, method: str, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
        response = await self.send(method, path, **more)
        assert response.status_code >= 400, response.text
        return response.status_code, response.json()

    async def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        response = await self.http.request(method, path, **more)
        check(method, response)
        return response


def check(method: str, response: httpx.Response) -> None:
    """Is this an answer that the document allows?"""
    assert response.headers["x-request-id"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "server" not in response.headers
    if method == "HEAD":
        return
    media = response.headers["content-type"].partition(";")[0]
    if response.status_code >= 400 and media == "application/problem+json":
        problem = response.json()
        _valid(problem, "#/components/schemas/Problem")
        assert problem["status"] == response.status_code
        assert problem["request_id"] == response.headers["x-request-id"]
        return
    raw_path = response.url.raw_path.decode().partition("?")[0]  # a name may contain a slash
    operation = _operation(method, raw_path)
    described = operation["responses"][str(response.status_code)]["content"][media]
    if "schema" in described:
        _valid(response.json(), described["schema"]["$ref"])


def _operation(method: str, path: str) -> dict[str, Any]:
    exact = DOCUMENT["paths"].get(path)
    if exact is not None:
        return exact[method.lower()]  # type: ignore[no-any-return]
    for pattern, item in DOCUMENT["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", pattern), path) and method.lower() in item:
            return item[method.lower()]  # type: ignore[no-any-return]
    raise AssertionError(f"{method} {path} is not in the document")


def _valid(value: Any, reference: str) -> None:
    if reference not in _VALIDATORS:
        schema = {"$ref": f"urn:kagzi{reference}"}
        _VALIDATORS[reference] = Draft202012Validator(
            schema, registry=_REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER
        )
    errors = [error.message for error in _VALIDATORS[reference].iter_errors(value)]
    assert not errors, f"{errors} in {msgspec.json.encode(value)[:500]!r}"

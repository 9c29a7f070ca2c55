"""An app at home in a web framework: opened with the server, a worker inside, the dashboard below a path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request

from kagzi import InvalidRequest, Kagzi
from kagzi.api.keys import AuditFilter
from kagzi.core.audit import AuditEntry
from kagzi.core.key import Role
from kagzi.engine.local import LocalEngine
from kagzi.testing import run_virtually
from tests.dashboard.support import Page


class Pool:
    """What a resource opens."""

    opened = closed = 0

    def square(self, number: int) -> int:
        assert self.opened == self.closed + 1
        return number * number


def shop(url: str) -> tuple[Kagzi, FastAPI, list[str]]:
    app = Kagzi(url)
    story: list[str] = []

    @app.resource
    async def pool() -> AsyncIterator[Pool]:
        story.append("pool opens")
        try:
            yield Pool()
        finally:
            story.append("pool closes")

    @app.resource
    def powers() -> Iterator[dict[int, int]]:
        yield {number: id(pool()) for number in range(3)}  # one may use another that was defined before

    @app.step
    async def square(number: int) -> int:
        assert powers()[0] == id(pool())
        await asyncio.sleep(0.05)
        story.append("step")
        return number * number

    @app.workflow
    async def squares(number: int) -> int:
        return await square(number)

    @asynccontextmanager
    async def own(api: FastAPI) -> AsyncIterator[dict[str, str]]:
        story.append("own opens")
        assert app.opening is not None
        yield {"theirs": "kept"}
        story.append("own closes")

    api = FastAPI(lifespan=app.lifespan(own, worker=True))

    @api.post("/squares/{number}", status_code=202)
    async def start(number: int) -> dict[str, str]:
        return {"run": (await squares.options(id=f"n-{number}").start(number)).id}

    @api.get("/squares/{number}")
    def result(number: int) -> dict[str, int]:  # in a thread, where nothing can be awaited
        return {"result": app.find_sync(f"n-{number}", squares).result_sync(timeout=60)}

    api.mount("/kagzi", app.asgi(local=True))
    return app, api, story


@asynccontextmanager
async def serving(api: Any, client: tuple[str, int] = ("127.0.0.1", 1)) -> AsyncIterator[httpx.AsyncClient]:
    """A server without a network: lifespan and requests."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(api.router.lifespan_context(api))
        transport = httpx.ASGITransport(api, client=client)
        yield await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://localhost"))


async def test_a_web_app_with_a_worker_and_the_dashboard(home: str) -> None:
    app, api, story = shop(home)
    async with serving(api) as client:
        assert (await client.post("/squares/7")).status_code == 202
        assert (await client.get("/squares/7")).json() == {"result": 49}
        page = await client.get("/kagzi/runs", headers={"accept": "text/html"})
        assert "n-7" in page.text
        # Every page has something to show, wherever the engine is.
        (run,) = [each["run_id"] for each in (await client.get("/kagzi/api/v1/runs")).json()["runs"]]
        for path in ("", "jobs", "workflows", "versions", "schedules", "new-schedule", "queues", "workers", "system"):
            page = await client.get(f"/kagzi/{path}", headers={"accept": "text/html"})
            assert (page.status_code, "</main>" in page.text) == (200, True), (path, page.text)
        assert "squares" in (await client.get("/kagzi/versions")).text
        page = await client.get(f"/kagzi/runs/{run}")
        assert "square" in page.text
        assert "completed" in page.text
        (form,) = [each for each in page_forms(await client.get(f"/kagzi/runs/{run}/rerun")) if "rerun" in each.action]
        again = await client.post(form.action, data=form.fields, follow_redirects=True)
        assert "from the beginning" in again.text
        await client.post("/squares/8")
    assert app.opening is None
    assert story[:2] == ["own opens", "pool opens"]
    assert story[-2:] == ["pool closes", "own closes"]  # when the worker has drained


async def test_every_link_form_and_file_stays_below_the_path() -> None:
    _, api, _ = shop("memory://")
    async with serving(api) as client:
        await client.post("/squares/7")
        assert (await client.get("/squares/7")).json() == {"result": 49}
        listed = (await client.get("/kagzi/api/v1/runs")).json()["runs"]
        (run_id,) = [each["run_id"] for each in listed]
        started = await client.post("/kagzi/api/v1/runs", json={"workflow": "squares", "input": [3]})
        assert started.status_code == 201
        redirect = await client.get("/kagzi")
        assert redirect.status_code == 307
        assert redirect.headers["location"] in ("/kagzi/", "http://localhost/kagzi/")

        seen: set[str] = set()
        wanted = ["/kagzi/", f"/kagzi/runs/{run_id}", f"/kagzi/runs/{run_id}/rerun", "/kagzi/start"]
        while wanted:
            address = wanted.pop()
            if address in seen:
                continue
            seen.add(address)
            answer = await client.get(address, headers={"accept": "text/html"})
            assert answer.status_code == 200, address
            if "html" not in answer.headers["content-type"]:
                continue
            page = Page(answer)
            inner = [given.get(name, "") for _, given in page.tags for name in ("href", "src", "action", "data-live")]
            assert all(each.startswith(("/kagzi/", "#")) for each in inner if each), address
            wanted += [each for each in inner if "/static/" in each or each.endswith(("/workers", "/system"))]
        assert any("/static/" in each for each in seen)

        (form,) = [each for each in page_forms(await client.get(f"/kagzi/runs/{run_id}/rerun")) if each.action]
        sent = await client.post(form.action, data=form.fields)
        assert sent.status_code == 303
        assert sent.headers["location"].startswith("/kagzi/runs/")
        forged = await client.post(form.action, data=form.fields | {"form_token": "x"})
        assert forged.status_code == 403


def page_forms(answer: httpx.Response) -> list[Any]:
    return [form for form in Page(answer).forms if form.method == "post"]


PROXIED = {
    "directly": {},
    "by nginx, which says nothing": {"http_version": "1.0"},
    "with a forged peer": {"headers": {"x-forwarded-for": "127.0.0.1"}},
    "by a proxy that says so": {"headers": {"forwarded": "for=127.0.0.1"}},
    "under another name": {"headers": {"host": "shop.example"}},
    "from elsewhere": {"client": ("203.0.113.9", 1)},
}


def bare(app: Kagzi, **options: Any) -> FastAPI:
    api = FastAPI(lifespan=app.lifespan())
    api.mount("/kagzi", app.asgi(**options))
    return api


async def asked(api: FastAPI, path: str, *, http_version: str = "1.1", **how: Any) -> httpx.Response:
    async def arriving(scope: Any, receive: Any, send: Any) -> None:
        await api({**scope, "http_version": http_version}, receive, send)

    client, headers = how.get("client", ("127.0.0.1", 1)), how.get("headers", {})
    transport = httpx.ASGITransport(arriving, client=client)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.get(f"/kagzi{path}", headers=headers)


@pytest.mark.parametrize("path", ["/api/v1/runs", "/", "/metrics"])
async def test_without_keys_a_mount_answers_only_what_the_developer_says(path: str) -> None:
    for options, let_in in (({}, set()), ({"local": True}, {"directly"}), ({"auth": lambda _: True}, set(PROXIED))):
        app, _, _ = shop("memory://")
        api = bare(app, **options)
        async with serving(api):
            answers = {how: (await asked(api, path, **given)).status_code for how, given in PROXIED.items()}
            assert {how for how, status in answers.items() if status == 200} == let_in, options
            assert set(answers.values()) <= {200, 403, 421}
            assert (await asked(api, "/livez", client=("203.0.113.9", 1))).status_code == 200
            if not options:
                advice = (await asked(api, "/api/v1/runs")).json()["detail"]
                assert all(word in advice for word in ("kagzi keys create", "auth=", "local=True"))


async def _of_staff(request: Request) -> str:
    """As a dependency of FastAPI: `Depends(_of_staff)`."""
    if (name := request.headers.get("x-user")) is None:
        raise HTTPException(401, "log in first", {"www-authenticate": "Basic"})
    return name if name.startswith("staff-") else ""


def _in_a_thread(request: Request) -> object:
    asyncio.run(asyncio.sleep(0))  # no loop runs in this thread
    return request.headers.get("x-user") == "staff-ada"


@pytest.mark.parametrize("auth", [_of_staff, _in_a_thread])
async def test_a_function_of_the_web_app_decides_who_comes_in(auth: Any) -> None:
    app, _, _ = shop("memory://")
    api = bare(app, auth=auth)
    async with serving(api, client=("203.0.113.9", 1)) as stranger:
        assert isinstance(app.engine, LocalEngine)
        await app.engine.keys.create(namespace=None, name="ops", role=Role.ADMIN, actor="test")  # asks nobody here
        assert (await stranger.get("/kagzi/")).status_code == (401 if auth is _of_staff else 403)
        assert (await stranger.get("/kagzi/", headers={"x-user": "eve"})).status_code == 403
        assert (await stranger.get("/kagzi/static/none.css", headers={"x-user": "eve"})).status_code == 403
        ada = {"x-user": "staff-ada"}
        assert (await stranger.get("/kagzi/", headers=ada)).status_code == 200
        made = await stranger.post("/kagzi/api/v1/runs", json={"workflow": "squares", "input": [3]}, headers=ada)
        address = f"/kagzi/runs/{made.json()['run_id']}/terminate"
        (form,) = [each for each in page_forms(await stranger.get(address, headers=ada)) if "terminate" in each.action]
        if auth is _of_staff:  # forms are bound to whom they were shown
            bob = await stranger.post(form.action, data=form.fields, headers={"x-user": "staff-bob"})
            assert bob.status_code == 403
        assert (await stranger.post(form.action, data=form.fields, headers=ada)).status_code == 303
        async with asyncio.timeout(30):
            while not (done := {each.actor for each in await _audited(app.engine) if each.result == "OK"}):
                await asyncio.sleep(0.02)
        assert done == {"user:staff-ada" if auth is _of_staff else "anyone"}


async def _audited(engine: LocalEngine) -> list[AuditEntry]:
    entries = (await engine.audit.list(AuditFilter())).items
    return [entry for entry in entries if entry.action == "POST /runs/{run_id}/terminate"]


@pytest.mark.parametrize("path", ["/kagzi/livez/../runs", "/kagzi/livez%2F..%2Fruns", "/kagzi//runs", "/kagzi/%72uns"])
async def test_no_way_to_write_an_address_leads_past_the_function(path: str) -> None:
    app, _, _ = shop("memory://")
    api = bare(app, auth=_of_staff)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("203.0.113.9", 1),
        "headers": [(b"host", b"shop.example"), (b"accept", b"text/html")],
        "query_string": b"",
        "root_path": "",
        "path": "/kagzi/livez",  # as a middleware might have left it
        "raw_path": path.encode(),
    }
    async with serving(api):
        await api(scope, lambda: asyncio.sleep(3600), send)
    assert sent[0]["status"] in (401, 404)


async def test_what_a_function_raises_is_answered_by_the_web_app_and_elsewhere_by_us() -> None:
    app, _, _ = shop("memory://")
    mounted = app.asgi(auth=_of_staff)
    async with app:
        transport = httpx.ASGITransport(mounted)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as http:
            answer = await http.get("/")
    assert (answer.status_code, answer.text, answer.headers["www-authenticate"]) == (401, "log in first", "Basic")


async def test_with_keys_everybody_is_asked_for_one() -> None:
    for options in ({}, {"local": True}):
        app, _, _ = shop("memory://")
        async with serving(bare(app, **options), client=("203.0.113.9", 1)) as stranger:
            assert isinstance(app.engine, LocalEngine)
            secret = (await app.engine.keys.create(namespace=None, name="ops", role=Role.ADMIN, actor="test")).text
            page = await stranger.get("/kagzi/", headers={"accept": "text/html"})
            assert page.status_code == 303
            assert page.headers["location"].startswith("/kagzi/login?next=")
            shown = {"authorization": f"Bearer {secret}"}
            assert (await stranger.get("/kagzi/api/v1/runs", headers=shown)).status_code == 200


async def test_a_mount_works_on_each_engine_and_one_that_is_closed_says_so() -> None:
    app, _, _ = shop("memory://")
    api = bare(app, auth=lambda _: True)
    for _ in range(2):  # each time on another engine
        async with serving(api, client=("203.0.113.9", 1)) as stranger:
            assert (await stranger.get("/kagzi/api/v1/runs")).status_code == 200
    closed = await asked(api, "/api/v1/runs")
    assert closed.status_code == 503
    assert "lifespan=app.lifespan()" in closed.json()["detail"]


async def test_where_the_app_is_open_nothing_is_done_twice() -> None:
    app, api, story = shop("memory://")
    async with app, app.worker():
        async with serving(api) as client:
            await client.post("/squares/7")
            assert (await client.get("/squares/7")).json() == {"result": 49}
            assert len((await app.engine.admin.list_workers(_everybody(app))).items) == 1
        assert app.opening is not None
    assert story.count("pool opens") == 1


def _everybody(app: Kagzi) -> Any:
    from kagzi.api.admin import WorkerFilter

    return WorkerFilter(namespace=app.namespace)


def test_resources_are_open_for_steps_alone() -> None:
    app = Kagzi("memory://")
    opened = []

    @app.resource
    def client() -> Iterator[str]:
        opened.append("open")
        yield "client"
        opened.append("closed")

    @app.step
    def uses() -> str:
        return client()

    @app.workflow
    async def flow() -> str:
        return await uses()

    assert run_virtually(app, flow.run) == "client"
    assert opened == ["open", "closed"]
    with pytest.raises(InvalidRequest, match=r"resource client is not open .*test_web_frameworks\.py:\d+"):
        client()

    async def beside() -> str:
        async with app.resources(), app.resources():
            return client()

    assert asyncio.run(beside()) == "client"
    assert opened == ["open", "closed"] * 2


async def test_a_worker_whose_resource_does_not_open_does_not_start() -> None:
    app, _, story = shop("memory://")

    @app.resource
    async def broken() -> AsyncIterator[None]:
        raise OSError("no such host")
        yield

    async with app:
        with pytest.raises(OSError, match="no such host"):
            async with app.worker():
                pass
        assert story == ["pool opens", "pool closes"]


def test_what_is_no_resource_is_refused() -> None:
    app = Kagzi("memory://")
    with pytest.raises(InvalidRequest, match="has to `yield`"):

        @app.resource  # type: ignore[arg-type]
        async def returns() -> str:
            return "x"

    with pytest.raises(InvalidRequest, match="takes no parameters"):

        @app.resource  # type: ignore[arg-type]
        def asks(url: str) -> Iterator[str]:
            yield url

    with pytest.raises(InvalidRequest, match="no workflows"):
        app.lifespan(worker=True)

"""Who sees which page and may send which form, and what nobody may."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator

import httpx
import pytest

from kagzi.access import ACTIONS
from kagzi.access.shares import Room
from kagzi.api.jobs import StartJob
from kagzi.api.keys import AuditFilter
from kagzi.api.operations import StartRun
from kagzi.api.schedules import CreateSchedule
from kagzi.api.workers import Registration
from kagzi.api.workflows import RunFilter
from kagzi.clock import SystemClock
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.job import JobAction
from kagzi.core.key import Role, read_key
from kagzi.core.page import PageTokens
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.dashboard import PAGES
from kagzi.engine.local import LocalEngine
from kagzi.http.limits import FORM_BYTES, PUBLIC_BYTES
from kagzi.http.port import HttpPort
from kagzi.http.routes import ROUTES
from kagzi.http.sessions import Sessions, cookie_name
from kagzi.testing.clock import VirtualClock
from tests.dashboard.support import Browser, Form, dashboard, new_key

RUN = "01900000-0000-7000-8000-000000000001"
WORKER = "01900000-0000-7000-8000-000000000002"


@pytest.fixture
async def port(memory: LocalEngine) -> AsyncIterator[HttpPort]:
    await memory.namespaces.create("a")
    await memory.workflows.start(StartRun(namespace="a", run_id=RUN, workflow_type="secret", task_queue="q"))
    async with dashboard(memory) as made:
        await new_key(memory, made, Role.ADMIN)
        yield made


def address(path: str) -> str:
    return path.format(
        run_id=RUN,
        worker_id=WORKER,
        schedule_id=RUN,
        queue="mail",
        job_id=RUN,
        file="kagzi.css",
        workflow="secret",
        namespace="a",
    )


async def test_whoever_is_not_logged_in_sees_nothing_but_the_login(port: HttpPort) -> None:
    async with Browser(port.url) as stranger:
        for route in PAGES:
            if route.public:
                continue
            if route.method == "GET":
                page = await stranger.open(address(route.path), namespace="a")
                assert "API key" in page.text, route.path
                assert "secret" not in page.text.replace("client_secret", "")
            else:
                token = (await stranger.open("/login")).form("/login").fields["form_token"]
                form = Form(address(route.path), "post")
                await stranger.send(form, form_token=token, code=401)


async def test_logging_in_leads_to_where_one_wanted_to_go_and_out_again(memory: LocalEngine, port: HttpPort) -> None:
    key = await new_key(memory, port, Role.VIEWER, "a")
    async with Browser(port.url) as browser:
        page = await browser.open(f"/runs/{RUN}")
        wrong = await browser.send(page.form("/login"), key="kgz_nonsense", code=401)
        assert "not known" in wrong.text
        assert "kgz_nonsense" not in wrong.html
        shown = await browser.send(page.form("/login"), key=key)
        assert "secret" in shown.text
        (cookie,) = browser.http.cookies.jar
        assert key not in str(cookie.value)
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "strict"
        assert "API key" in (await browser.send(shown.form("/logout"))).text
        assert "API key" in (await browser.open("/")).text


async def test_a_route_that_asks_for_no_key_takes_little_and_unpacks_nothing(port: HttpPort) -> None:
    public = [route for route in (*PAGES, *ROUTES) if route.public and route.body is not None]
    assert {route.action for route in public} == {"POST /login", "POST /logout"}
    form = {"content-type": "application/x-www-form-urlencoded"}

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 1000

    async with Browser(port.url) as stranger:
        for route in public:
            large = await stranger.http.post(route.path, content=b"key=" + b"x" * PUBLIC_BYTES, headers=form)
            in_parts = await stranger.http.post(route.path, content=parts(), headers=form)
            assert (large.status_code, in_parts.status_code) == (413, 413), route.action
            packed = gzip.compress(b"key=x")
            answer = await stranger.http.post(route.path, content=packed, headers=form | {"content-encoding": "gzip"})
            assert answer.status_code == 415, route.action
        # The longest address to go to afterwards fits, and a longer one is forgotten.
        for address, kept in (("/runs?workflow=" + "w" * 1900, True), ("/" + "é" * 1000, False)):
            page = await stranger.open("/login", next=address)
            assert (page.form("/login").fields["next"] == address) is kept
            await stranger.send(page.form("/login"), key="x" * 255, code=401)


@pytest.mark.parametrize("packed", [True, False])
async def test_there_is_room_for_a_body_as_it_will_be_unpacked(
    memory: LocalEngine, port: HttpPort, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    taken: list[int] = []

    async def take(room: Room, size: int) -> None:
        taken.append(size)
        room.add(size)

    monkeypatch.setattr(Room, "take", take)
    key = await new_key(memory, port, Role.ADMIN)
    async with Browser(port.url) as browser:
        await browser.log_in(key)
        for route in (*PAGES, *ROUTES):
            if route.body is None or route.public:
                continue
            page = route in PAGES
            headers = {"content-type": f"application/{'x-www-form-urlencoded' if page else 'json'}"}
            headers |= {"content-encoding": "gzip"} if packed else {}
            headers |= {} if page else {"authorization": f"Bearer {key}"}
            content = gzip.compress(b"x" * 1000) if packed else b"x" * 1000
            await browser.http.post(address(route.path), content=content, headers=headers, follow_redirects=False)
            assert taken, route.action
            assert taken.pop() == (1000 if not packed else FORM_BYTES if page else port._body_bytes), route.action


@pytest.mark.parametrize("next", ["//evil.example", "https://evil.example", "/\\evil.example", "/\x0b/evil", "evil"])
async def test_a_login_leads_nowhere_else(memory: LocalEngine, port: HttpPort, next: str) -> None:
    key = await new_key(memory, port, Role.VIEWER, "a")
    async with Browser(port.url) as browser:
        form = (await browser.open("/login")).form("/login")
        answer = await browser.http.post(
            "/login", data=form.fields | {"key": key, "next": next}, follow_redirects=False
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_every_role_sees_and_sends_what_the_table_says(memory: LocalEngine, port: HttpPort) -> None:
    for role in Role:
        async with Browser(port.url) as browser:
            await browser.log_in(await new_key(memory, port, role, "a"))
            token = (await browser.open("/")).form("/logout").fields["form_token"]
            for route in PAGES:
                if route.public or route.streams:
                    continue
                form = {"form_token": token, "workflow": "w", "name": "go"}
                named = {name: form[name] for name in ("form_token", *_fields(route.body)) if name in form}
                answer = await browser.http.request(
                    route.method, address(route.path), data=named if route.method == "POST" else None
                )
                allowed = role in ACTIONS[route.action].roles
                assert (answer.status_code == 403) is not allowed, (role, route.action, answer.text)


def _fields(body: object) -> tuple[str, ...]:
    return getattr(body, "__struct_fields__", ())


async def test_a_viewer_is_offered_nothing_that_would_be_refused(memory: LocalEngine, port: HttpPort) -> None:
    async with Browser(port.url) as browser:
        await browser.log_in(await new_key(memory, port, Role.VIEWER, "a"))
        for path in ("/", "/runs", "/workflows", "/workflows/secret", f"/runs/{RUN}"):
            page = await browser.open(path)
            assert (
                not {"Cancel", "Terminate", "Send signal", "Start a run", "Start a copy …", "Pause …"}
                & page.links.keys()
            )
    async with Browser(port.url) as browser:
        await browser.log_in(await new_key(memory, port, Role.CLIENT, "a"))
        assert {"Cancel", "Terminate", "Send signal"} <= (await browser.open(f"/runs/{RUN}")).links.keys()


async def test_a_page_of_another_namespace_does_not_exist(memory: LocalEngine, port: HttpPort) -> None:
    await memory.namespaces.create("b")
    async with Browser(port.url) as browser:
        await browser.log_in(await new_key(memory, port, Role.ADMIN, "b"))
        await browser.open(f"/runs/{RUN}", code=404)
        await browser.open(f"/runs/{RUN}/cancel", code=404)
        await browser.open("/workflows/secret", code=404)
        await browser.open("/runs", namespace="a", code=403)
        for path in ("/", "/runs", "/workflows", "/queues", "/system"):
            page = await browser.open(path)
            assert "secret" not in page.text
            assert "option" not in [tag for tag, _ in page.tags if path != "/runs"]


async def test_a_session_ends_with_its_key(memory: LocalEngine, port: HttpPort) -> None:
    made = await memory.keys.create(name="test", role=Role.VIEWER, namespace="a", actor="test")
    await port._gate._read()
    async with Browser(port.url) as browser:
        await browser.log_in(made.text)
        assert "API key" not in (await browser.open("/")).text
        await memory.keys.revoke(made.key.key_id, actor="test")
        await port._gate._read()
        assert "API key" in (await browser.open("/")).text


async def test_no_form_is_taken_with_the_token_of_another_session(memory: LocalEngine, port: HttpPort) -> None:
    async with Browser(port.url) as browser, Browser(port.url) as other:
        await browser.log_in(await new_key(memory, port, Role.ADMIN, "a"))
        await other.log_in(await new_key(memory, port, Role.ADMIN, "a"))
        foreign = (await other.open("/")).form("/logout").fields["form_token"]
        sent = [route for route in PAGES if route.method == "POST"]
        assert len(sent) > 25
        for route in sent:
            page = await browser.send(Form(address(route.path), "post"), form_token=foreign, code=403)
            assert "not one of ours" in page.text, route.action
    assert (await memory.workflows.get("a", RUN)).status is RunStatus.PENDING


async def test_every_page_shows_and_keeps_the_namespace_that_is_looked_at(memory: LocalEngine, port: HttpPort) -> None:
    await memory.namespaces.create("b")
    runs, schedules = {}, {}
    for number, (namespace, word) in enumerate((("a", "mine"), ("b", "theirs"))):
        runs[namespace] = f"01900000-0000-7000-8000-00000000001{number}"
        schedules[namespace] = f"01900000-0000-7000-8000-00000000003{number}"
        await memory.workflows.start(
            StartRun(namespace=namespace, run_id=runs[namespace], workflow_type=word, task_queue=f"{word}-queue")
        )
        worker = Registration(
            worker_id=f"01900000-0000-7000-8000-00000000002{number}",
            namespace=namespace,
            queues=(f"{word}-queue",),
            types=(WorkflowType(word, "1"),),
            hostname="h",
            pid=1,
            version="1",
            concurrency=1,
        )
        await memory.workers.register(worker)
        await memory.schedules.create(
            CreateSchedule(
                namespace=namespace,
                schedule_id=schedules[namespace],
                name=f"{word}-schedule",
                workflow_type=word,
                task_queue=f"{word}-queue",
                cron_expr="@daily",
            )
        )
        await memory.limits.set(namespace, Scope.QUEUE, f"{word}-queue", concurrency=3)
        await memory.jobs.start(
            StartJob(
                namespace=namespace,
                job_id=runs[namespace],
                action=JobAction.CANCEL,
                filter=RunFilter(namespace=namespace, workflow_type=f"{word}-none"),
            )
        )
    key = await new_key(memory, port, Role.ADMIN)
    own = {
        "run_id": runs["b"], "schedule_id": schedules["b"], "job_id": runs["b"], "worker_id": worker.worker_id,
        "queue": "theirs-queue", "workflow": "theirs", "file": "kagzi.css",
    }  # fmt: skip
    queries = {
        "GET /bulk": {"action": "cancel", "of": "search", "workflow": "theirs"},
        "GET /versions/default": {"workflow": "theirs", "version": "1"},
        "GET /versions/move": {"workflow": "theirs", "version": "1"},
        "GET /limits/clear": {"name": "theirs-queue"},
        "GET /limits/pause": {"name": "theirs-queue"},
        "GET /limits/resume": {"name": "theirs-queue"},
    }
    async with Browser(port.url) as browser:
        await browser.log_in(key)
        for route in PAGES:
            if route.method != "GET" or route.public or route.streams or route.path.endswith("/step"):
                continue
            path = route.path.format_map(own)
            page = await browser.open(path, namespace="b", **queries.get(route.action, {}))
            assert "mine" not in page.text, route.action
            for link in [*page.links.values(), *[form.action for form in page.forms if form.method == "post"]]:
                inside = link.startswith("/") and not link.startswith(("/static", "/logout", "/login"))
                assert not inside or "namespace=" in link, (route.action, link)
            if "{" in route.path and "{queue}" not in route.path and "{workflow}" not in route.path:
                await browser.open(path, namespace="a", code=404)


async def test_the_form_to_start_a_run_that_is_sent_twice_starts_one(memory: LocalEngine, port: HttpPort) -> None:
    async with Browser(port.url) as browser:
        await browser.log_in(await new_key(memory, port, Role.CLIENT, "a"))
        form = (await browser.open("/start")).form("/start")
        for _ in range(2):
            await browser.send(form, workflow="once", queue="q", input="[1]")
        assert len((await memory.workflows.list(RunFilter(namespace="a", workflow_type="once"))).items) == 1
        await browser.send((await browser.open("/start")).form("/start"), workflow="once", queue="q", input="[1]")
        assert len((await memory.workflows.list(RunFilter(namespace="a", workflow_type="once"))).items) == 2
        # Gone back to and filled in anew, it is told rather than taken for the run of before.
        await browser.send(form, workflow="once", queue="q", input="[2]", code=409)


async def test_forms_of_others_and_of_other_sessions_are_refused(memory: LocalEngine, port: HttpPort) -> None:
    key = await new_key(memory, port, Role.ADMIN, "a")
    async with Browser(port.url) as browser, Browser(port.url) as other:
        await browser.log_in(key)
        await other.log_in(await new_key(memory, port, Role.ADMIN, "a"))
        form = (await browser.open(f"/runs/{RUN}/terminate")).form("/terminate")
        foreign = (await other.open(f"/runs/{RUN}/terminate")).form("/terminate").fields["form_token"]
        for token in ("", "x", "ü", foreign):
            assert "not one of ours" in (await browser.send(form, form_token=token, code=403)).text
        target, headers = form.action, {"sec-fetch-site": "cross-site"}
        for bad in (headers, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"}, {"origin": "null"}):
            answer = await browser.http.post(target, data=form.fields, headers=bad)
            assert (answer.status_code, "other sites" in answer.text) == (403, True)
        answer = await browser.http.post(target, json=form.fields)
        assert answer.status_code == 415
        run = await memory.workflows.get("a", RUN)
        assert not run.status.finished
        await browser.send(form)
        assert (await memory.workflows.get("a", RUN)).status.finished
        async with asyncio.timeout(30):
            while not await _audited(memory, "POST /runs/{run_id}/terminate"):
                await asyncio.sleep(0.02)


async def _audited(engine: LocalEngine, action: str) -> bool:
    """Whether the log says that this was done with the run."""
    entries = (await engine.audit.list(AuditFilter(namespace="a"))).items
    return any((entry.action, entry.target, entry.result) == (action, f"run {RUN}", "OK") for entry in entries)


async def test_a_read_only_dashboard_changes_nothing(memory: LocalEngine) -> None:
    await memory.workflows.start(StartRun(namespace="default", run_id=RUN, workflow_type="w", task_queue="q"))
    async with dashboard(memory, read_only=True) as port, Browser(port.url) as browser:
        page = await browser.open(f"/runs/{RUN}")
        assert "read-only" in page.text
        assert not {"Cancel", "Terminate", "Start a copy …"} & page.links.keys()
        form = (await browser.open(f"/runs/{RUN}/terminate")).form("/terminate")
        assert "KAGZI_UI_READ_ONLY" in (await browser.send(form, code=403)).text
        (run,) = (await memory.workflows.list(RunFilter())).items
        assert not run.status.finished


async def test_a_name_of_somebody_else_does_not_lead_here(memory: LocalEngine) -> None:
    async with dashboard(memory) as port, Browser(port.url) as browser:
        answer = await browser.http.get("/", headers={"host": "evil.example"})
        assert answer.status_code == 421


async def test_the_api_knows_no_sessions(memory: LocalEngine, port: HttpPort) -> None:
    async with Browser(port.url) as browser:
        await browser.log_in(await new_key(memory, port, Role.ADMIN, "a"))
        assert (await browser.http.get("/api/v1/runs")).status_code == 401
        assert (await browser.http.post("/api/v1/runs", json={"workflow": "w"})).status_code == 401


async def test_a_session_is_over_on_every_server_when_it_is_logged_out(engine: LocalEngine) -> None:
    await engine.namespaces.create("a")
    async with dashboard(engine) as one, dashboard(engine) as other, Browser(one.url) as browser:
        key = await new_key(engine, one, Role.VIEWER, "a")
        page = await browser.log_in(key)
        (cookie,) = browser.http.cookies.jar
        session = Sessions(engine.page_tokens, SystemClock()).read(cookie.value)
        assert session is not None
        secret = read_key(key)
        assert secret is not None
        assert all(part not in unpacked(str(cookie.value)) for part in (key.encode(), secret.secret))
        there = {"cookie": f"{cookie_name(other.url)}={cookie.value}"}
        async with httpx.AsyncClient(base_url=other.url, timeout=30) as elsewhere:
            assert (await elsewhere.get("/runs", headers=there)).status_code == 200
            await browser.send(page.form("/logout"))
            again = await elsewhere.get("/runs", headers=there)
            assert (again.status_code, again.headers["location"]) == (303, "/login?next=%2Fruns")


def unpacked(cookie: str) -> bytes:
    """Returns what is in a cookie, as it is and without base64."""
    parts = [part + "=" * (-len(part) % 4) for part in cookie.split(".")]
    return cookie.encode() + b"".join(base64.urlsafe_b64decode(part) for part in parts)


def test_sessions_end_and_cannot_be_made_up() -> None:
    clock = VirtualClock()
    sessions = Sessions(PageTokens(b"secret"), clock, 60)
    cookie = sessions.cookie_of("s-1")
    assert sessions.read(cookie) == "s-1"
    assert sessions.read(cookie[:-1] + ("A" if cookie[-1] != "A" else "B")) is None
    assert Sessions(PageTokens(b"other"), clock, 60).read(cookie) is None
    assert not sessions.owns_form(cookie, cookie)
    token = sessions.form_token(cookie)
    assert sessions.owns_form(token, cookie)
    assert not sessions.owns_form(token, None)
    assert sessions.read(token) is None
    clock.advance(61 * SECOND)
    assert sessions.read(cookie) is None
    clock.advance(13 * 3600 * SECOND)
    assert not sessions.owns_form(token, cookie)


def test_servers_on_two_ports_of_a_host_have_cookies_of_their_own() -> None:
    assert cookie_name("localhost:8420") != cookie_name("localhost:8421")
    assert cookie_name("kagzi.example") == cookie_name("") == "kagzi_session"

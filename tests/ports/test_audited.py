"""Every changing action at every port leaves an entry: which action, of what, in which namespace, by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlencode

import grpc
import httpx
import pytest

from kagzi.access import ACTIONS, Gate, Role
from kagzi.api.keys import AuditFilter
from kagzi.clock import SystemClock
from kagzi.core.audit import AuditEntry
from kagzi.core.job import JobAction
from kagzi.dashboard import PAGES, make_pages
from kagzi.engine.local import LocalEngine
from kagzi.http.pages import FORM_TOKEN
from kagzi.http.port import HttpPort
from kagzi.http.routes import ROUTES
from kagzi.ids import RandomIds
from kagzi.rpc.methods import METHODS, Method
from kagzi.rpc.server.guard import GateGuard
from kagzi.rpc.server.server import RpcServer
from tests.http.support import engine_on

IDS: Final = RandomIds(SystemClock().now)
RUN, JOB, SCHEDULE, WORKER = (IDS.run_id() for _ in range(4))
PATH: Final = {
    "run_id": RUN, "job_id": JOB, "schedule_id": SCHEDULE, "worker_id": WORKER,
    "queue": "mail", "workflow": "ship", "namespace": "team",
}  # fmt: skip
_JOB: Final = {"action": "cancel", "runs": {"workflow": "ship"}, "job_id": JOB}
_SCHEDULE: Final = {"workflow": "ship", "cron": "@daily", "schedule_id": SCHEDULE}
_QUEUE: Final = {"scope": "queue", "name": "mail"}
_MOVE: Final = {"workflow": "ship", "from_version": "1", "to_version": "2"}
# What is sent where the address does not say what is changed, and what the entry names then.
BODIES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "POST /api/v1/jobs": (_JOB, f"job {JOB}"),
    "POST /api/v1/limits": ({"queue": "mail", "concurrency": 1}, "queue mail"),
    "POST /api/v1/namespaces": ({"namespace": "team"}, "namespace team"),
    "POST /api/v1/schedules": (_SCHEDULE, f"schedule {SCHEDULE}"),
    "POST /api/v1/versions": ({"workflow": "ship"}, "workflow ship"),
    "POST /api/v1/versions/move": (_MOVE, "workflow ship"),
    "POST /bulk": ({"action": "cancel", "run": RUN, "fresh": RUN}, f"run {RUN}"),
    "POST /limits/clear": (_QUEUE, "queue mail"),
    "POST /limits/pause": (_QUEUE, "queue mail"),
    "POST /limits/resume": (_QUEUE, "queue mail"),
    "POST /limits/set": (_QUEUE | {"concurrency": "1"}, "queue mail"),
    "POST /new-schedule": (
        {"workflow": "ship", "cron": "@daily", "tz": "UTC", "queue": "q", "schedule_id": SCHEDULE},
        f"schedule {SCHEDULE}",
    ),
    "POST /versions/default": ({"workflow": "ship"}, "workflow ship"),
    "POST /versions/move": (_MOVE, "workflow ship"),
}
_CODES: Final = ("OK", "NOT_FOUND", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "ABORTED")
# The same of RPCs.
REQUESTS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "CancelJob": ({"job_id": JOB}, f"job {JOB}"),
    "ClearLimit": ({"scope": 2, "name": "mail"}, "queue mail"),
    "CreateWorkflowSchedule": ({"workflow_type": "ship", "task_queue": "q", "cron_expr": "@daily"}, "schedule *"),
    "DrainWorker": ({"worker_id": WORKER}, f"worker {WORKER}"),
    "MoveCheckedWorkflows": ({"workflow_type": "ship", "from_version": "1", "to_version": "2"}, "workflow ship"),
    "MoveWorkflows": ({"workflow_type": "ship", "from_version": "1", "to_version": "2"}, "workflow ship"),
    "PauseClaims": ({"scope": 2, "name": "mail"}, "queue mail"),
    "ResumeClaims": ({"scope": 2, "name": "mail"}, "queue mail"),
    "SetDefaultVersion": ({"workflow_type": "ship", "version": "2"}, "workflow ship"),
    "SetLimit": ({"scope": 2, "name": "mail", "concurrency": 1}, "queue mail"),
    "StartJob": ({"action": JobAction.CANCEL.value, "everything": True}, "job *"),
}


class Ports:
    def __init__(self, engine: LocalEngine, http: HttpPort, rpc: RpcServer, key: str) -> None:
        self.engine = engine
        self.http = http
        self.rpc = rpc
        self.key = key
        self.actor = f"key:{key.split('_')[1]}"

    async def entries(self) -> list[AuditEntry]:
        await self.engine.audit.close()
        found: list[AuditEntry] = []
        token: str | None = None
        while True:
            page = await self.engine.audit.list(AuditFilter(), page_size=100, page_token=token)
            found += [entry for entry in page.items if entry.actor == self.actor]
            if page.next is None:
                return found
            token = page.next


@asynccontextmanager
async def ports(namespace: str | None) -> AsyncIterator[Ports]:
    async with engine_on("memory://") as engine:
        await engine.namespaces.create("team")
        gate = Gate(engine.keys, engine.namespaces, audit=engine.audit)
        made = await engine.keys.create(name="k", role=Role.ADMIN, namespace=namespace, actor="test")
        pages = make_pages(read_only=False, session_seconds=3600.0, codec=None)
        http = HttpPort(engine, gate=gate, audit=engine.audit, ready=lambda: True, pages=pages)
        await http.start()
        async with RpcServer(engine, guard=GateGuard(gate, engine.audit, IDS)) as rpc:
            try:
                yield Ports(engine, http, rpc, made.text)
            finally:
                await http.stop(grace=0.0)
                await gate.close()


async def _code(channel: grpc.aio.Channel, method: Method, given: dict[str, Any], key: str) -> str:
    call: Any = channel.unary_unary(method.path)
    data, metadata = method.request(**given).SerializeToString(), (("authorization", f"Bearer {key}"),)
    try:
        await call(data, metadata=metadata, timeout=20)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def _as_expected(entry: AuditEntry, target: str) -> bool:
    if target.endswith("*"):
        return entry.target.startswith(target[:-1]) and len(entry.target) > len(target)
    return entry.target == target


def _of_address(path: str) -> str:
    """Returns what the address says that is changed."""
    name = next(name for name in PATH if f"{{{name}}}" in path)
    return f"{name.removesuffix('_id')} {PATH[name]}"


@pytest.mark.parametrize("confined", [True, False])
async def test_every_change_over_http_and_in_the_dashboard_leaves_an_entry(confined: bool) -> None:
    expected = {}
    async with ports("team" if confined else None) as at, httpx.AsyncClient(base_url=at.http.url) as client:
        for route in (*ROUTES, *PAGES):
            rule = ACTIONS.get(route.action)
            if rule is None or not rule.audited or (confined and rule.everywhere):
                continue
            body, target = BODIES.get(route.action) or ({}, _of_address(route.path))
            expected[route.action] = target
            named = not confined and "{namespace}" not in route.path and route.action != "POST /api/v1/namespaces"
            query = urlencode({"namespace": "team"}) if named else ""
            headers = {"authorization": f"Bearer {at.key}"}
            if route in PAGES:
                token = at.http._host.sessions.form_token(None)
                answer = await client.post(
                    f"{route.path.format_map(PATH)}?{query}", data={FORM_TOKEN: token, **body}, headers=headers
                )
            else:
                answer = await client.post(f"{route.path.format_map(PATH)}?{query}", json=body, headers=headers)
            assert answer.status_code not in (401, 403, 415, 500), (route.action, answer.text)
        entries = {entry.action: entry for entry in await at.entries()}
    assert entries.keys() == expected.keys()
    for action, target in expected.items():
        entry = entries[action]
        assert (entry.namespace, entry.actor) == ("team", at.actor), action
        assert _as_expected(entry, target), (action, entry.target)


@pytest.mark.parametrize("confined", [True, False])
async def test_every_change_by_rpc_leaves_an_entry(confined: bool) -> None:
    expected = {}
    async with ports("team" if confined else None) as at, grpc.aio.insecure_channel(at.rpc.target) as channel:
        for method in METHODS.values():
            rule = ACTIONS[method.path]
            if not rule.audited or (confined and rule.everywhere):
                continue
            fields = method.request.DESCRIPTOR.fields_by_name
            named = {name: value for name, value in PATH.items() if name in fields and name != "workflow"}
            given, target = REQUESTS.get(method.rpc) or (named, _of_address("".join(f"{{{name}}}" for name in named)))
            if "namespace" in fields and not confined:
                given = {**given, "namespace": "team"}
            expected[method.path] = target
            assert await _code(channel, method, given, at.key) in _CODES, method.rpc
        entries = {entry.action: entry for entry in await at.entries()}
    assert entries.keys() == expected.keys()
    for action, target in expected.items():
        entry = entries[action]
        assert (entry.namespace, entry.actor) == ("team", at.actor), (action, entry)
        assert _as_expected(entry, target), (action, entry.target, target)

"""What operators ask gets the same answers in process and across the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kagzi.api.admin import RunCount, WorkerFilter
from kagzi.api.engine import ManagedEngine
from kagzi.api.operations import Chunk, CompleteRun, CompleteStep, FailRun, Operation, StartRun
from kagzi.api.schedules import CreateSchedule
from kagzi.api.workers import Poll, Registration
from kagzi.api.workflows import RunFilter
from kagzi.core.failure import Failure
from kagzi.core.page import made_at
from kagzi.core.run import RunStatus
from kagzi.core.schedule import ScheduleCounts
from kagzi.core.worker import WorkerStatus, WorkflowType
from kagzi.core.workflow_report import WorkflowReport
from kagzi.engine.local import LocalEngine
from kagzi.errors import Conflict, InvalidRequest, NamespaceDisabled, NotFound
from kagzi.ids import RandomIds
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.server.server import RpcServer
from kagzi.store import searching
from tests.rpc.support import engine_on

NOBODY = "00000000-0000-4000-8000-000000000009"


class Home:
    """An engine as somebody sees it, and the one behind it."""

    def __init__(self, seen: ManagedEngine, real: LocalEngine) -> None:
        self.seen = seen
        self.real = real
        self.ids = RandomIds(iter(range(1_750_000_000_000_000, 1_760_000_000_000_000, 1000)).__next__)

    async def start(self, workflow_type: str = "w", queue: str = "q", **fields: object) -> str:
        run_id = self.ids.run_id()
        given = {"namespace": "default", "run_id": run_id, "workflow_type": workflow_type, "task_queue": queue}
        await self.seen.workflows.start(StartRun(**(given | fields)))  # type: ignore[arg-type]
        return run_id

    async def register(self, queue: str = "q", namespace: str = "default", **fields: object) -> str:
        worker_id = self.ids.token()
        await self.seen.workers.register(
            Registration(
                worker_id=worker_id,
                namespace=namespace,
                queues=(queue, "more"),
                types=(WorkflowType("w", "1"), WorkflowType("v")),
                hostname="host",
                pid=7,
                version="1.2",
                concurrency=5,
                **fields,  # type: ignore[arg-type]
            )
        )
        return worker_id

    async def complete_one(self, worker_id: str, *operations: Operation) -> None:
        poll = Poll(
            namespace="default",
            worker_id=worker_id,
            queues=("q",),
            types=(WorkflowType("w"),),
            limit=1,
            number=1,
            token=self.ids.token(),
            wait=0,
        )
        (claim,) = (await self.seen.workers.poll(poll)).claims
        await self.seen.workers.commit(
            Chunk(
                namespace="default",
                run_id=claim.run_id,
                token=claim.token,
                operations=operations or (CompleteRun(output=b"1"),),
            )
        )


@pytest.fixture(params=["in process", "grpc"])
async def home(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Home]:
    async with engine_on(url) as real:
        if request.param == "in process":
            yield Home(real, real)
            return
        async with RpcServer(real) as server, RemoteEngine(server.target) as remote:
            yield Home(remote, real)


async def test_workers_are_looked_at_and_drained(home: Home) -> None:
    admin = home.seen.admin
    ids = [await home.register(labels={"zone": "a"}, queue_limit=3, type_limits={"w": 2}) for _ in range(3)]
    other = await home.register("elsewhere")
    await home.register(namespace="tenant")

    worker = await admin.get_worker(ids[0])
    assert worker == await home.real.admin.get_worker(ids[0])
    assert (worker.queues, worker.types) == (("q", "more"), (WorkflowType("w", "1"), WorkflowType("v")))
    assert (worker.labels, worker.queue_limit, worker.type_limits) == ({"zone": "a"}, 3, {"w": 2})

    assert (await admin.drain_worker(ids[1])).status is WorkerStatus.DRAINING
    assert (await admin.drain_worker(ids[1])).status is WorkerStatus.DRAINING
    await home.seen.workers.deregister(ids[2])
    assert (await admin.drain_worker(ids[2])).status is WorkerStatus.OFFLINE
    for ask in (admin.get_worker, admin.drain_worker):
        with pytest.raises(NotFound):
            await ask(NOBODY)
        with pytest.raises(InvalidRequest):
            await ask("nobody")

    first = await admin.list_workers(WorkerFilter(), page_size=3)
    rest = await admin.list_workers(WorkerFilter(), page_size=3, page_token=first.next)
    assert [worker.worker_id for worker in (*first.items, *rest.items)] == [other, *ids[::-1]]
    assert rest.next is None
    draining = WorkerFilter(task_queue="q", status=WorkerStatus.DRAINING)
    assert [worker.worker_id for worker in (await admin.list_workers(draining)).items] == [ids[1]]
    assert (await admin.list_workers(WorkerFilter(task_queue="nowhere"))).items == ()
    for size in (0, -1, 101):
        with pytest.raises(InvalidRequest, match="page size"):
            await admin.list_workers(WorkerFilter(), page_size=size)
    with pytest.raises(InvalidRequest, match="page token"):
        await admin.list_workers(WorkerFilter(task_queue="q"), page_token=first.next)

    here = {WorkerStatus.ONLINE: 2, WorkerStatus.DRAINING: 1, WorkerStatus.OFFLINE: 1}
    assert await admin.count_workers("default") == here
    assert await admin.count_workers(None) == here | {WorkerStatus.ONLINE: 3}
    assert await admin.count_workers("nowhere") == {}


async def test_runs_are_counted(home: Home) -> None:
    admin = home.seen.admin
    worker_id = await home.register()
    for _ in range(2):
        await home.start()
    await home.complete_one(worker_id)
    await home.start("v", "slow", delay=10_000_000)
    await home.start(namespace="tenant")
    live = {RunCount("w", "q", RunStatus.PENDING, 1), RunCount("v", "slow", RunStatus.PENDING, 1)}

    assert set(await admin.count_runs("default", live=True)) == live
    assert set(await admin.count_runs("default")) == live | {RunCount("w", "q", RunStatus.COMPLETED, 1)}
    assert RunCount("w", "q", RunStatus.PENDING, 2) in await admin.count_runs(None, live=True)
    assert await admin.count_runs("nowhere") == ()
    assert await admin.count_runs("default", created_before=1_000_000) == ()
    with pytest.raises(InvalidRequest):
        await admin.count_runs("\0")


async def test_schedules_are_counted(home: Home) -> None:
    schedules, admin = home.seen.schedules, home.seen.admin
    for enabled in (True, False):
        create = CreateSchedule(
            namespace="default",
            schedule_id=home.real._ids.run_id(),
            workflow_type="w",
            task_queue="q",
            cron_expr="@daily",
            enabled=enabled,
        )
        await schedules.create(create)
    await schedules.trigger("default", create.schedule_id, home.real._ids.run_id())
    await home.complete_one(await home.register())
    for namespace in ("default", None):
        assert await admin.count_schedules(namespace) == ScheduleCounts(2, 1, 1, 1, 0, 0)
    assert await admin.count_schedules("nowhere") == ScheduleCounts(0, 0, 0, 0, 0, 0)
    with pytest.raises(InvalidRequest):
        await admin.count_schedules("\0")


async def test_exact_statuses_are_listed(home: Home) -> None:
    list_runs = home.seen.workflows.list
    expired = await home.start(timeout=1)
    await home.real.workflows.wait("default", expired, 10_000_000)
    timed_out = await list_runs(RunFilter(status=RunStatus.TIMED_OUT))
    assert [run.run_id for run in timed_out.items] == [expired]
    assert (await list_runs(RunFilter(status=RunStatus.FAILED))).items == ()
    either = RunFilter(status=RunStatus.FAILED, or_status=RunStatus.TIMED_OUT)
    assert [run.run_id for run in (await list_runs(either)).items] == [expired]


async def test_a_search_says_how_far_it_came(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "BITES", (1,))
    rare = await home.start("rare")
    passed = await home.start()
    page = await home.seen.workflows.list(RunFilter(workflow_type="rare"))
    assert (page.items, page.searched_until) == ((), made_at(passed))
    page = await home.seen.workflows.list(RunFilter(workflow_type="rare"), page_token=page.next)
    assert [run.run_id for run in page.items] == [rare]


async def test_namespaces_are_managed(home: Home) -> None:
    namespaces = home.seen.namespaces
    made = await namespaces.create("team", description="Ours")
    assert (made.namespace, made.display_name, made.description, made.enabled) == ("team", "team", "Ours", True)
    assert await namespaces.get("team") == made == await home.real.namespaces.get("team")
    with pytest.raises(Conflict):
        await namespaces.create("team")
    with pytest.raises(NotFound):
        await namespaces.get("nobody")
    with pytest.raises(NotFound):
        await namespaces.enable("nobody", False)
    with pytest.raises(InvalidRequest):
        await namespaces.create("\0")

    changed = await namespaces.update("team", display_name="The team")
    assert (changed.display_name, changed.description) == ("The team", "Ours")
    assert not (await namespaces.enable("team", False)).enabled
    with pytest.raises(NamespaceDisabled):
        await home.start(namespace="team")
    assert (await namespaces.enable("team", True)).enabled
    await home.start(namespace="team")

    first = await namespaces.list(page_size=1)
    rest = await namespaces.list(page_token=first.next)
    assert [namespace.namespace for namespace in (*first.items, *rest.items)] == ["default", "team"]
    with pytest.raises(InvalidRequest, match="page size"):
        await namespaces.list(page_size=0)


async def test_how_a_workflow_does(home: Home) -> None:
    failure = Failure("app.Declined", "no money", traceback='  File "/shop/bank.py", line 7, in charge').encode()
    worker_id = await home.register()
    for end in (CompleteRun(output=b"1"), FailRun(error=failure)):
        await home.start()
        at = 1_700_000_000_000_000
        step = CompleteStep(step_id="charge", completed_seq=1, started_at=at, finished_at=at + 1000, output=b"1")
        await home.complete_one(worker_id, step, end)
    await home.start()
    report = await home.seen.versions.report("default", "w")
    assert report == await home.real.versions.report("default", "w")
    assert (report.runs, report.completed, report.failed, report.whole) == (3, 1, 1, True)
    assert [(each.error, each.place, each.count) for each in report.failures] == [
        ("app.Declined", "shop/bank.py:7 in charge", 1)
    ]
    assert [(each.name, each.attempts) for each in report.steps] == [("charge", 2)]
    assert sum(each.ended for each in report.slices) == 2
    assert (await home.seen.versions.report("default")).runs == 3
    assert (await home.seen.versions.report("default", "none")) == WorkflowReport(
        workflow_type="none", runs=0, whole=True
    )

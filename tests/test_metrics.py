"""What is counted, under which names, and what it costs the database to be asked."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import kagzi
from kagzi import Kagzi, Retry, WorkflowFailed
from kagzi.api.operations import CancelRun, ChunkAnswer, CompleteStep, StartRun, TerminateRun
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.core.load import Load, WorkerLoad
from kagzi.core.step import StepKind
from kagzi.core.worker import WorkerStatus
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Conflict, InvalidRequest, Unavailable
from kagzi.metrics.counters import MOST_NAMES, MOST_NAMESPACES, Counts, Histogram, Histograms, Metrics
from kagzi.metrics.exposition import DEFINITIONS, Values, render
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.server.server import RpcServer
from kagzi.store.sqlite.statements import SQL, unnumbered
from tests.engine.support import (
    chunk,
    claim_one,
    complete,
    completed_step,
    count_calls,
    database_now,
    fail,
    new_engine,
    new_poll,
    new_registration,
    new_start,
    park,
    run,
)
from tests.rpc.support import Client

ORDER = {"namespace": "default", "workflow": "order"}


class Scraped:
    """What was exposed, by name and labels."""

    def __init__(self, values: Values) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(values)
        self._registry = registry

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(name, labels)


async def scrape(engine: LocalEngine) -> Scraped:
    return Scraped(Values(engine.metrics, await engine.load()))


def test_a_histogram_counts_what_lies_between_its_bounds() -> None:
    histogram = Histogram((10, 20, 30))
    for value in (-5, 0, 10, 11, 20, 31, 10**9):
        histogram.observe(value)
    assert histogram.counts == [3, 2, 0, 2]
    assert histogram.total == 10 + 11 + 20 + 31 + 10**9


def test_methods_that_callers_make_up_are_one() -> None:
    metrics = Metrics()
    for method in ("GET", "HACK", "PWN"):
        metrics.http_answered(method, "/livez", 405, 0.001)
    assert metrics.http_requests == {("GET", "/livez", "405"): 1, ("other", "/livez", "405"): 2}
    assert set(metrics.http_seconds) == {("GET", "/livez"), ("other", "/livez")}


def test_names_are_bounded() -> None:
    counts, histograms = Counts(free=2), Histograms((1,), free=2)
    for number in range(MOST_NAMES + 50):
        for status in ("completed", "failed"):
            counts.add(("default", f"flow{number}", status))
            histograms["default", f"flow{number}", status].observe(number)
    counts.add(("default", "flow3", "completed"), 4)
    assert len(counts) == len(histograms) == 2 * MOST_NAMES + 2
    assert counts["default", "other", "failed"] == 50
    assert counts["default", "flow3", "completed"] == 5
    assert sum(histograms["default", "other", "completed"].counts) == 50
    assert sum(counts.values()) == 2 * (MOST_NAMES + 50) + 4


def test_names_that_one_namespace_makes_up_leave_those_of_others() -> None:
    counts, expired = Counts(free=3), Counts(free=1)
    for number in range(MOST_NAMES + 50):
        counts.add(("loud", f"flow{number}", "step", "completed"))
    counts.add(("quiet", "flow", "step", "completed"))
    assert counts["quiet", "flow", "step", "completed"] == 1
    assert counts["loud", "other", "other", "completed"] == 50
    for number in range(MOST_NAMESPACES + 50):
        counts.add((f"namespace {number}", "flow", "step", "failed"))
        expired.add((f"namespace {number}",))
    assert counts["other", "other", "other", "failed"] == 52  # two had been there before
    assert expired["other",] == 50


def test_runs_and_steps_are_counted_when_they_are_committed() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            begun = database_now()
            await asyncio.sleep(3)
            step = completed_step(1, step_id="charge#2", started_at=begun, finished_at=begun + 2 * SECOND)
            await engine.workers.commit(chunk(claim, step))
            await asyncio.sleep(4)
            await engine.workers.commit(chunk(claim, complete()))
            seen = await scrape(engine)

            assert seen("kagzi_runs_started_total", **ORDER) == 1
            assert seen("kagzi_runs_total", **ORDER, status="completed") == 1
            assert seen("kagzi_run_duration_seconds_count", **ORDER) == 1
            assert seen("kagzi_run_duration_seconds_sum", **ORDER) == pytest.approx(7, abs=0.01)
            assert seen("kagzi_run_duration_seconds_bucket", **ORDER, le="5") == 0
            assert seen("kagzi_run_duration_seconds_bucket", **ORDER, le="10") == 1
            charge = {**ORDER, "step": "charge", "status": "completed"}
            assert seen("kagzi_step_duration_seconds_sum", **charge) == 2
            assert seen("kagzi_step_duration_seconds_bucket", **charge, le="1") == 0
            assert seen("kagzi_step_duration_seconds_bucket", **charge, le="2.5") == 1
            assert seen("kagzi_step_duration_seconds_bucket", **charge, le="+Inf") == 1

    run(main)


def test_a_commit_under_a_lost_lease_counts_nothing_and_a_repeated_end_counts_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            stranger = chunk(claim, completed_step(), fail())
            stranger = type(stranger)(
                namespace=claim.namespace, run_id=claim.run_id, token="0" * 32, operations=stranger.operations
            )
            await engine.workers.commit(stranger)
            for _ in range(3):
                await engine.workers.commit(chunk(claim, completed_step(), complete()))
            seen = await scrape(engine)

            assert seen("kagzi_runs_total", **ORDER, status="failed") == 0
            assert seen("kagzi_runs_total", **ORDER, status="completed") == 1
            step = {**ORDER, "step": "step1", "status": "completed"}
            assert seen("kagzi_step_duration_seconds_count", **step) == 1

    run(main)


def test_a_start_that_is_refused_counts_nothing() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            start = new_start(engine)
            await engine.workflows.start(start)
            with pytest.raises(Conflict):
                await engine.workflows.start(replace(start, workflow_type="refund"))
            seen = await scrape(engine)

            assert seen("kagzi_runs_started_total", **ORDER) == 1
            assert seen("kagzi_runs_started_total", namespace="default", workflow="refund") is None

    run(main)


def test_a_step_beside_a_parking_that_was_refused_is_counted() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            await engine.workflows.cancel(CancelRun(namespace="default", run_id=claim.run_id))
            assert await engine.workers.commit(chunk(claim, completed_step(), park(60))) is ChunkAnswer.NEWS
            step = {**ORDER, "step": "step1", "status": "completed"}
            assert (await scrape(engine))("kagzi_step_duration_seconds_count", **step) == 1

    run(main)


def test_an_end_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kagzi.engine.counting._MOST_ENDED", 4)

    async def main() -> None:
        async with new_engine() as engine:
            first = await engine.workflows.start(new_start(engine))
            for started in (first, await engine.workflows.start(new_start(engine))):
                await engine.workflows.cancel(CancelRun(namespace="default", run_id=started.run_id))
            await engine.workflows.start(new_start(engine))  # by now they are among the older half
            await engine.workflows.cancel(CancelRun(namespace="default", run_id=first.run_id))
            assert (await scrape(engine))("kagzi_runs_total", **ORDER, status="cancelled") == 2

    run(main)


def test_workers_that_are_gone_have_no_slots() -> None:
    workers = tuple([WorkerLoad(namespace="a", status=status, workers=1, slots=10) for status in WorkerStatus])
    families = Values(Metrics(), Load(now=0, queues=(), workers=workers, running={"a": 3})).collect()
    (slots,) = [family for family in families if family.name == "kagzi_worker_slots"]
    assert {sample.labels["state"]: sample.value for sample in slots.samples} == {"used": 3, "free": 17}


def test_runs_claimed_through_another_process_are_counted_under_their_name() -> None:
    """A worker goes on with its lease after its server was replaced."""

    async def main() -> None:
        async with new_engine() as engine, new_engine(engine.store.sibling()) as replaced:  # type: ignore[arg-type]
            await replaced.workflows.start(new_start(replaced))
            claim = await claim_one(replaced)
            await asyncio.sleep(9)
            large = completed_step(1, output=b"x" * 100_000)
            await engine.workers.commit(chunk(claim, large))
            for _ in range(2):
                await engine.workers.commit(chunk(claim, complete()))
            assert all(len(repr(late)) < 1000 for late in engine._opened._counting._aside)
            seen = await scrape(engine)

            assert seen("kagzi_runs_total", **ORDER, status="completed") == 1
            assert seen("kagzi_run_duration_seconds_sum", **ORDER) == pytest.approx(9, abs=0.01)
            step = {**ORDER, "step": "step1", "status": "completed"}
            assert seen("kagzi_step_duration_seconds_count", **step) == 1
            assert (await scrape(engine))("kagzi_runs_total", **ORDER, status="completed") == 1

    run(main)


def test_ends_without_a_commit_are_counted_once() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            overdue = await engine.workflows.start(new_start(engine, timeout=5 * SECOND))
            unbegun = await engine.workflows.start(new_start(engine, workflow_type="other"))
            doomed = await engine.workflows.start(new_start(engine, workflow_type="other"))
            await asyncio.sleep(8)
            for _ in range(3):
                await engine.workflows.cancel(CancelRun(namespace="default", run_id=unbegun.run_id))
                await engine.workflows.terminate(TerminateRun(namespace="default", run_id=doomed.run_id))
            seen = await scrape(engine)

            assert seen("kagzi_runs_total", **ORDER, status="timed_out") == 1
            other_flow = {"namespace": "default", "workflow": "other"}
            assert seen("kagzi_runs_total", **other_flow, status="cancelled") == 2
            # They never began, so they took no time.
            assert seen("kagzi_run_duration_seconds_count", **ORDER) is None
            assert overdue.run_id != unbegun.run_id
            # Another process is asked to cancel what ended long ago: it has nothing to count.
            await asyncio.sleep(300)
            await other.workflows.cancel(CancelRun(namespace="default", run_id=unbegun.run_id))
            assert (await scrape(other))("kagzi_runs_total", **other_flow, status="cancelled") is None

    run(main)


def test_what_waits_to_be_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kagzi.engine.counting._MOST_ASIDE", 2)

    async def main() -> None:
        async with new_engine() as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            for _ in range(3):
                await other.workflows.start(new_start(other))
            for claim in (await other.workers.poll(new_poll())).claims:
                await engine.workers.commit(chunk(claim, complete()))
            seen = await scrape(engine)
            assert seen("kagzi_runs_total", **ORDER, status="completed") == 2
            assert seen("kagzi_runs_total", namespace="default", workflow="unknown", status="completed") == 1

    run(main)


def test_what_could_not_be_looked_up_is_counted_later() -> None:
    async def main() -> None:
        async with new_engine() as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            await other.workflows.start(new_start(other))
            await engine.workers.commit(chunk(await claim_one(other), complete()))
            facts_of = engine.store.runs.facts_of

            async def down(*_: object) -> None:
                raise Unavailable("no database")

            engine.store.runs.facts_of = down  # type: ignore[assignment,method-assign]
            assert (await scrape(engine))("kagzi_runs_total", **ORDER, status="completed") is None
            engine.store.runs.facts_of = facts_of  # type: ignore[method-assign]
            await asyncio.sleep(10)
            assert (await scrape(engine))("kagzi_runs_total", **ORDER, status="completed") == 1

    run(main)


def test_expired_leases() -> None:
    async def main() -> None:
        settings = EngineSettings(lease=5 * SECOND, max_crashes=2)
        async with new_engine(coordinate=True, settings=settings) as engine:
            await engine.workflows.start(new_start(engine))
            await claim_one(engine)
            await claim_one(engine, 2)  # returns when the first lease has ended
            await asyncio.sleep(30)
            seen = await scrape(engine)
            assert seen("kagzi_leases_expired_total", namespace="default") == 2
            assert seen("kagzi_runs_total", **ORDER, status="failed") == 1

    run(main)


def test_queues_workers_and_slots() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.register(new_registration())
            for _ in range(3):
                await engine.workflows.start(new_start(engine))
            await engine.workflows.start(new_start(engine, task_queue="asleep", delay=3600 * SECOND))
            await claim_one(engine, limit=1)
            await asyncio.sleep(20)
            seen = await scrape(engine)

            assert seen("kagzi_queue_ready_runs", namespace="default", queue="shop") == 2
            age = seen("kagzi_queue_oldest_age_seconds", namespace="default", queue="shop")
            assert age == pytest.approx(20, abs=0.01)
            assert seen("kagzi_queue_ready_runs", namespace="default", queue="asleep") == 0
            assert seen("kagzi_queue_oldest_age_seconds", namespace="default", queue="asleep") == 0
            assert seen("kagzi_workers", namespace="default", status="online") == 1
            assert seen("kagzi_worker_slots", namespace="default", state="used") == 1
            assert seen("kagzi_worker_slots", namespace="default", state="free") == 9
            assert seen("kagzi_store_up") == 1

    run(main)


def test_a_namespace_without_workers_is_told_from_one_that_never_had_any() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            seen = await scrape(engine)
            assert seen("kagzi_workers", namespace="default", status="online") is None
            registration = new_registration()
            await engine.workers.register(registration)
            await asyncio.sleep(5)  # what was read before is too old now
            seen = await scrape(engine)
            assert seen("kagzi_workers", namespace="default", status="offline") == 0
            await engine.workers.deregister(registration.worker_id)
            await asyncio.sleep(5)
            seen = await scrape(engine)
            # An alert compares with 0 what is there: a series that is missing raises none.
            assert seen("kagzi_workers", namespace="default", status="online") == 0
            assert seen("kagzi_workers", namespace="default", status="draining") == 0
            assert seen("kagzi_workers", namespace="default", status="offline") == 1

    run(main)


def test_asking_often_asks_the_database_seldom() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            for _ in range(100):
                await asyncio.gather(*(engine.load() for _ in range(10)))
                await asyncio.sleep(0.1)
            assert 4 <= calls["overview.load"] <= 5
            assert calls["runs.facts_of"] == 0

            slow = engine.store.overview.load

            async def slower(*asked: object) -> Load:
                await asyncio.sleep(1)
                return await slow(*asked)  # type: ignore[arg-type]

            engine.store.overview.load = slower  # type: ignore[method-assign]
            calls.clear()
            for _ in range(400):
                await engine.load()
                await asyncio.sleep(0.1)
            assert calls["overview.load"] <= 3

    run(main)


def test_a_database_that_does_not_answer_leaves_gauges_out() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))

            async def down(*_: object) -> Load:
                raise Unavailable("no database")

            engine.store.overview.load = down  # type: ignore[method-assign]
            seen = await scrape(engine)
            assert seen("kagzi_store_up") == 0
            assert seen("kagzi_queue_ready_runs", namespace="default", queue="shop") is None
            assert seen("kagzi_runs_started_total", **ORDER) == 1
            assert seen("kagzi_store_errors_total", op="overview.load", code=Unavailable.code) == 1

    run(main)


def test_batches_and_the_time_the_database_takes() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await asyncio.gather(*(engine.workflows.start(new_start(engine)) for _ in range(5)))
            seen = await scrape(engine)
            assert seen("kagzi_batch_size_count") == 1
            assert seen("kagzi_batch_size_sum") == 5
            assert seen("kagzi_batch_size_bucket", le="4") == 0
            assert seen("kagzi_batch_size_bucket", le="8") == 1
            assert seen("kagzi_store_seconds_count", op="apply") == 1
            assert seen("kagzi_store_seconds_count", op="overview.load") == 1

    run(main)


def shop(url: str) -> Kagzi:
    app = Kagzi(url)

    @app.step(retry=Retry(attempts=3, first="1ms", cap="1ms"))
    async def charge(fails: int) -> int:
        if kagzi.attempt() <= fails:
            raise ConnectionError("down")
        return 1

    @app.workflow
    async def checkout(fails: int) -> int:
        return await charge(fails)

    @app.workflow(retry=Retry(attempts=2, first="1ms", cap="1ms"))
    async def stubborn() -> None:
        raise ValueError("no")

    return app


@pytest.fixture(params=["sqlite", "sqlite-grpc", pytest.param("postgres-grpc", marks=pytest.mark.postgres)])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, bool]:
    database, _, wire = request.param.partition("-")
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    return (url if database == "sqlite" else request.getfixturevalue("postgres_database")), bool(wire)


async def test_the_same_counts_in_process_and_behind_a_server(home: tuple[str, bool]) -> None:
    url, wire = home
    engine = connect(url)
    assert isinstance(engine, LocalEngine)
    async with engine, RpcServer(engine) as server:
        app = shop(f"grpc://{server.target}" if wire else url)
        if wire:
            await app.open()
        else:
            await app.open(engine)
        async with app.worker():
            checkout, stubborn = app.find_workflow("checkout", "1"), app.find_workflow("stubborn", "1")
            assert checkout is not None
            assert stubborn is not None
            await asyncio.gather(*[checkout.run(0) for _ in range(5)])
            await checkout.run(2)
            with pytest.raises(WorkflowFailed):
                await checkout.run(9)
            with pytest.raises(WorkflowFailed):
                await stubborn.run()
        await app.close()
        body, content_type = await render(engine)

    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }

    def seen(name: str, **labels: str) -> float | None:
        return samples.get((name, tuple(sorted({"namespace": "default", **labels}.items()))))

    assert seen("kagzi_runs_started_total", workflow="checkout") == 7
    assert seen("kagzi_runs_total", workflow="checkout", status="completed") == 6
    assert seen("kagzi_runs_total", workflow="checkout", status="failed") == 1
    assert seen("kagzi_runs_total", workflow="stubborn", status="failed") == 1
    assert seen("kagzi_run_retries_total", workflow="stubborn") == 1
    assert seen("kagzi_run_duration_seconds_count", workflow="checkout") == 7
    assert seen("kagzi_step_retries_total", workflow="checkout", step="charge") == 4
    steps = {"workflow": "checkout", "step": "charge"}
    assert seen("kagzi_step_duration_seconds_count", **steps, status="completed") == 6
    assert seen("kagzi_step_duration_seconds_count", **steps, status="failed") == 5
    assert seen("kagzi_workers", status="offline") == 1
    if wire:
        calls = samples["kagzi_rpc_requests_total", (("code", "OK"), ("method", "CommitBatch"))]
        assert calls >= 1
        assert samples["kagzi_rpc_seconds_count", (("method", "CommitBatch"),)] == calls


async def test_refused_calls_are_counted_by_their_code() -> None:
    async with connect("memory://") as engine, RpcServer(engine) as server:  # type: ignore[attr-defined]
        async with Client(server.target) as client:
            with pytest.raises(Exception, match="no run"):
                await client.get("0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44")
        seen = Scraped(Values(engine.metrics, await engine.load()))
        assert seen("kagzi_rpc_requests_total", method="GetWorkflow", code="NOT_FOUND") == 1


async def test_calls_whose_callers_went_away_are_counted_as_such() -> None:
    async with connect("memory://") as engine, RpcServer(engine) as server:  # type: ignore[attr-defined]
        async with Client(server.target) as client:
            await client.register("order")
            poll = asyncio.ensure_future(client.poll("order", timeout=60))
            await asyncio.sleep(0.2)
            poll.cancel()
            async with asyncio.timeout(10):
                while ("PollTask", "CANCELLED") not in engine.metrics.rpc_requests:
                    await asyncio.sleep(0.02)


async def test_workers_in_the_field_are_counted_too() -> None:
    async with connect("memory://") as engine, RpcServer(engine) as server:  # type: ignore[attr-defined]
        async with Client(server.target) as client:
            await client.register("order")
            await client.start("order")
            task = await client.poll("order")
            step = await client.begin(task.run_id, "charge")
            await client.complete(task.run_id, step.step_id, b"2")
            await client.complete_workflow(task.run_id, b"3")
        seen = Scraped(Values(engine.metrics, await engine.load()))
        assert seen("kagzi_runs_total", **ORDER, status="completed") == 1
        step_labels = {**ORDER, "step": "charge", "status": "completed"}
        assert seen("kagzi_step_duration_seconds_count", **step_labels) == 1


async def test_an_app_shows_its_own_and_sends_those_of_a_server_there(monkeypatch: pytest.MonkeyPatch) -> None:
    app = shop("memory://")
    async with app, app.worker():
        checkout = app.find_workflow("checkout", "1")
        assert checkout is not None
        await checkout.run(0)
        body, content_type = await app.metrics()
    assert b'kagzi_runs_total{namespace="default",status="completed",workflow="checkout"} 1.0' in body
    assert "version=" in content_type
    remote = shop("grpc://127.0.0.1:1")
    monkeypatch.setattr(type(remote), "engine", property(lambda _: RemoteEngine("127.0.0.1:1")))
    with pytest.raises(InvalidRequest, match="/metrics there"):
        await remote.metrics()
    await remote.close()


def test_every_definition_is_exposed_and_nothing_else() -> None:
    load = Load(now=0, queues=(), workers=(), running={})
    families = {family.name: family for family in Values(Metrics(), load).collect()}
    assert {name + ("_total" if family.type == "counter" else "") for name, family in families.items()} == {
        definition.name for definition in DEFINITIONS
    }
    for definition in DEFINITIONS:
        family = families[definition.name.removesuffix("_total")]
        assert family.type == definition.kind
        assert family.documentation.endswith(".")


def test_a_step_operation_of_every_kind_is_counted_as_such() -> None:
    """Timers and cancellations are rows of the same table, and no steps."""

    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            tick = completed_step(1, step_id="@sleep", kind=StepKind.SLEEP)
            assert isinstance(tick, CompleteStep)
            await engine.workers.commit(chunk(claim, tick))
            assert not engine.metrics.step_seconds

    run(main)


def test_a_start_that_finds_its_run_is_not_counted() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            for _ in range(3):
                start: StartRun = new_start(engine, external_id="order-1")
                await engine.workflows.start(start)
            assert engine.metrics.runs_started == {("default", "order"): 1}

    run(main)


PAGE = (Path(__file__).parents[1] / "docs" / "observability.md").read_text()


def test_the_documentation_lists_every_metric() -> None:
    documented = {
        name: (kind.strip(" ¹"), tuple(re.findall(r"\w+", labels)))
        for name, kind, labels in re.findall(r"^\| `(kagzi_\w+)` \| ([^|]+) \| ([^|]*)\|", PAGE, re.MULTILINE)
    }
    assert documented == {each.name: (each.kind, each.labels) for each in DEFINITIONS}


def test_alerts_name_metrics_and_labels_that_exist() -> None:
    alerts = PAGE.partition("groups:")[2].partition("```")[0]
    labels = {each.name: set(each.labels) for each in DEFINITIONS}
    labels |= {f"{each.name}_bucket": {*each.labels, "le"} for each in DEFINITIONS if each.kind == "histogram"}
    named = re.findall(r"\b(kagzi_\w+)(?:\{(\w+)=)?", alerts)
    assert len(named) >= 10
    for metric, label in named:
        assert metric in labels
        assert not label or label in labels[metric], (metric, label)
    for by, metric in re.findall(r"by \(([\w, ]+)\) \((?:\w+\()*(kagzi_\w+)", alerts):
        assert {each.strip() for each in by.split(",")} <= labels[metric], (by, metric)


def test_gauges_of_sqlite_do_not_look_at_what_sleeps() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            plans = await engine.store._database.read(explain)  # type: ignore[attr-defined]
            for name, plan in plans.items():
                assert "workflow_runs_leased" in plan if name == "running_loads" else "workflow_runs_claim" in plan
                assert "TEMP B-TREE" not in plan or name == "running_loads"
            assert "task_queue>?" in plans["next_queue"]
            assert "namespace>?" in plans["first_queue_after"]
            assert "claim_key<?" in plans["queue_load"]

    run(main)


def explain(connection: sqlite3.Connection) -> dict[str, str]:
    plans = {}
    for name, values in (
        ("next_queue", ("a", "b")),
        ("first_queue_after", ("a",)),
        ("queue_load", ("a", "b", 1, 1, "a", "b", 1)),
        ("running_loads", (1,)),
    ):
        statement, _ = unnumbered(SQL[name])
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
        plans[name] = "\n".join(row[3] for row in rows)
    return plans

"""The stream of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from kagzi.api.operations import CompleteRun, CompleteStep, ParkRun
from kagzi.engine import events as engine_events
from kagzi.engine.local import LocalEngine
from kagzi.http import events as module
from kagzi.http import limits
from tests.engine.test_events import Worker
from tests.http.support import DOCUMENT, Client, _valid, engine_on, serving, until_waited_for

SCHEMAS = {"run": "RunEvent", "schedule": "ScheduleEvent", "queue": "QueueEvent", "resync": "ResyncEvent"}


class Reader:
    """Reads events as a browser does, and checks them against the document."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        self._lines = response.aiter_lines()
        self.comments = 0

    async def line(self) -> str:
        async for line in self._lines:
            self.comments += line.startswith(":")
            return line
        raise EOFError

    async def next(self, *wanted: str) -> tuple[str, str, Any]:
        """The next event of these kinds: id, kind, data."""
        async with asyncio.timeout(60):
            while True:
                fields: dict[str, str] = {}
                while line := await self.line():
                    name, _, value = line.partition(":")
                    fields[name] = value.strip()
                if "event" in fields:
                    data = json.loads(fields["data"])
                    _valid(data, f"#/components/schemas/{SCHEMAS[fields['event']]}")
                    if not wanted or fields["event"] in wanted:
                        return fields["id"], fields["event"], data


@asynccontextmanager
async def reading(client: Client, headers: dict[str, str] | None = None, **query: str) -> AsyncIterator[Reader]:
    async with client.http.stream("GET", "/api/v1/events", params=query, headers=headers) as response:
        yield Reader(response)


def test_the_events_are_in_the_document() -> None:
    assert set(SCHEMAS.values()) <= DOCUMENT["components"]["schemas"].keys()


async def test_the_life_of_a_run(client: Client, engine: LocalEngine) -> None:
    async with reading(client) as reader:
        run_id = (await client.post("/api/v1/runs", {"workflow": "ship", "queue": "shop"}, status=201))["run_id"]
        async with reading(client, run_id=run_id) as close_up:
            worker = Worker(engine)
            claim = await worker.claim()
            await worker.commit(
                claim, CompleteStep(step_id="a", completed_seq=1, started_at=1, finished_at=2, output=b"1")
            )
            await worker.commit(claim, ParkRun(available_at=0, inbox_seq=0))
            await worker.commit(await worker.claim(), CompleteRun(output=b"null"))
            seen = [(await reader.next("run"))[2] for _ in range(5)]
            assert [(each["change"], each["status"]) for each in seen] == [
                ("started", "PENDING"),
                ("claimed", "RUNNING"),
                ("parked", "SLEEPING"),
                ("claimed", "RUNNING"),
                ("finished", "COMPLETED"),
            ]
            assert {(each["run_id"], each["workflow"], each["queue"]) for each in seen} == {(run_id, "ship", "shop")}
            near = [(await close_up.next("run"))[2]["change"] for _ in range(5)]
            assert near == ["claimed", "progressed", "parked", "claimed", "finished"]


async def test_the_life_of_a_schedule(quick: Client) -> None:
    async with reading(quick) as reader:
        body = {"name": "nightly", "workflow": "w", "cron": "@daily"}
        schedule_id = (await quick.post("/api/v1/schedules", body, status=201))["schedule_id"]
        path = f"/api/v1/schedules/{schedule_id}"
        await quick.post(path, {"cron": "@hourly"})
        await quick.post(f"{path}/pause", {"reason": "inventory"})
        await quick.post(f"{path}/resume")
        await quick.post(f"{path}/backfill", {"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T05:00:00Z"})
        await quick.post(f"{path}/delete")
        told = [await reader.next("run", "schedule") for _ in range(11)]
    assert [data["workflow"] for _, kind, data in told if kind == "run"] == 5 * ["w"]
    assert [(data["schedule_id"], data["change"], data["count"]) for _, kind, data in told if kind == "schedule"] == [
        (schedule_id, "created", None),
        (schedule_id, "updated", None),
        (schedule_id, "paused", None),
        (schedule_id, "resumed", None),
        (schedule_id, "fired", 5),
        (schedule_id, "deleted", None),
    ]


async def test_other_namespaces_are_not_told_of(quick: Client) -> None:
    async with reading(quick, namespace="shop") as reader:
        await quick.post("/api/v1/runs", {"workflow": "secret"}, status=201)
        await quick.post("/api/v1/runs?namespace=shop", {"workflow": "w"}, status=201)
        assert (await reader.next("run"))[2]["workflow"] == "w"


async def test_a_run_of_another_namespace_is_not_there(quick: Client) -> None:
    run_id = (await quick.post("/api/v1/runs", {"workflow": "w", "id": "mine"}, status=201))["run_id"]
    async with reading(quick, run_id="mine") as reader:
        await quick.post(f"/api/v1/runs/{run_id}/cancel")
        assert (await reader.next("run"))[2]["run_id"] == run_id
    for query in ({"run_id": run_id, "namespace": "shop"}, {"run_id": "01900000-0000-7000-8000-000000000000"}):
        assert (await quick.problem("GET", "/api/v1/events", params=query))[0] == 404
    assert (await quick.problem("GET", "/api/v1/events", params={"run_id": "x"}))[0] == 404


async def test_a_reader_that_comes_back_is_told_what_it_missed(quick: Client) -> None:
    async with reading(quick) as reader:
        await quick.post("/api/v1/runs", {"workflow": "first"}, status=201)
        last, _, data = await reader.next("run")
        assert data["workflow"] == "first"
    await quick.post("/api/v1/runs", {"workflow": "second"}, status=201)
    async with reading(quick, {"Last-Event-ID": last}) as reader:
        assert (await reader.next("run", "resync"))[2]["workflow"] == "second"
    for unknown in ("nonsense", "7"):
        async with reading(quick, {"Last-Event-ID": unknown}) as reader:
            assert (await reader.next())[1] == "resync"
    too_long = {"Last-Event-ID": "x" * 1000}
    assert (await quick.problem("GET", "/api/v1/events", headers=too_long))[1]["field"] == "Last-Event-ID"


async def test_heartbeats(quick: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.02)
    async with reading(quick) as reader:
        async with asyncio.timeout(60):
            while reader.comments < 2:
                await reader.line()
        await quick.post("/api/v1/runs", {"workflow": "w"}, status=201)
        await reader.next("run")


async def test_a_reader_that_has_gone_is_forgotten(quick: Client, memory: LocalEngine) -> None:
    async with reading(quick):
        assert len(memory.events._readers) == 1
    async with asyncio.timeout(30):
        while memory.events._readers:
            await asyncio.sleep(0.01)


async def test_a_reader_that_does_not_read(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a bounded buffer, and after a while it is hung up on."""
    monkeypatch.setattr("kagzi.http.streaming.SEND_SECONDS", 0.5)
    async with serving(memory) as port, Client(port.url) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, limit=1024)
        writer.write(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readline()
        async with asyncio.timeout(60):
            while memory.events._readers:
                for _ in range(1000):
                    memory.events.run("default", "x" * 1000, engine_events.Change.STARTED)
                for each in memory.events._readers:
                    assert len(each._waiting) <= engine_events._BUFFER + 1
                await asyncio.sleep(0.01)
        assert await client.get("/livez")
        writer.close()


async def test_streams_end_with_the_server(memory: LocalEngine) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        async with reading(client) as reader:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await port.stop(grace=60.0)
            assert loop.time() - began < 30
            with pytest.raises((EOFError, httpx.RemoteProtocolError)):
                await reader.next("run")
    assert not memory.events._readers


async def test_so_many_streams_and_no_more(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS", 2)
    async with serving(memory) as port, Client(port.url) as client:
        async with reading(client), reading(client):
            status, problem = await client.problem("GET", "/api/v1/events")
            assert (status, problem["code"]) == (429, "LIMIT_EXCEEDED")
            assert await client.get("/api/v1/server")


@pytest.mark.postgres
async def test_a_second_server_tells_of_ends(postgres_database: str) -> None:
    async with engine_on(postgres_database) as here, engine_on(postgres_database) as there:
        async with serving(here) as port, Client(port.url) as client, reading(client) as reader:
            assert (await reader.next())[1] == "resync"  # it listens from now on
            async with serving(there) as other, Client(other.url) as elsewhere:
                body = {"workflow": "ship", "queue": "shop"}
                run_id = (await elsewhere.post("/api/v1/runs", body, status=201))["run_id"]
                assert (await reader.next("queue"))[2]["queue"] == "shop"
                waiting = asyncio.create_task(elsewhere.get(f"/api/v1/runs/{run_id}", wait="20s"))
                worker = Worker(there)
                claim = await worker.claim()
                await until_waited_for(there, run_id)
                await worker.commit(claim, CompleteRun(output=b"1"))
                await waiting
                _, _, data = await reader.next("run")
                assert (data["run_id"], data["change"]) == (run_id, "finished")


@pytest.mark.postgres
async def test_watching_costs_no_queries(postgres_database: str) -> None:
    async with engine_on(postgres_database, tick=1_000_000) as engine, serving(engine) as port:
        async with Client(port.url) as client, reading(client):
            await asyncio.sleep(1.5)
            assert engine.events.on
            loop = asyncio.get_running_loop()
            began = loop.time()
            asked = sum(sum(histogram.counts) for histogram in engine.metrics.store_seconds.values())
            await asyncio.sleep(3)
            more = sum(sum(histogram.counts) for histogram in engine.metrics.store_seconds.values())
            assert more - asked <= 2 * (loop.time() - began)

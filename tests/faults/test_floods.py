"""One tenant asks for all it can, and another does not notice: real requests to a real process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from kagzi.access import Role
from kagzi.api.engine import Engine, ManagedEngine
from kagzi.api.operations import StartRun
from kagzi.connect import Credentials, connect
from kagzi.engine.local import LocalEngine
from tests.campaigns import LONG
from tests.faults.flooding import FLOODS
from tests.faults.processes import ROOT, ServerProcess
from tests.measures import MEBIBYTE, Measures
from tests.rpc.guarded import IDS, Keyed

SECONDS = 3.0
HEARTBEATS, STARTS = 1.0, 0.5  # seconds that the quiet tenant's may take
FLOODED = 3  # at most: with so few calls the slowest counts, and a disk that is slow once is no flood that gets through
WARM_UP = 10  # calls before the flood: connections, prepared statements and code that is read when it is first used


class Neighbours:
    """A server, the key of somebody loud and those of somebody quiet."""

    def __init__(self, server: ServerProcess, keys: dict[tuple[str, Role], str], target: str) -> None:
        self.server = server
        self.target = target
        self._keys = keys

    @asynccontextmanager
    async def quiet(self, role: Role) -> AsyncIterator[Keyed]:
        async with Keyed(self.target, self._keys["quiet", role]) as client:
            yield client

    def client(self) -> ManagedEngine:
        return connect(f"grpc://{self.target}", credentials=Credentials(key=self._keys["quiet", Role.CLIENT]))

    @contextmanager
    def flood(self, kind: str) -> Iterator[None]:
        command = [sys.executable, "-m", "tests.faults.flooding", kind, self.target, self.server.http_url()]
        with subprocess.Popen(
            [*command, self._keys["loud", Role.CLIENT]], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "flooding\n"
                yield
                assert process.poll() is None
            finally:
                process.kill()


@pytest.fixture
async def neighbours(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Neighbours]:
    on_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_database") if on_postgres else f"sqlite:///{tmp_path}/runs.db"
    engine = connect(url)
    assert isinstance(engine, LocalEngine)
    keys: dict[tuple[str, Role], str] = {}
    async with engine:
        for namespace in ("loud", "quiet"):
            await engine.namespaces.create(namespace)
            for role in (Role.CLIENT, Role.WORKER, Role.VIEWER):
                made = await engine.keys.create(name="test", role=role, namespace=namespace, actor="test")
                keys[namespace, role] = made.text
    server = ServerProcess(tmp_path, url, lease=2)
    try:
        yield Neighbours(server, keys, (await server.url()).removeprefix("grpc://"))
    finally:
        server.close()


# Who only waits asks no database, so one of them is enough for that. In the suite each flood is at one database.
@pytest.mark.parametrize(
    ("neighbours", "kind"),
    [("sqlite", kind) for kind in FLOODS if kind != "lists" or LONG]
    + [
        pytest.param("postgres", kind, marks=pytest.mark.postgres)
        for kind in FLOODS
        if kind == "lists" or (LONG and kind != "events")
    ],
    indirect=["neighbours"],
)
async def test_a_flood_of_one_tenant_leaves_the_other_alone(
    neighbours: Neighbours, kind: str, measures: Measures
) -> None:
    async with neighbours.quiet(Role.WORKER) as worker, neighbours.client() as client:
        worker_id = (await worker.call("Register", task_queue="q", workflow_types=["w"])).worker_id

        async def beat() -> None:
            await worker.call("Heartbeat", 30, worker_id=worker_id)

        for _ in range(WARM_UP):
            await beat()
            await start(client)
        before = neighbours.server.memory()
        for _ in range(FLOODED):
            with neighbours.flood(kind):
                told = await asyncio.gather(times(beat), times(lambda: start(client)), looks(neighbours))
                grown = neighbours.server.memory() - before
            beats, starts, answers = told
            if max(beats) < HEARTBEATS and max(starts) < STARTS:
                break
    # Without shares these were 30 s, refusals and 1.5 GiB.
    measures.p99("heartbeats", beats, below=HEARTBEATS)
    measures.p99("starts", starts, below=STARTS)
    measures.memory("server grown by", grown, below=300 * MEBIBYTE)
    measures.hold()
    assert answers == {200}
    assert "not ready" not in neighbours.server.log


async def start(client: Engine) -> None:
    await client.workflows.start(
        StartRun(namespace="quiet", run_id=IDS.run_id(), workflow_type="other", task_queue="other", input=b"[]")
    )


async def times(call: Callable[[], Awaitable[object]]) -> list[float]:
    """How long it took, again and again for a while."""
    taken = []
    until = time.monotonic() + SECONDS
    while (began := time.monotonic()) < until:
        await call()
        taken.append(time.monotonic() - began)
        await asyncio.sleep(0.02)
    return taken


async def looks(neighbours: Neighbours) -> set[int]:
    """What the quiet one's requests over HTTP are answered meanwhile."""
    found = set()
    until = time.monotonic() + SECONDS
    headers = {"authorization": f"Bearer {neighbours._keys['quiet', Role.VIEWER]}"}
    async with httpx.AsyncClient(base_url=neighbours.server.http_url(), headers=headers, timeout=30) as client:
        while time.monotonic() < until:
            found.add((await client.get("/api/v1/runs")).status_code)
            found.add((await client.get("/readyz")).status_code)
            await asyncio.sleep(0.1)
    return found

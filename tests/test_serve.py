"""The life of a server process, with ports made up for the test."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import asyncpg
import pytest

from kagzi import serve
from kagzi.access import Gate
from kagzi.connect import make_store
from kagzi.core.address import is_loopback
from kagzi.core.instant import SECOND
from kagzi.core.key import Role
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest
from kagzi.rpc.server.guard import GateGuard
from kagzi.rpc.tls import ServerTls
from kagzi.serve import Server, _reflection, check_exposure, server_url
from kagzi.settings import Settings
from kagzi.store.protocol.store import Store

MEMORY = Settings(url="memory://")


class FakePort:
    """One call is in flight; it ends when `answer` is set."""

    port = 4711

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.answer = asyncio.Event()

    async def start(self) -> None:
        self.log.append("start")

    async def serving(self, value: bool) -> None:
        self.log.append(f"serving {value}")

    async def stop(self, grace: float) -> None:
        self.log.append(f"stop {grace:g}")
        if grace == 0:
            self.answer.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.answer.wait(), grace)
        self.log.append("stopped")


class Running:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.port = FakePort(self.log)
        self.server = Server(MEMORY, make_ports=lambda *_: [("fake", self.port)], grace=20)
        self.task = asyncio.create_task(self.server.run())

    async def until(self, entry: str) -> None:
        async with asyncio.timeout(60):
            while entry not in self.log:
                await asyncio.sleep(0.01)

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while not self.server.ready():
                await asyncio.sleep(0.01)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made = Running()
    yield made
    made.server.shut_down()
    made.server.shut_down()
    await asyncio.wait([made.task])


async def test_calls_in_flight_finish(running: Running) -> None:
    assert not running.server.ready()
    await running.ready()
    running.server.shut_down()
    await running.until("stop 20")
    assert not running.server.ready()
    assert not running.task.done()
    # The engine is there for them until the end.
    assert (await running.server.engine.health()).components
    running.port.answer.set()
    await running.task
    assert running.log == ["start", "stop 20", "stopped"]


async def test_a_second_signal_does_not_wait(running: Running) -> None:
    await running.ready()
    running.server.shut_down()
    await running.until("stop 20")
    running.server.shut_down()
    async with asyncio.timeout(15):  # less than its grace time
        await running.task
    assert running.log[:3] == ["start", "stop 20", "stop 0"]


async def test_a_signal_while_it_opens_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    server = Server(MEMORY, make_ports=lambda *_: [("fake", FakePort(log))], grace=20)

    opening = asyncio.Event()

    async def open_for_ever() -> None:
        opening.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(server.engine, "open", open_for_ever)
    task = asyncio.create_task(server.run())
    await opening.wait()
    server.shut_down()
    async with asyncio.timeout(60):
        await task
    assert log == []


async def test_a_port_that_cannot_be_opened_closes_the_others() -> None:
    log: list[str] = []

    class Taken(FakePort):
        async def start(self) -> None:
            raise InvalidRequest("the port is taken")

    server = Server(MEMORY, make_ports=lambda *_: [("a", FakePort(log)), ("b", Taken(log))], grace=20)
    with pytest.raises(InvalidRequest, match="taken"):
        await server.run()
    assert log == ["start", "stop 0", "stopped"]


async def test_it_is_not_ready_while_the_database_is_silent(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await running.ready()
    monkeypatch.setattr(running.server.engine, "silence", lambda: 4.0)
    assert not running.server.ready()
    await running.until("serving False")
    monkeypatch.setattr(running.server.engine, "silence", lambda: 0.0)
    assert running.server.ready()
    await running.until("serving True")


async def test_whoever_can_be_reached_is_warned_of_again_and_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kagzi.serve._WARN_SECONDS", 0.02)
    log: list[str] = []
    exposed = Settings(url="memory://", server_host="0.0.0.0")
    server = Server(exposed, make_ports=lambda *_: [("fake", FakePort(log))], grace=0, insecure=True)
    task = asyncio.create_task(server.run())
    async with asyncio.timeout(10):
        while caplog.text.count("listening on 0.0.0.0 without TLS and API keys") < 3:
            await asyncio.sleep(0.01)
    server.shut_down()
    await task


async def test_keys_are_looked_for_in_the_database(tmp_path: Path) -> None:
    settings = Settings(
        url=f"sqlite:///{tmp_path}/kagzi.db", server_host="0.0.0.0", tls_cert="cert.pem", tls_key="key.pem"
    )
    log: list[str] = []
    server = Server(settings, make_ports=lambda *_: [("fake", FakePort(log))], grace=0)
    with pytest.raises(InvalidRequest, match="without API keys:"):
        await server.run()
    assert log == []
    async with LocalEngine(make_store(settings.url)) as engine:
        made = await engine.keys.create(name="ops", role=Role.ADMIN, namespace=None, actor="test")
        await engine.keys.revoke(made.key.key_id, actor="test")
    server = Server(settings, make_ports=lambda *_: [("fake", FakePort(log))], grace=0)
    task = asyncio.create_task(server.run())
    async with asyncio.timeout(60):
        while "start" not in log:
            await asyncio.sleep(0.01)
    server.shut_down()
    await task


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_who_can_be_reached(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    for plain, tls in (
        (Settings(server_host=host), Settings(server_host=host, tls_cert="c", tls_key="k")),
        (Settings(http_host=host), Settings(http_host=host, tls_cert="c", tls_key="k")),
    ):
        if loopback:
            assert not check_exposure(plain, keys=False, insecure=False)
            continue
        for settings, keys, missing in (
            (plain, False, "TLS and API keys"),
            (tls, False, "API keys"),
            (plain, True, "TLS"),
        ):
            with pytest.raises(InvalidRequest, match=f"without {missing}:"):
                check_exposure(settings, keys=keys, insecure=False)
            assert check_exposure(settings, keys=keys, insecure=True)
        assert not check_exposure(tls, keys=True, insecure=False)


@pytest.mark.parametrize(
    ("host", "reflection", "without_keys", "with_keys"),
    [
        ("127.0.0.1", "auto", True, False),
        ("127.0.0.1", "on", True, True),
        ("127.0.0.1", "off", False, False),
        ("0.0.0.0", "auto", False, False),
        ("0.0.0.0", "on", True, True),
    ],
)
async def test_who_is_told_what_can_be_called(
    host: str, reflection: Literal["auto", "on", "off"], without_keys: bool, with_keys: bool
) -> None:
    async with LocalEngine(make_store("memory://")) as engine:
        gate = Gate(engine.keys, engine.namespaces)
        answers = _reflection(gate, Settings(server_host=host, server_reflection=reflection))
        assert (answers is not None and await answers()) is without_keys
        await engine.keys.create(name="x", role=Role.ADMIN, namespace=None, actor="test")
        await gate._read()
        assert (answers is not None and await answers()) is with_keys
        await gate.close()


def test_a_server_writes_the_chunks_of_all_workers_on_one_connection() -> None:
    assert make_store("postgresql://db/shop").work.lanes == 3
    assert make_store("postgresql://db/shop", connections=50).work.lanes == 2


def test_a_server_is_no_client() -> None:
    assert server_url(Settings(url="grpc://kagzi:50051", db_url="memory://")) == "memory://"
    assert server_url(Settings(url="memory://")) == "memory://"
    with pytest.raises(InvalidRequest, match="name the database by --url or KAGZI_DB_URL"):
        server_url(Settings(url="grpc://kagzi:50051"))


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def test_new_namespaces_keep_history_as_long_as_the_settings_say(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Whoever comes first decides; it is stored, so a process with other settings does not delete too early."""
    url = f"sqlite:///{tmp_path}/x.db" if database == "sqlite" else request.getfixturevalue("fresh_database")
    for days, namespace in ((7, "tenant"), (90, "later")):
        store = make_store(url, retention_days=days)
        await store.open()
        await store.namespaces.ensure(namespace)
        await store.close()
    query = "SELECT namespace, retention_days FROM {}namespaces ORDER BY namespace"
    if database == "sqlite":
        with sqlite3.connect(tmp_path / "x.db") as connection:
            found = connection.execute(query.format("")).fetchall()
        connection.close()
    else:
        other = await asyncpg.connect(url)
        found = [tuple(row) for row in await other.fetch(query.format("kagzi."))]
        await other.close()
    assert found == [("default", 7), ("later", 90), ("tenant", 7)]


async def test_the_settings_reach_the_engine() -> None:
    settings = Settings(url="memory://", worker_visibility_timeout_secs=9, coordinator_batch_size=7)
    engine = Server(settings, make_ports=lambda *_: [], grace=0).engine
    assert (engine.settings.lease, engine.settings.duty_batch) == (9 * SECOND, 7)
    peppered = Server(Settings(url="memory://", auth_pepper="salt and"), make_ports=lambda *_: [], grace=0).engine
    assert peppered.settings.key_pepper == b"salt and"


async def test_the_settings_reach_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def make(url: str, **options: object) -> Store:
        given.update(options, url=url)
        return make_store("memory://")

    monkeypatch.setattr(serve, "make_store", make)
    settings = Settings(
        db_url="postgresql://db/shop", listen_url="postgresql://direct/shop", server_db_max_connections=9
    )
    Server(settings, make_ports=lambda *_: [], grace=0)
    assert given == {
        "url": "postgresql://db/shop",
        "listen_url": "postgresql://direct/shop",
        "connections": 9,
        "retention_days": 30,
    }


async def test_every_port_is_guarded_and_asks_for_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"tls_cert": "cert.pem", "tls_key": "key.pem", "tls_client_ca": "ca.pem"}
    made: list[ServerTls] = []
    monkeypatch.setattr(ServerTls, "credentials", lambda tls: made.append(tls))
    settings = Settings(url="memory://", **files)
    server = Server(settings, make_ports=lambda *_: [], grace=0)
    async with server.engine as engine:
        server.gate = Gate(engine.keys, engine.namespaces)
        ports: dict[str, Any] = dict(serve.make_ports(server, settings))
        rpc, http = ports["gRPC on 127.0.0.1"], ports["HTTP on 127.0.0.1"]
        assert isinstance(rpc._guard, GateGuard)
        assert http._gate is server.gate
        assert http._audit is engine.audit
        for tls in (*made, http._tls):
            assert (tls.cert, tls.key, tls.client_ca) == ("cert.pem", "key.pem", "ca.pem")
        assert len(made) == 1
        await server.gate.close()

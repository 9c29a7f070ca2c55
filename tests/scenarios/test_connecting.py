"""URLs that are wrong and databases that are not there: a typed error that says what to do, and no password in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kagzi import InvalidRequest, Kagzi, KagziError, SchemaMismatch, Unavailable
from kagzi.engine.settings import EngineSettings
from kagzi.rpc.server.server import RpcServer
from kagzi.settings import load
from kagzi.testing.postgres import PostgresServer
from tests.rpc.support import engine_on

ROOT = Path(__file__).resolve().parents[2]
SECRET = "tops3cret"


async def refused(url: object, error: type[KagziError], *words: str, **settings: object) -> str:
    with pytest.raises(error) as caught:
        await Kagzi(url, **settings).open()  # type: ignore[arg-type]
    message = str(caught.value)
    for word in words:
        assert word in message
    seen: BaseException | None = caught.value
    while seen is not None:  # a traceback shows the whole chain
        assert SECRET not in str(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return message


@pytest.mark.parametrize(
    ("url", "word"),
    [
        (f"mysql://root:{SECRET}@db/orders", "unknown database scheme 'mysql'"),
        (f"grpc://worker:{SECRET}@server:50051", "not an API key"),
        ("orders.db", "sqlite:///file.db"),
        ("", "sqlite:///file.db"),
        (5, "sqlite:///file.db"),
        (b"sqlite:///x.db", "sqlite:///file.db"),
        ("sqlite://orders.db", "sqlite:///orders.db"),
        ("sqlite:///", "name of a file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///a.db?mode=ro", "no options"),
        ("sqlite:///a\0b.db", "not a database URL"),
        ("memory://x", "memory://"),
        (f"postgresql://kagzi:{SECRET}@db:port/orders", "%XX"),
        (f"postgresql://kagzi:{SECRET}@[::1/orders", "malformed"),
    ],
)
async def test_a_url_that_names_no_database(
    url: object, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await refused(url, InvalidRequest, word)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lease": "1ms"}, "lease must be between 100ms and 1d, not '1ms'"),
        ({"lease": "2 days"}, "lease must be between"),
        ({"lease": "soon"}, "lease 'soon'"),
        ({"max_crashes": 0}, "max_crashes must be a whole number from 1 to"),
        ({"max_crashes": 2.5}, "max_crashes"),
        ({"max_crashes": True}, "max_crashes"),
        ({"max_crashes": "3"}, "max_crashes"),
    ],
)
def test_settings_that_cannot_work_are_refused_where_they_are_written(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Kagzi("memory://", **settings)
    assert words in str(caught.value)


async def test_nobody_listens_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        url = f"postgresql://kagzi:{SECRET}@127.0.0.1:{port}/orders"
        await refused(url, Unavailable, f"127.0.0.1:{port}/orders", "as kagzi", "Check that the server is running")


async def test_a_host_that_does_not_exist() -> None:
    await refused(f"postgresql://kagzi:{SECRET}@nowhere.invalid/orders", Unavailable, "nowhere.invalid")


@pytest.mark.postgres
async def test_a_wrong_password_is_never_shown(postgres_server: PostgresServer) -> None:
    admin = await asyncpg.connect(postgres_server.url)
    try:
        await admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'another'")
        rules = postgres_server.directory / "data" / "pg_hba.conf"
        rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        await admin.execute("SELECT pg_reload_conf()")
        url = postgres_server.url.replace("//postgres@", f"//guarded:{SECRET}@")
        message = ""
        for _ in range(100):  # until the server has read its rules again
            try:
                message = await refused(url, InvalidRequest, "guarded")
                break
            except pytest.fail.Exception:
                continue
        assert "Check user, password and database" in message
        assert await admin.fetchval("SELECT to_regnamespace('kagzi') IS NULL OR current_user = 'postgres'")
        missing = postgres_server.url.rpartition("/")[0] + "/missing"
        await refused(missing, InvalidRequest, "missing", "Check user, password and database")
    finally:
        await admin.close()


@pytest.mark.parametrize("command", ["asyncio.run(app.open())", "app.run_worker()"])
def test_the_driver_is_not_installed(command: str) -> None:
    code = f"""
import asyncio, sys
sys.modules["asyncpg"] = None  # as if it were not there
from kagzi import Kagzi, MissingDependency
app = Kagzi("postgresql://kagzi:{SECRET}@127.0.0.1/orders")
@app.workflow
async def nothing() -> None: ...
try:
    {command}
except MissingDependency as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'pip install "kagzi[postgres]"' in done.stdout
    assert SECRET not in done.stdout + done.stderr


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear database, " * 1000)
    before = letter.read_bytes()
    await refused(f"sqlite:///{letter}", InvalidRequest, "letter.txt", "not an SQLite database")
    assert letter.read_bytes() == before


async def test_a_directory_and_a_file_in_the_way(tmp_path: Path) -> None:
    await refused(f"sqlite:///{tmp_path}", InvalidRequest, "directory")
    (tmp_path / "file").touch()
    await refused(f"sqlite:///{tmp_path / 'file' / 'kagzi.db'}", InvalidRequest, "file, not a directory")


async def test_a_database_of_a_newer_version(url: str) -> None:
    app = Kagzi(url)
    await app.open()
    await app.close()
    if url.startswith("sqlite"):
        import sqlite3

        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        with connection:
            connection.execute("INSERT INTO schema_migrations (number, name, checksum) VALUES (99, 'later', 'x')")
        connection.close()
    else:
        admin = await asyncpg.connect(url)
        await admin.execute("INSERT INTO kagzi.migrations (number, name, checksum) VALUES (99, 'later', 'x')")
        await admin.close()
    await refused(url, SchemaMismatch, "0099", "Upgrade Kagzi")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lease": 0}, "lease"),
        ({"lease": -1}, "lease"),
        ({"lease": "1ms"}, "lease must be between"),
        ({"lease": "9 weeks"}, "lease must be between"),
        ({"lease": float("nan")}, "lease"),
        ({"lease": float("inf")}, "lease"),
        ({"max_crashes": 0}, "max_crashes"),
        ({"max_crashes": "3"}, "max_crashes"),
        ({"max_crashes": True}, "max_crashes"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": "a\0"}, "namespace"),
        ({"namespace": "\ud800"}, "namespace"),
        ({"namespace": "n" * 256}, "namespace"),
        ({"namespace": 5}, "namespace"),
    ],
)
async def test_settings_of_an_app(settings: dict[str, object], word: str) -> None:
    await refused("memory://", InvalidRequest, word, **settings)


@pytest.mark.parametrize("url", ["grpc://server:50051", "GRPCS://one:50051,two:50051"])
def test_how_long_leases_last_a_server_decides(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"server decides .* KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS"):
        Kagzi(url, lease="5s")


@pytest.mark.parametrize("url", ["grpc://server:50051", "GRPCS://one:50051,two:50051"])
def test_when_to_give_a_run_up_a_server_decides(url: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"server decides .* after {EngineSettings().max_crashes} crashes"):
        Kagzi(url, max_crashes=3)


async def test_what_was_meant_for_another_place_is_said_to_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The URL of a command or of the settings may lead to a server, whatever the code was written for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS", "20")  # shared by all processes, and nobody's mistake
    async with engine_on("memory://") as engine, RpcServer(engine) as server:
        for app in (Kagzi("sqlite:///x.db", lease="5s", max_crashes=3), Kagzi("sqlite:///x.db")):
            app.override(load(), url=f"grpc://{server.target}")
            await app.open()
            await app.close()
    assert [record.message for record in caplog.records if "no effect" in record.message] == [
        f"max_crashes in code has no effect: the server gives a run up after {EngineSettings().max_crashes} crashes",
        "the lease of 5s in code has no effect: the server decides how long leases last",
    ]

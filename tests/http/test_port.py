"""Listening: TLS, ports that are taken, an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trustme

from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest, Unavailable
from kagzi.http.port import HttpPort
from kagzi.http.tls import Tls
from tests.cli.conftest import Shell, read_until, shell
from tests.http.support import Client, serving, until_waited_for

__all__ = ["shell"]  # a fixture of the commands' tests


class Certificates:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        server = self.ca.issue_cert("127.0.0.1", "localhost")
        server.cert_chain_pems[0].write_to_path(directory / "cert.pem")
        server.private_key_pem.write_to_path(directory / "key.pem")
        self.clients = trustme.CA()
        self.clients.cert_pem.write_to_path(directory / "clients.pem")

    def tls(self, *, mutual: bool = False) -> Tls:
        return Tls(
            cert=str(self.directory / "cert.pem"),
            key=str(self.directory / "key.pem"),
            client_ca=str(self.directory / "clients.pem") if mutual else None,
        )

    def context(self, issuer: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if issuer is not None:
            issuer.issue_cert("client@example.org").configure_cert(context)
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def test_tls(memory: LocalEngine, certificates: Certificates) -> None:
    async with serving(memory, tls=certificates.tls()) as port:
        assert port.url.startswith("https://")
        async with Client(port.url, verify=certificates.context()) as client:
            assert await client.get("/livez") == {"status": "alive"}
            await client.post("/api/v1/runs", {"workflow": "w"}, status=201)
        async with httpx.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(f"{port.url}/livez")
        async with httpx.AsyncClient(trust_env=False) as plain:
            with pytest.raises(httpx.TransportError):
                await plain.get(f"http://127.0.0.1:{port.port}/livez")


async def test_renewed_certificates_need_no_restart(
    memory: LocalEngine, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(memory, tls=certificates.tls()) as port:
        async with Client(port.url, verify=certificates.context()) as before:
            assert await before.get("/livez")
        (certificates.directory / "cert.pem").write_text("half a file")
        async with Client(port.url, verify=certificates.context()) as meanwhile:
            assert await meanwhile.get("/livez")
        assert "going on with the certificate from before" in caplog.text
        renewed = Certificates(certificates.directory)
        async with Client(port.url, verify=renewed.context()) as after:
            assert await after.get("/livez")


async def test_mutual_tls(memory: LocalEngine, certificates: Certificates) -> None:
    async with serving(memory, tls=certificates.tls(mutual=True)) as port:
        async with Client(port.url, verify=certificates.context(certificates.clients)) as known:
            assert await known.get("/livez")
        for issuer in (None, trustme.CA()):
            async with httpx.AsyncClient(verify=certificates.context(issuer), trust_env=False) as stranger:
                with pytest.raises(httpx.TransportError):
                    await stranger.get(f"{port.url}/livez")


async def test_files_that_cannot_be_used(memory: LocalEngine, certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for cert in ("nowhere.pem", "empty.pem"):
        port = HttpPort(
            memory,
            gate=None,
            ready=lambda: True,
            tls=Tls(cert=str(tmp_path / cert), key=str(tmp_path / "key.pem")),  # type: ignore[arg-type]
        )
        with pytest.raises(InvalidRequest, match="KAGZI_TLS_CERT"):
            await port.start()


async def test_a_port_that_is_taken(memory: LocalEngine) -> None:
    async with serving(memory) as port:
        with pytest.raises(Unavailable, match=f"cannot listen on http://127.0.0.1:{port.port}"):
            async with serving(memory, port=port.port):
                raise AssertionError
        with pytest.raises(Unavailable, match="cannot listen"):
            async with serving(memory, host="192.0.2.1"):
                raise AssertionError


async def test_ipv6(memory: LocalEngine) -> None:
    try:
        async with serving(memory, host="::1") as port, Client(port.url) as client:
            assert port.url == f"http://[::1]:{port.port}"
            assert await client.get("/livez")
    except Unavailable:
        pytest.skip("this machine has no IPv6")


@contextlib.asynccontextmanager
async def slow_request(
    memory: LocalEngine, client: Client, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    began = asyncio.Event()
    count = memory.admin.count_workers

    async def slowly(namespace: str | None) -> object:
        began.set()
        await asyncio.sleep(seconds)
        return await count(namespace)

    monkeypatch.setattr(memory.admin, "count_workers", slowly)
    task = asyncio.create_task(client.http.get("/api/v1/stats"))
    await began.wait()
    yield task


async def test_requests_in_flight_finish(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        async with slow_request(memory, client, monkeypatch, 0.5) as task:
            stopping = asyncio.create_task(port.stop(grace=60))
            await asyncio.sleep(0.2)
            with pytest.raises(httpx.ConnectError):
                async with httpx.AsyncClient(trust_env=False) as late:
                    await late.get(f"{port.url}/livez")
            assert (await task).status_code == 200
            async with asyncio.timeout(30):
                await stopping


async def test_the_grace_time_ends(
    memory: LocalEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        async with slow_request(memory, client, monkeypatch, 60) as task:
            async with asyncio.timeout(30):
                await port.stop(grace=0.3)
            assert (await task).status_code == 503


async def test_told_twice(memory: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        async with slow_request(memory, client, monkeypatch, 60) as task:
            stopping = asyncio.create_task(port.stop(grace=60))
            await asyncio.sleep(0.3)
            async with asyncio.timeout(30):
                await port.stop(grace=0)
                await stopping
            assert (await task).status_code == 503


async def test_waits_end_with_the_server(memory: LocalEngine) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        run_id = (await client.post("/api/v1/runs", {"workflow": "w"}, status=201))["run_id"]
        waiting = asyncio.create_task(client.get(f"/api/v1/runs/{run_id}", wait="60s"))
        await until_waited_for(memory, run_id, 1)
        async with asyncio.timeout(30):
            await port.stop(grace=60)
        assert (await waiting)["status"] == "PENDING"


async def test_not_ready_while_it_stops(memory: LocalEngine) -> None:
    async with serving(memory) as port, Client(port.url) as client:
        await port.serving(False)
        assert (await client.send("GET", "/readyz")).status_code == 503
        await port.serving(True)
        assert (await client.send("GET", "/readyz")).status_code == 200


def test_a_client_needs_no_web_server() -> None:
    code = "import sys, kagzi, kagzi.app; sys.exit(any(name in sys.modules for name in ('starlette', 'uvicorn')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_server_process(shell: Shell, tls: bool) -> None:
    certificates = Certificates(shell.directory)
    files = certificates.tls(mutual=True)
    environ = {"KAGZI_TLS_CERT": files.cert, "KAGZI_TLS_KEY": files.key, "KAGZI_TLS_CLIENT_CA": files.client_ca or ""}
    server = shell.spawn(
        "server", "--local", "--port", "0", "--http-port", "0", "--log-format", "json", **(environ if tls else {})
    )
    line = next(line for line in read_until(server, "is ready").splitlines() if "is ready" in line)
    port = json.loads(line)["message"].partition("HTTP on 127.0.0.1:")[2].partition(";")[0]
    url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    context = certificates.context(certificates.clients) if tls else None
    with urllib.request.urlopen(f"{url}/readyz", timeout=60, context=context) as response:
        assert json.load(response)["ready"]
    with urllib.request.urlopen(f"{url}/api/v1/events", timeout=60, context=context):
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    # One JSON document a line, and no word of the web server's own.
    assert {json.loads(line)["logger"].partition(".")[0] for line in err.splitlines()} == {"kagzi"}

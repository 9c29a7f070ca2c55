"""TLS and client certificates, with certificates of an authority made up for the test."""

from __future__ import annotations

import asyncio
import logging
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from kagzi.connect import Credentials, connect
from kagzi.core.health import HealthStatus
from kagzi.errors import InvalidRequest, Unauthenticated
from kagzi.rpc.server.server import RpcServer
from kagzi.rpc.tls import ClientTls, ServerTls
from tests.rpc.support import engine_on


class Files:
    """An authority, and certificates of it in files."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.name = name
        self.authority = trustme.CA()
        self.ca = str(directory / f"{name}.pem")
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *identities: str) -> tuple[str, str]:
        """The certificate and its key; over those of the same name."""
        issued = self.authority.issue_cert(*(identities or ("localhost", "127.0.0.1")))
        cert, key = str(self.directory / f"{name}.pem"), str(self.directory / f"{name}-key.pem")
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(cert)
        return cert, key


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@asynccontextmanager
async def serving(tls: ServerTls | None) -> AsyncIterator[str]:
    async with engine_on("memory://") as engine:
        async with RpcServer(engine, tls=None if tls is None else tls.credentials()) as server:
            yield f"localhost:{server.port}"


async def ask(url: str, **credentials: str | None) -> HealthStatus:
    engine = connect(url, credentials=Credentials(**credentials))
    await engine.open()
    try:
        return (await engine.health()).status
    finally:
        await engine.close()


async def test_a_client_trusts_the_authority_it_was_given(files: Files) -> None:
    cert, key = files.issue("server")
    async with serving(ServerTls(cert=cert, key=key)) as target:
        assert await ask(f"grpcs://{target}", tls_ca=files.ca) is HealthStatus.HEALTHY
        address = target.replace("localhost", "127.0.0.1")
        assert await ask(f"grpcs://{address}", tls_ca=files.ca) is HealthStatus.HEALTHY


async def test_each_of_several_servers_has_to_be_what_its_name_says(files: Files) -> None:
    """What a list of addresses given to gRPC could not do."""
    names, addresses = files.issue("names", "localhost"), files.issue("addresses", "127.0.0.1")
    async with (
        serving(ServerTls(cert=names[0], key=names[1])) as one,
        serving(ServerTls(cert=addresses[0], key=addresses[1])) as two,
    ):
        for _ in range(6):  # the order is by chance
            url = f"grpcs://{one},{two.replace('localhost', '127.0.0.1')}"
            assert await ask(url, tls_ca=files.ca) is HealthStatus.HEALTHY
            assert await ask(f"grpcs://{one},{two}", tls_ca=files.ca) is HealthStatus.HEALTHY  # the one that can be
        with pytest.raises(Unauthenticated, match="not valid for 'localhost'"):
            await ask(f"grpcs://{two},{two}", tls_ca=files.ca)


async def test_an_authority_nobody_knows_is_not_trusted(files: Files, tmp_path: Path) -> None:
    cert, key = files.issue("server")
    other = Files(tmp_path, "other")
    async with serving(ServerTls(cert=cert, key=key)) as target:
        for ca in (None, other.ca):
            with pytest.raises(Unauthenticated, match=r"is not trusted: .*KAGZI_TLS_CA"):
                await ask(f"grpcs://{target}", tls_ca=ca)


async def test_a_certificate_for_another_host_is_not_trusted(files: Files) -> None:
    cert, key = files.issue("server", "elsewhere.example")
    async with serving(ServerTls(cert=cert, key=key)) as target:
        with pytest.raises(Unauthenticated, match="not valid for 'localhost'"):
            await ask(f"grpcs://{target}", tls_ca=files.ca)


async def test_whoever_mistakes_the_scheme_is_told(files: Files) -> None:
    cert, key = files.issue("server")
    async with serving(ServerTls(cert=cert, key=key)) as target:
        with pytest.raises(InvalidRequest, match=f"speaks TLS; use grpcs://{target}"):
            await ask(f"grpc://{target}")
    async with serving(None) as target:
        with pytest.raises(InvalidRequest, match=f"does not speak TLS; use grpc://{target}"):
            await ask(f"grpcs://{target}", tls_ca=files.ca)


async def test_a_server_that_asks_for_certificates(files: Files, tmp_path: Path) -> None:
    cert, key = files.issue("server")
    mine = files.issue("client", "worker-1")
    stranger = Files(tmp_path, "other").issue("stranger", "worker-1")
    async with serving(ServerTls(cert=cert, key=key, client_ca=files.ca)) as target:
        url = f"grpcs://{target}"
        assert await ask(url, tls_ca=files.ca, tls_cert=mine[0], tls_key=mine[1]) is HealthStatus.HEALTHY
        with pytest.raises(Unauthenticated, match="asks for a client certificate"):
            await ask(url, tls_ca=files.ca)
        with pytest.raises(Unauthenticated, match="does not trust the client certificate"):
            await ask(url, tls_ca=files.ca, tls_cert=stranger[0], tls_key=stranger[1])


async def test_a_renewed_certificate_is_used_without_a_restart(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kagzi.rpc")
    cert, key = files.issue("server")
    async with serving(ServerTls(cert=cert, key=key)) as target:
        assert await ask(f"grpcs://{target}", tls_ca=files.ca) is HealthStatus.HEALTHY
        new = Files(tmp_path, "new")
        new.issue("server")
        assert await ask(f"grpcs://{target}", tls_ca=new.ca) is HealthStatus.HEALTHY
        assert "read again" in caplog.text
        Path(cert).write_text("half a certificate")
        assert await ask(f"grpcs://{target}", tls_ca=new.ca) is HealthStatus.HEALTHY
        assert "the old one stays" in caplog.text


async def test_old_versions_of_tls_are_refused(files: Files) -> None:
    cert, key = files.issue("server")
    context = ssl.create_default_context(cafile=files.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # which is the point
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(ServerTls(cert=cert, key=key)) as target:
        host, _, port = target.partition(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, int(port), ssl=context)


def test_files_that_cannot_be_used_are_named(files: Files, tmp_path: Path) -> None:
    cert, key = files.issue("server")
    other, _ = files.issue("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN NOTHING-----")
    for tls, message in (
        (ServerTls(cert=str(tmp_path / "missing.pem"), key=key), "KAGZI_TLS_CERT names .*missing.pem: No such file"),
        (ServerTls(cert=str(garbage), key=key), "KAGZI_TLS_CERT and KAGZI_TLS_KEY cannot be used"),
        (ServerTls(cert=other, key=key), "key values mismatch"),
        (ServerTls(cert=cert, key=key, client_ca=str(garbage)), "KAGZI_TLS_CLIENT_CA cannot be used"),
        (ClientTls(ca=str(garbage)), "KAGZI_TLS_CA cannot be used"),
        (ClientTls(ca=str(tmp_path / "missing.pem")), "KAGZI_TLS_CA cannot be read"),
        (ClientTls(cert=cert), "belong together"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            tls.credentials()

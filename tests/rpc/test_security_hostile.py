"""Hostile callers at the gate: names and keys that are none, and what the audit log makes of them."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest

from kagzi.access import ACTIONS, Role
from kagzi.api.keys import AuditFilter
from kagzi.core.key import write_key
from tests.rpc.guarded import IMPLEMENTED, guarded

Code = grpc.StatusCode
TEXTS = [
    "default",
    "b",
    "\0",
    "a\0b",
    "'; DROP TABLE api_keys; --",
    "\u202eevil\u2066",
    "🙂" * 100,
    "n" * 256,
    "n" * 100_000,
    "line\nbreak\r\x1b[31m",
    write_key("0123456789abcdef", bytes(32)),
]
ALLOWED = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.ABORTED,
    Code.PERMISSION_DENIED,
}


@pytest.mark.parametrize("url", ["memory://", pytest.param("postgres", marks=pytest.mark.postgres)])
@pytest.mark.parametrize("namespace", [None, "a"])
async def test_names_that_are_none(
    url: str, namespace: str | None, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """Everywhere where a name or an id may stand, with a key of one namespace and with one of all."""
    if url == "postgres":
        url = request.getfixturevalue("postgres_database")
    caplog.set_level(logging.INFO)
    async with guarded(url) as server:
        key = await server.key(Role.ADMIN, namespace)
        async with server.client(key) as client:
            for method in IMPLEMENTED:
                fields = [field.name for field in method.request.DESCRIPTOR.fields if field.type == field.TYPE_STRING]
                for text in TEXTS:
                    message: Any = method.request()
                    for field in fields:
                        if not isinstance(getattr(message, field), str):
                            getattr(message, field).append(text)
                        elif field != "namespace" or namespace is None or text == "b":
                            setattr(message, field, text)
                    code = await _code(client, method, message)
                    assert code in ALLOWED, (method.rpc, text, code)
                    if namespace is not None and text == "b" and method.has_namespace:
                        assert code is Code.PERMISSION_DENIED
            await client.call("GetServerInfo")
        await server.engine.audit.close()
        entries = (await server.engine.audit.list(AuditFilter(), page_size=100)).items
    audited = {entry.action for entry in entries if entry.actor.startswith("key:")}
    assert len(audited & set(ACTIONS)) >= 5
    assert all(text.isprintable() for entry in entries for text in (entry.target, entry.namespace or ""))
    for secret in (key, TEXTS[-1]):
        assert secret not in str(entries)
        assert secret not in caplog.text


async def _code(client: Any, method: Any, message: Any) -> grpc.StatusCode:
    try:
        await client.send(method, message)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return Code.OK


async def test_keys_that_are_none() -> None:
    async with guarded("memory://") as server:
        await server.key()
        for value in (
            "Bearer",
            "Bearer ",
            "Bearer kgz_",
            "kgz__",
            "Bearer " + "kgz_" * 1000,
            "Bearer kgz_0123456789abcdef_" + "0" * 63,
            "Bearer kgz_0123456789ABCDEF_" + "0" * 64,
            "Bearer kgz_0123456789abcdef_" + "0" * 64 + " kgz_",
            "Negotiate abc",
        ):
            async with server.client(None) as client:
                client.metadata = (("authorization", value),)
                assert (await client.refused("GetServerInfo")).code() is Code.UNAUTHENTICATED
        async with server.client(None) as client:
            # The name of the header is written small in HTTP/2; of two values one is as good as none.
            client.metadata = (("authorization", "x"), ("authorization", "y"))
            assert (await client.refused("GetServerInfo")).code() is Code.UNAUTHENTICATED

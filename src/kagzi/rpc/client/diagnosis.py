"""Why there is no connection to a server, when something listens there. gRPC itself only says that there is none."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from kagzi.errors import InvalidRequest, KagziError, Unauthenticated
from kagzi.rpc.tls import ClientTls

_SECONDS: Final = 3.0
_ALERT_SECONDS: Final = 0.5


async def diagnose(target: str, tls: ClientTls | None) -> KagziError | None:
    """Returns what is wrong with a connection; None if nothing can be said: nobody listens there, or all seems well."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await (_speaks_tls(target) if tls is None else _trusted(target, tls))
    except (OSError, TimeoutError):
        return None


async def _speaks_tls(target: str) -> KagziError | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: the question is only whether it speaks TLS
    try:
        await _handshake(target, context)
    except ssl.SSLError:
        return None
    return InvalidRequest(f"the server at {target} speaks TLS; use grpcs://{target}")


async def _trusted(target: str, tls: ClientTls) -> KagziError | None:
    asked = Unauthenticated(
        f"the server at {target} asks for a client certificate; set KAGZI_TLS_CERT and KAGZI_TLS_KEY"
        if tls.cert is None
        else f"the server at {target} does not trust the client certificate of KAGZI_TLS_CERT"
    )
    try:
        if not await _handshake(target, tls.context()):
            return asked
    except ssl.SSLCertVerificationError as error:
        return Unauthenticated(
            f"the certificate of {target} is not trusted: {error.verify_message}. KAGZI_TLS_CA names the authorities "
            "that are; the address must be one that the certificate is for"
        )
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason or "UNKNOWN_CA" in reason:
            return asked
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"):
            return InvalidRequest(f"the server at {target} does not speak TLS; use grpc://{target}")
    return None


async def _handshake(target: str, context: ssl.SSLContext) -> bool:
    """Shakes hands over TLS; returns whether the other end goes on after it. What it thinks of our certificate it tells
    only then, by an alert or by hanging up; one that is content greets us, or waits."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
    try:
        async with asyncio.timeout(_ALERT_SECONDS):
            return bool(await reader.read(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    finally:
        writer.close()

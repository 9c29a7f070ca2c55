"""TLS for both ends.

A server reads its files again when they change, at the next handshake: certificates are renewed without a restart. What
cannot be used is reported once, and the one from before goes on.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
from msgspec import Struct

from kagzi.errors import InvalidRequest

log = logging.getLogger("kagzi.rpc")

_MOST_BYTES: Final = 1024 * 1024
_ALPN: Final = "h2"


class ServerTls(Struct, frozen=True, kw_only=True):
    """The PEM files of a server. With `client_ca`, only clients with a certificate signed by it get in."""

    cert: str
    key: str
    client_ca: str | None = None

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self.configuration(),
            _Reload(self),  # type: ignore[arg-type]  # None means no change; the stubs do not know that
            require_client_authentication=self.client_ca is not None,
        )

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Returns what the files say now; InvalidRequest if that cannot be used."""
        _check_pair(self.cert, self.key)
        return grpc.ssl_server_certificate_configuration(
            [(_read(self.key, "KAGZI_TLS_KEY"), _read(self.cert, "KAGZI_TLS_CERT"))],
            root_certificates=None if self.client_ca is None else _authorities(self.client_ca, "KAGZI_TLS_CLIENT_CA"),
        )

    def stamp(self) -> tuple[object, ...]:
        """Returns a value that differs once a file was changed or replaced."""
        files = (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)
        return tuple([(stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in map(_stat, files)])


class _Reload:
    """Gives gRPC the files anew when they have changed. It asks at every handshake, on a thread of its own."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._stamp = tls.stamp()

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return None
            # Before reading: a file that changes meanwhile is read again at the next handshake.
            self._stamp = stamp
            configuration = self._tls.configuration()
        except (InvalidRequest, OSError) as error:
            log.error("the new TLS certificate cannot be used, the old one stays: %s", error)
            return None
        log.info("the TLS certificate was read again")
        return configuration


class ClientTls(Struct, frozen=True, kw_only=True):
    """The PEM files of a client: whom it trusts (the usual authorities by default), and its own certificate."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.cert is None) is not (self.key is None):
            raise InvalidRequest("KAGZI_TLS_CERT and KAGZI_TLS_KEY belong together; one of them is missing")
        if self.cert is not None and self.key is not None:
            _check_pair(self.cert, self.key)
        return grpc.ssl_channel_credentials(
            root_certificates=None if self.ca is None else _authorities(self.ca, "KAGZI_TLS_CA"),
            private_key=None if self.key is None else _read(self.key, "KAGZI_TLS_KEY"),
            certificate_chain=None if self.cert is None else _read(self.cert, "KAGZI_TLS_CERT"),
        )

    def context(self) -> ssl.SSLContext:
        """Returns these credentials for Python's own TLS, which says in words what is wrong (see `diagnosis`)."""
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols([_ALPN])
        if self.cert is not None and self.key is not None:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        return context


def _stat(path: str) -> os.stat_result:
    return Path(path).stat()


def _check_pair(cert: str, key: str) -> None:
    _read(cert, "KAGZI_TLS_CERT")
    _read(key, "KAGZI_TLS_KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _use(lambda: context.load_cert_chain(cert, key, password=_no_password), "KAGZI_TLS_CERT and KAGZI_TLS_KEY")


def _authorities(path: str, variable: str) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _use(lambda: context.load_verify_locations(path), variable)
    return _read(path, variable)


def _use(load: Callable[[], None], variables: str) -> None:
    try:
        load()
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").replace("_", " ").lower()
        raise InvalidRequest(f"{variables} cannot be used: {reason}") from None
    except OSError as error:
        raise InvalidRequest(f"{variables} cannot be read: {error.strerror or type(error).__name__}") from None


def _read(path: str, variable: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise InvalidRequest(f"{variable} names {path}: {error.strerror or type(error).__name__}") from None


def _no_password() -> str:
    """A key that is locked by a password is refused; OpenSSL would otherwise ask for it on the terminal."""
    return ""

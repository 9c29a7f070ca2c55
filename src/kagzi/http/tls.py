"""TLS of the HTTP port.

Files that were renewed are used from the next handshake on, without a restart. What cannot be used is reported once,
and the ones from before go on.
"""

from __future__ import annotations

import logging
import os
import ssl

from msgspec import Struct

from kagzi.errors import InvalidRequest

log = logging.getLogger("kagzi.http")


class Tls(Struct, frozen=True, kw_only=True):
    """Paths of PEM files. With `client_ca` every client needs a certificate of that authority."""

    cert: str
    key: str
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """Returns what the files say; InvalidRequest if they cannot be used."""
        context = self._load()
        context.sni_callback = _Renewal(self, context)
        return context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
            if self.client_ca is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self.client_ca)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"the files of KAGZI_TLS_CERT, KAGZI_TLS_KEY and KAGZI_TLS_CLIENT_CA cannot be used: {error}"
            ) from None
        return context

    def _stamp(self) -> tuple[object, ...]:
        """Returns a value that differs once a file was changed or replaced."""
        files = (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)
        return tuple([(stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in map(os.stat, files)])


class _Renewal:
    """Looks at every handshake whether the files have changed."""

    def __init__(self, tls: Tls, context: ssl.SSLContext) -> None:
        self._tls = tls
        self._stamp = tls._stamp()
        self._context = context

    def __call__(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        del name
        try:
            stamp = self._tls._stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                self._context = self._tls._load()
                log.info("the certificate was renewed")
        except (OSError, InvalidRequest) as error:
            log.warning("going on with the certificate from before: %s", error)
        connection.context = self._context


def _no_password() -> str:
    raise InvalidRequest("the private key of KAGZI_TLS_KEY asks for a password, and there is nobody to give it")

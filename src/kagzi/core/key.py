"""API keys: who may call a server.

A key is `kgz_<key id>_<secret>`: the id finds it, the secret, 256 bits in hexadecimal, proves it. The prefix lets
scanners find keys that were committed by mistake. Only a digest of the secret is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from enum import StrEnum
from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant

PREFIX: Final = "kgz_"
KEY_ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
MOST_LIVE: Final = 10_000  # at once; servers keep all of them in memory
SESSIONS_PER_KEY: Final = 1_000  # of the dashboard; the oldest ends when there is one more
_KEY: Final = re.compile(r"kgz_([0-9a-f]{16})_([0-9a-f]{64})")
_IN_TEXT: Final = re.compile(r"kgz_([0-9a-f]{1,16})_[0-9A-Za-z_\-]+")


class Role(StrEnum):
    """What a key is for. `kagzi.access.table` says what each of them may do."""

    ADMIN = "admin"  # everything
    CLIENT = "client"  # start, look at and end runs
    WORKER = "worker"  # drive runs, start and look at them
    VIEWER = "viewer"  # look only


class Key(Struct, frozen=True, kw_only=True):
    """A key as it is stored: without its secret."""

    key_id: str
    namespace: str | None  # None: all of them
    role: Role
    name: str  # for people
    digest: bytes
    created_at: Instant
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    last_used_at: Instant | None = None  # to the minute or so

    def live(self, now: Instant) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def key_position(key: Key) -> str:
    """Returns the position of a key in a list that is ordered by creation."""
    return f"{key.created_at}:{key.key_id}"


def read_key_position(position: str) -> tuple[Instant, str]:
    created_at, _, key_id = position.partition(":")
    return int(created_at), key_id


class Presented(Struct, frozen=True):
    """A key as a caller shows it: its id and its secret."""

    key_id: str
    secret: bytes


def write_key(key_id: str, secret: bytes) -> str:
    return f"{PREFIX}{key_id}_{secret.hex()}"


def read_key(text: str) -> Presented | None:
    """Reads a key; None if the text has not the form of one."""
    match = _KEY.fullmatch(text)
    return None if match is None else Presented(match[1], bytes.fromhex(match[2]))


def digest(key_id: str, secret: bytes, pepper: bytes = b"") -> bytes:
    """Returns the digest of a secret, which is all that is stored of it. A secret has 256 random bits, so nothing
    slower than SHA-256 is needed; with a pepper, not even a guess can be checked by reading the table."""
    message = key_id.encode() + secret
    return hmac.new(pepper, message, hashlib.sha256).digest() if pepper else hashlib.sha256(message).digest()


def mask_keys(text: str) -> str:
    """Returns the text without the secrets of keys in it."""
    return _IN_TEXT.sub(r"kgz_\1_***", text)

"""The API key that a client shows with every call.

One that comes from a file is looked for again every second while calls are made: `kagzi keys rotate` leaves time in
which both keys open, so whoever writes the new one to the file within it interrupts nobody.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, TypeAlias

from kagzi.core.instant import SECOND, Span
from kagzi.core.key import read_key
from kagzi.errors import InvalidRequest
from kagzi.settings import read_secret

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
MetadataSource: TypeAlias = Callable[[], Metadata]

log = logging.getLogger("kagzi.rpc")

_LOOK: Final[Span] = SECOND


def nothing() -> Metadata:
    return ()


class FixedKey:
    def __init__(self, key: str) -> None:
        if read_key(key) is None:
            raise InvalidRequest("that is not an API key; keys look like kgz_…_… and are made by `kagzi keys create`")
        self._metadata = _showing(key)

    def __call__(self) -> Metadata:
        return self._metadata


class KeyInFile:
    """Reads the key from its file, again when that has changed. Heartbeats ask from a thread of their own: two that
    look at once read the same."""

    def __init__(self, path: str, monotonic: Callable[[], Span]) -> None:
        self._path = path
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._stamp = self._look()
        self._metadata = self._read()

    def __call__(self) -> Metadata:
        now = self._monotonic()
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            self._look_again()
        return self._metadata

    def _look_again(self) -> None:
        # Before reading: a file that changes meanwhile is read again the next time.
        stamp, before = self._look(), self._stamp
        self._stamp = stamp
        if stamp == before:
            return
        try:
            self._metadata = self._read()
        except InvalidRequest as error:
            log.error("the API key from before stays in use: %s", error)
        else:
            log.info("the API key was read again")

    def _look(self) -> tuple[int, int, int] | None:
        """Returns a value that differs once the file was changed or replaced."""
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> Metadata:
        problems: list[str] = []
        key = read_secret("KAGZI_AUTH_KEY_FILE", self._path, problems)
        if key is None:
            raise InvalidRequest(problems[0])
        if read_key(key) is None:
            raise InvalidRequest(f"KAGZI_AUTH_KEY_FILE names a file that holds no API key (kgz_…_…): {self._path}")
        return _showing(key)


def _showing(key: str) -> Metadata:
    return (("authorization", f"Bearer {key}"),)

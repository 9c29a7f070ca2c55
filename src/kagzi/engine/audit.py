"""The audit log. Entries are gathered and written together, so that a call never waits for its own.

What is gathered while the database is away is kept, up to a bound, and written when it is back. Every entry also goes
to the logger `kagzi.audit` at once: should the process be killed before it has written them, the log has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from operator import attrgetter
from typing import Final

from kagzi.api.keys import AuditFilter
from kagzi.core.audit import AuditEntry
from kagzi.core.key import mask_keys
from kagzi.core.limits import DEFAULT_PAGE_SIZE, NAME_CHARACTERS, check_name
from kagzi.core.page import BY_NUMBER, Page
from kagzi.engine.listing import Listing
from kagzi.errors import KagziError
from kagzi.store.protocol.store import Store

log = logging.getLogger("kagzi.audit")

_TOGETHER_SECONDS: Final = 0.1
_AGAIN_SECONDS: Final = 1.0
_BATCH: Final = 500
_WAITING: Final = 10_000
_CLOSE_SECONDS: Final = 5.0
_LONGEST: Final = NAME_CHARACTERS


class Audit:
    """`api.keys.AuditService` over a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listing = Listing[AuditEntry](store.page_secret, attrgetter("entry_id"), BY_NUMBER)
        self._waiting: deque[AuditEntry] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def record(self, entry: AuditEntry) -> None:
        entry = _clean(entry)
        log.info(
            "%s: %s",
            " ".join(filter(None, (entry.actor, entry.action, entry.target))),
            entry.result,
            extra={"namespace": entry.namespace, "peer": entry.peer, "request_id": entry.request_id},
        )
        if len(self._waiting) >= _WAITING:
            self._waiting.popleft()
            log.error("the audit log cannot be written and %d entries wait: the oldest is in this log only", _WAITING)
        self._waiting.append(entry)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="kagzi-audit")

    async def write(self, entry: AuditEntry) -> None:
        await self._store.audit.append([_clean(entry)])

    async def list(
        self, filter: AuditFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[AuditEntry]:
        if filter.namespace is not None:
            check_name(filter.namespace, "namespace")
        if filter.actor is not None:
            check_name(filter.actor, "actor")
        about = f"audit {filter!r}"
        cursor = self._listing.begin(page_size, page_token, about)
        rows = await self._store.audit.page(filter, cursor, page_size + 1)
        return self._listing.page(rows, page_size, about)

    async def close(self) -> None:
        """Write what waits, if the database lets us within a few seconds."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=_CLOSE_SECONDS)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
            log.error("%d entries of the audit log could not be written: they are in this log only", len(self._waiting))

    async def _write_all(self) -> None:
        try:
            pause = _TOGETHER_SECONDS
            while self._waiting:
                await self._pause(pause)
                batch = [self._waiting[number] for number in range(min(_BATCH, len(self._waiting)))]
                try:
                    await self._store.audit.append(batch)
                except KagziError as error:
                    log.warning("the audit log could not be written, trying again: %s", error)
                    pause = _AGAIN_SECONDS
                    if self._closing.is_set():
                        await asyncio.sleep(_TOGETHER_SECONDS)
                    continue
                pause = _TOGETHER_SECONDS
                # Entries are only ever taken from this end while none are being written, or when there are too many.
                for entry in batch:
                    if self._waiting and self._waiting[0] is entry:
                        self._waiting.popleft()
        finally:
            self._writing = None

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            pass


def _clean(entry: AuditEntry) -> AuditEntry:
    """Some of it is what callers said: a line of an ordinary length, storable, and no key in it."""
    return AuditEntry(
        actor=_text(entry.actor),
        action=_text(entry.action),
        namespace=None if entry.namespace is None else _text(entry.namespace),
        target=_text(entry.target),
        request_id=_text(entry.request_id),
        peer=_text(entry.peer),
        result=_text(entry.result),
    )


def _text(value: str) -> str:
    if value.isprintable() and len(value) <= _LONGEST:
        return mask_keys(value)
    line = "".join([character if character.isprintable() else " " for character in value[:_LONGEST]])
    return mask_keys(line.encode("utf-8", "replace").decode())

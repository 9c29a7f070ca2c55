"""Namespaces. They come into being when they are first used, and one that is disabled starts no runs.

Which ones are disabled is read at most once a second, and only while runs are being started: nobody disables a
namespace often, and a second later is soon enough. After a longer silence a start waits for that look.
"""

from __future__ import annotations

import asyncio
from math import inf
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from kagzi.core.limits import DEFAULT_PAGE_SIZE, check_name, check_text
from kagzi.core.namespace import DESCRIPTION_CHARACTERS, Namespace
from kagzi.core.page import BY_NAME, Page
from kagzi.engine.checks import check_handler
from kagzi.engine.listing import Listing
from kagzi.errors import Conflict, InvalidRequest, NamespaceDisabled, NotFound, Unavailable
from kagzi.store.protocol.store import Store

_REMEMBERED: Final = 10_000
_LOOK_SECONDS: Final = 1.0
_BLIND_SECONDS: Final = 5.0
_FILTER: Final = "namespaces"


class Namespaces:
    """`api.namespaces.NamespaceService` over a store, and what the engine itself asks about them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listing = Listing[Namespace](store.page_secret, attrgetter("namespace"), BY_NAME)
        self._loop = asyncio.get_running_loop()
        self._known = {"default"}  # made by the first migration
        self._disabled: frozenset[str] = frozenset()
        self._looked_at = -inf
        self._looking: asyncio.Task[None] | None = None

    # What starts ask.

    def admits(self, namespace: str) -> bool:
        """Returns whether a run may surely be started there, without asking the database; if False, ask `admit`."""
        age = self._loop.time() - self._looked_at
        if age > _LOOK_SECONDS:
            if age > _BLIND_SECONDS:
                return False
            self._look()
        return namespace in self._known and namespace not in self._disabled

    async def admit(self, namespace: str) -> None:
        """Make the namespace if need be; NamespaceDisabled if it starts no runs."""
        await self.ensure(namespace)
        if self._loop.time() - self._looked_at > _LOOK_SECONDS or namespace in self._disabled:
            await asyncio.shield(self._look())
        if namespace in self._disabled:
            raise NamespaceDisabled(f"namespace {namespace} is disabled: no runs are started in it")

    async def ensure(self, namespace: str) -> None:
        if namespace not in self._known:
            await self._store.namespaces.ensure(namespace)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known.add(namespace)

    async def look(self) -> None:
        """Reads which namespaces are disabled, so that the first start need not wait for it."""
        await self._read_disabled()

    def _look(self) -> asyncio.Task[None]:
        if self._looking is None:
            self._looking = self._loop.create_task(self._read_disabled(), name="kagzi-namespaces")
        return self._looking

    async def _read_disabled(self) -> None:
        try:
            self._disabled = frozenset(await self._store.namespaces.disabled())
            self._looked_at = self._loop.time()
        except Unavailable:
            pass  # whoever wants to write will hear of it
        finally:
            self._looking = None

    # What administrators ask.

    async def create(self, namespace: str, *, display_name: str = "", description: str = "") -> Namespace:
        check_name(namespace, "namespace")
        _check_about(display_name, description)
        made = await self._store.namespaces.create(namespace, display_name, description)
        if made is None:
            raise Conflict(f"there is a namespace {namespace} already")
        self._known.add(namespace)
        return _shown(made)

    async def get(self, namespace: str) -> Namespace:
        check_name(namespace, "namespace")
        return _found(await self._store.namespaces.get(namespace), namespace)

    async def list(self, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None) -> Page[Namespace]:
        cursor = self._listing.begin(page_size, page_token, _FILTER)
        rows = await self._store.namespaces.page("" if cursor is None else cursor.key, page_size + 1)
        return self._listing.page([_shown(namespace) for namespace in rows], page_size, _FILTER)

    async def update(
        self,
        namespace: str,
        *,
        display_name: str | None = None,
        description: str | None = None,
        on_failure: str | None = None,
        on_failure_queue: str | None = None,
    ) -> Namespace:
        check_name(namespace, "namespace")
        _check_about(display_name, description)
        if on_failure or on_failure_queue is not None:
            check_handler(on_failure or None, on_failure_queue)
        handler = None if on_failure is None else (on_failure, on_failure_queue)
        changed = await self._store.namespaces.update(namespace, display_name, description, None, handler)
        return _found(changed, namespace)

    async def enable(self, namespace: str, enabled: bool) -> Namespace:
        check_name(namespace, "namespace")
        changed = _found(await self._store.namespaces.update(namespace, None, None, enabled), namespace)
        self._disabled = self._disabled - {namespace} if enabled else self._disabled | {namespace}
        return changed


def _found(namespace: Namespace | None, name: str) -> Namespace:
    if namespace is None:
        raise NotFound(f"there is no namespace {name}")
    return _shown(namespace)


def _shown(namespace: Namespace) -> Namespace:
    """Returns a namespace to be shown: by its name, unless it was given another to display."""
    return namespace if namespace.display_name else replace(namespace, display_name=namespace.namespace)


def _check_about(display_name: str | None, description: str | None) -> None:
    if display_name:
        check_name(display_name, "display name")
    if description:
        check_text(description, "description")
        if len(description) > DESCRIPTION_CHARACTERS:
            raise InvalidRequest(
                f"description has {len(description):,} characters; at most {DESCRIPTION_CHARACTERS:,} are allowed"
            )

"""Namespaces come into being when they are first used."""

from __future__ import annotations

from kagzi.store.protocol import Store

_REMEMBERED = 10_000


class Namespaces:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known = {"default"}  # made by the first migration

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._known

    async def ensure(self, namespace: str) -> None:
        if namespace not in self._known:
            await self._store.ensure_namespace(namespace)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known.add(namespace)

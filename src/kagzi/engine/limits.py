"""Pausing queues, workflows and namespaces."""

from __future__ import annotations

from kagzi.core.flow import BY_CHARACTERS, FlowLimit, Scope
from kagzi.core.limits import check_name, check_text
from kagzi.engine.checks import check_reason
from kagzi.engine.wakeups import Wakeups
from kagzi.errors import InvalidRequest, NotFound
from kagzi.store.protocol import Store


class Limits:
    """`api.limits.LimitService` over a store."""

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups

    async def list(self, namespace: str) -> tuple[FlowLimit, ...]:
        check_name(namespace, "namespace")
        return tuple(await self._store.list_limits(namespace))

    async def pause(self, namespace: str, scope: Scope, name: str, *, by: str, reason: str = "") -> FlowLimit:
        _check(namespace, scope, name)
        check_reason(reason)
        check_text(by, "by")
        if len(by) > BY_CHARACTERS:
            raise InvalidRequest(f"by has {len(by):,} characters; at most {BY_CHARACTERS} are allowed")
        await self._check_namespace(namespace)
        return await self._store.pause(namespace, scope, name, by, reason)

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        _check(namespace, scope, name)
        await self._check_namespace(namespace)
        resumed = await self._store.resume(namespace, scope, name)
        # Other processes hear of it, or read it from the horizon within a second.
        if scope is Scope.QUEUE:
            self._wakeups.available((namespace, name))
        for queue in self._wakeups.watched_queues():
            if queue[0] == namespace and scope is not Scope.QUEUE:
                self._wakeups.available(queue)
        return resumed

    async def _check_namespace(self, namespace: str) -> None:
        if await self._store.get_namespace(namespace) is None:
            raise NotFound(f"there is no namespace {namespace}")


def _check(namespace: str, scope: Scope, name: str) -> None:
    check_name(namespace, "namespace")
    match scope:
        case Scope.NAMESPACE:
            if name:
                raise InvalidRequest(f"a namespace is paused as a whole, and not {name!r:.60} of it")
        case Scope.QUEUE:
            check_name(name, "task queue")
        case Scope.WORKFLOW:
            check_name(name, "workflow type")

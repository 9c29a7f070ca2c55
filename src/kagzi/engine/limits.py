"""Pausing and limiting queues, workflows and namespaces, and letting go of what was held for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, assert_never

from kagzi.core.flow import BY_CHARACTERS, MOST_CONCURRENCY, FlowLimit, Scope, SlotWait
from kagzi.core.limits import check_id, check_name, check_text
from kagzi.core.rate import RateLimit, check_rate
from kagzi.engine.checks import check_number, check_reason
from kagzi.engine.wakeups import Wakeups
from kagzi.errors import InvalidRequest, KagziError, NotFound, Unavailable
from kagzi.store.protocol.limits import LimitChange
from kagzi.store.protocol.store import Store

log = logging.getLogger("kagzi.engine")

_UNSAID: Final = -1  # as it was
_APART_SECONDS: Final = 0.005  # two turns of one namespace: what ends meanwhile shares the later one


class Limits:
    """`api.limits.LimitService` over a store. Makes held runs claimable again when there is room for them.

    Nothing here is kept that has to be right: if this process dies before it has freed a run, another one does
    (`coordinator/duties.py`).
    """

    def __init__(self, store: Store, wakeups: Wakeups, look_soon: Callable[[float], None]) -> None:
        self._store = store
        self._look_soon = look_soon  # for the horizon, which says when runs are due
        self._wakeups = wakeups
        self._loop = asyncio.get_running_loop()
        self._freeing: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()  # where there may be more room since the turn under way began
        self._after: dict[str, tuple[str, ...]] = {}  # the line behind which the next turn begins
        self._undeclared: set[str] = set()  # where what workers declare could not be stored
        self._closed = False

    def look_for_room(self, namespace: str) -> None:
        """Has held runs made claimable if there is room for them now: one that counts against a limit was let go of, or
        claimed while others wait."""
        if self._closed:
            return
        if namespace in self._freeing:
            self._again.add(namespace)
            return
        task = self._freeing[namespace] = self._loop.create_task(self._free(namespace), name="kagzi-limits")
        task.add_done_callback(lambda _: self._freeing.pop(namespace, None))

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._freeing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def repair(self) -> bool:
        """Takes one turn in every namespace that has limits. Returns whether there is more to do at once."""
        more = False
        for namespace in sorted(self._undeclared):
            await self._store.limits.declare(namespace)
            self._undeclared.discard(namespace)
        for namespace in await self._store.limits.namespaces():
            limits = await self._store.limits.read(namespace)
            if any(limit.is_declared for limit in limits):
                await self._store.limits.declare(namespace)  # workers may have gone
            more = await self._turn(namespace) or more
        return more

    async def declare(self, namespace: str) -> None:
        """Stores what live workers declare, after some have come or gone."""
        try:
            await self._store.limits.declare(namespace)
        except Unavailable as error:
            self._undeclared.add(namespace)
            log.warning("the limits that workers declare do not count yet: %s", error)
            return
        self.look_for_room(namespace)

    async def _free(self, namespace: str) -> None:
        try:
            while True:
                self._again.discard(namespace)
                more = await self._turn(namespace)
                if not more and namespace not in self._again:
                    return
                await asyncio.sleep(_APART_SECONDS)
        except KagziError as error:
            log.debug("held runs of namespace %s wait for the next turn: %s", namespace, error)

    async def _turn(self, namespace: str) -> bool:
        """Looks at some of the lines, beginning where the last turn stopped; returns whether there are more behind
        them."""
        unheld = await self._store.limits.unhold(namespace, self._after.get(namespace, ()))
        self._after[namespace] = unheld.after
        for queue in unheld.queues:
            self._wakeups.available(queue)
        if unheld.later:
            self._look_soon(0.0)
        return bool(unheld.after)

    async def list(self, namespace: str) -> tuple[FlowLimit, ...]:
        check_name(namespace, "namespace")
        return tuple(await self._store.limits.read(namespace))

    async def pause(self, namespace: str, scope: Scope, name: str, *, by: str, reason: str = "") -> FlowLimit:
        _check(namespace, scope, name)
        check_reason(reason)
        check_text(by, "by")
        if len(by) > BY_CHARACTERS:
            raise InvalidRequest(f"by has {len(by):,} characters; at most {BY_CHARACTERS} are allowed")
        await self._check_namespace(namespace)
        return await self._store.limits.pause(namespace, scope, name, by, reason)

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        _check(namespace, scope, name)
        await self._check_namespace(namespace)
        resumed = await self._store.limits.resume(namespace, scope, name)
        self._opened(namespace, scope, name)
        return resumed

    async def set(
        self,
        namespace: str,
        scope: Scope,
        name: str,
        *,
        concurrency: int | None = None,
        key_concurrency: int | None = None,
        rate: RateLimit | None = None,
        key_rate: RateLimit | None = None,
    ) -> FlowLimit:
        _check(namespace, scope, name)
        if scope is Scope.NAMESPACE:
            raise InvalidRequest("limits are of queues and workflows; a namespace can be paused")
        if concurrency is None and key_concurrency is None and rate is None and key_rate is None:
            raise InvalidRequest("say how many: concurrency, key_concurrency, rate or key_rate")
        for field, of_keys in (("key_concurrency", key_concurrency), ("key_rate", key_rate)):
            if scope is Scope.QUEUE and of_keys is not None:
                raise InvalidRequest(f"{field} is for workflows: a queue has no keys")
        for field, often in (("rate", rate), ("key_rate", key_rate)):
            if often is not None:
                check_rate(often, field)
        for field, number in (("concurrency", concurrency), ("key_concurrency", key_concurrency)):
            if number is not None:
                if number == 0:
                    raise InvalidRequest(f"{field} must be at least 1; to hand out nothing, pause it")
                check_number(number, field, 1, MOST_CONCURRENCY)
        await self._check_namespace(namespace)
        change = LimitChange(
            concurrency=_UNSAID if concurrency is None else concurrency,
            key_concurrency=_UNSAID if key_concurrency is None else key_concurrency,
            rate="" if rate is None else rate.encode(),
            key_rate="" if key_rate is None else key_rate.encode(),
        )
        limit = await self._store.limits.change(namespace, scope, name, change)
        self._opened(namespace, scope, name)
        return limit

    async def wait(self, namespace: str, run_id: str) -> SlotWait | None:
        check_name(namespace, "namespace")
        return await self._store.limits.wait_of(namespace, check_id(run_id, "run id"))

    async def clear(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        _check(namespace, scope, name)
        await self._check_namespace(namespace)
        limit = await self._store.limits.change(namespace, scope, name, LimitChange())
        self._opened(namespace, scope, name)
        return limit

    def _opened(self, namespace: str, scope: Scope, name: str) -> None:
        """There may be room now. Other processes hear of it, or read it from the horizon within a second."""
        self.look_for_room(namespace)
        if scope is Scope.QUEUE:
            self._wakeups.available((namespace, name))
            return
        for queue in self._wakeups.watched_queues():
            if queue[0] == namespace:
                self._wakeups.available(queue)

    async def _check_namespace(self, namespace: str) -> None:
        if await self._store.namespaces.get(namespace) is None:
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
        case _:
            assert_never(scope)

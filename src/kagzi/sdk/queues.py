"""`app.queues` and `app.limits`: what waits, and what holds it back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from kagzi.api.admin import AdminService
from kagzi.api.limits import LimitService
from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.instant import to_datetime
from kagzi.core.options import names_its_options
from kagzi.core.run import RunStatus
from kagzi.errors import InvalidRequest
from kagzi.sdk.limits import Rate, rate_of, set_rate


class PauseRecord(Struct, frozen=True, kw_only=True):
    """Since when nothing is handed out, and why. Moments are in UTC."""

    at: datetime
    by: str
    reason: str


class QueueRecord(Struct, frozen=True, kw_only=True):
    """A queue at one moment. `at_least`: more runs wait than were counted."""

    name: str
    pending: int
    running: int
    sleeping: int
    at_least: bool
    paused: PauseRecord | None  # None: its runs are handed out


class LimitRecord(Struct, frozen=True, kw_only=True):
    """What holds back the runs of a queue, a workflow, or (with no name) the whole namespace."""

    scope: str  # queue, workflow or namespace
    name: str
    paused: PauseRecord | None
    concurrency: int | None  # runs at once over all workers: what was set, else the smallest that workers declare
    key_concurrency: int | None  # the same of each key
    rate: Rate | None = None  # how often runs may begin
    key_rate: Rate | None = None  # the same of each key
    fair: bool = False  # its keys take turns
    shares: str | None = None  # whose limits count for the runs of this workflow


class FlowHome(Struct, frozen=True, kw_only=True):
    """The part of an app that queues and limits need."""

    namespace: Callable[[], str]
    service: Callable[[], LimitService]
    admin: Callable[[], AdminService]
    user: Callable[[], str]  # who runs this program


class Queues:
    """The queues of an app's namespace."""

    def __init__(self, home: FlowHome) -> None:
        self._home = home

    @names_its_options
    async def pause(self, queue: str, *, reason: str = "") -> PauseRecord:
        """Hand no run of this queue to a worker, from the return on. What runs goes on until it ends or waits; starts,
        deadlines, cancellations and schedules go on. Pausing twice changes nothing: the answer says since when."""
        home = self._home
        limit = await home.service().pause(home.namespace(), Scope.QUEUE, queue, by=home.user(), reason=reason)
        return _paused(limit)

    async def resume(self, queue: str) -> None:
        """Hand its runs out again. Harmless if it is not paused."""
        await self._home.service().resume(self._home.namespace(), Scope.QUEUE, queue)

    async def list(self) -> list[QueueRecord]:
        """Every queue in which there are live runs, or which is paused, by name."""
        namespace = self._home.namespace()
        counts: dict[str, Counter[RunStatus]] = {}
        uncertain: set[str] = set()
        for each in await self._home.admin().count_runs(namespace, live=True):
            counts.setdefault(each.task_queue, Counter())[each.status] += each.count
            if each.at_least:
                uncertain.add(each.task_queue)
        limits = await self._home.service().list(namespace)
        paused = {each.name: each for each in limits if each.scope is Scope.QUEUE and each.paused_at is not None}
        return [
            QueueRecord(
                name=name,
                pending=counts.get(name, Counter())[RunStatus.PENDING],
                running=counts.get(name, Counter())[RunStatus.RUNNING],
                sleeping=counts.get(name, Counter())[RunStatus.SLEEPING],
                at_least=name in uncertain,
                paused=_paused(paused[name]) if name in paused else None,
            )
            for name in sorted(counts.keys() | paused.keys())
        ]


class Limits:
    """What holds back runs of an app's namespace."""

    def __init__(self, home: FlowHome) -> None:
        self._home = home

    async def list(self) -> list[LimitRecord]:
        """All that holds runs back, by scope and name."""
        found = await self._home.service().list(self._home.namespace())
        return [_record(each) for each in found]

    @names_its_options
    async def set(
        self,
        *,
        queue: str | None = None,
        workflow: str | None = None,
        concurrency: int | None = None,
        key_concurrency: int | None = None,
        rate: Rate | None = None,
        key_rate: Rate | None = None,
    ) -> LimitRecord:
        """Let at most so many runs of a queue or a workflow (or of a limit name that several share) run at once over
        all workers, and so many of each key; or begin so often: `rate=Rate(100, "1m")`. It comes before what workers
        declare; what runs already goes on."""
        scope, name = _scope(queue, workflow, False)
        for field, number in (("concurrency", concurrency), ("key_concurrency", key_concurrency)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise InvalidRequest(f"{field} must be a whole number, not {number!r:.60}")
        limit = await self._home.service().set(
            self._home.namespace(),
            scope,
            name,
            concurrency=concurrency,
            key_concurrency=key_concurrency,
            rate=None if rate is None else set_rate(rate, "rate"),
            key_rate=None if key_rate is None else set_rate(key_rate, "key_rate"),
        )
        return _record(limit)

    @names_its_options
    async def clear(self, *, queue: str | None = None, workflow: str | None = None) -> LimitRecord:
        """Take back what was set; what workers declare counts again."""
        scope, name = _scope(queue, workflow, False)
        return _record(await self._home.service().clear(self._home.namespace(), scope, name))

    @names_its_options
    async def pause(
        self, *, queue: str | None = None, workflow: str | None = None, everything: bool = False, reason: str = ""
    ) -> PauseRecord:
        """Hand out no run of a queue, of a workflow, or with `everything=True` of the whole namespace."""
        scope, name = _scope(queue, workflow, everything)
        home = self._home
        return _paused(await home.service().pause(home.namespace(), scope, name, by=home.user(), reason=reason))

    @names_its_options
    async def resume(self, *, queue: str | None = None, workflow: str | None = None, everything: bool = False) -> None:
        """Hand its runs out again."""
        scope, name = _scope(queue, workflow, everything)
        await self._home.service().resume(self._home.namespace(), scope, name)


def _scope(queue: str | None, workflow: str | None, everything: bool) -> tuple[Scope, str]:
    if [queue is not None, workflow is not None, everything].count(True) != 1:
        raise InvalidRequest("say queue=, workflow= or everything=True, one of them")
    if queue is not None:
        return Scope.QUEUE, queue
    return (Scope.NAMESPACE, "") if workflow is None else (Scope.WORKFLOW, workflow)


def _record(limit: FlowLimit) -> LimitRecord:
    return LimitRecord(
        scope=limit.scope.value,
        name=limit.name,
        paused=None if limit.paused_at is None else _paused(limit),
        concurrency=limit.most,
        key_concurrency=limit.key_most,
        rate=rate_of(limit.effective_rate),
        key_rate=rate_of(limit.effective_key_rate),
        fair=limit.fair,
        shares=limit.shares,
    )


def _paused(limit: FlowLimit) -> PauseRecord:
    assert limit.paused_at is not None
    return PauseRecord(at=to_datetime(limit.paused_at), by=limit.paused_by, reason=limit.pause_reason)

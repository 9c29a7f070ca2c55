"""Pauses and limits of queues, workflows and namespaces, which hold runs back before a worker may take them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, assert_never

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.core.rate import RateLimit

MOST_CONCURRENCY: Final = 10_000
MOST_BEFORE: Final = 1000  # runs before another that are counted
BY_CHARACTERS: Final = 255  # of the name of who has done something


class Scope(StrEnum):
    """The kind of thing that a limit is about."""

    NAMESPACE = "namespace"
    QUEUE = "queue"
    WORKFLOW = "workflow"


class FlowLimit(Struct, frozen=True, kw_only=True):
    """A limit on the runs of one queue, one workflow, or (with no name) a whole namespace: a pause, numbers, rates."""

    namespace: str
    scope: Scope
    name: str
    paused_at: Instant | None = None  # since when no run of it is handed out
    paused_by: str = ""
    pause_reason: str = ""
    concurrency: int | None = None  # runs at once over all workers, as it was set by hand
    declared: int | None = None  # the same: the smallest that a live worker declares
    key_concurrency: int | None = None  # runs of each key at once, as it was set by hand
    key_declared: int | None = None
    shares: str | None = None  # whose limits count for the runs of this workflow, as workers declare it
    rate: RateLimit | None = None  # how often runs may begin, as it was set by hand
    rate_declared: RateLimit | None = None
    key_rate: RateLimit | None = None  # the same of each key
    key_rate_declared: RateLimit | None = None
    fair: bool = False  # its keys take turns, as workers declare it

    @property
    def most(self) -> int | None:
        """How many runs may run at once. A number that was set comes before the one that workers declare."""
        return self.declared if self.concurrency is None else self.concurrency

    @property
    def key_most(self) -> int | None:
        """How many runs of each key may run at once."""
        return self.key_declared if self.key_concurrency is None else self.key_concurrency

    @property
    def is_set(self) -> bool:
        """Whether somebody has set any of its numbers by hand."""
        said = (self.concurrency, self.key_concurrency, self.rate, self.key_rate)
        return any(each is not None for each in said)

    @property
    def is_declared(self) -> bool:
        """Whether workers declare any of its numbers."""
        said = (self.declared, self.key_declared, self.shares, self.rate_declared, self.key_rate_declared)
        return self.fair or any(each is not None for each in said)

    @property
    def effective_rate(self) -> RateLimit | None:
        """How often runs may begin. A rate that was set comes before the one that workers declare."""
        return self.rate_declared if self.rate is None else self.rate

    @property
    def effective_key_rate(self) -> RateLimit | None:
        """How often runs of each key may begin."""
        return self.key_rate_declared if self.key_rate is None else self.key_rate

    @property
    def limits_runs(self) -> bool:
        """Whether runs may have to wait for others."""
        limits = (self.most, self.key_most, self.effective_rate, self.effective_key_rate)
        return any(each is not None for each in limits)

    @property
    def about(self) -> str:
        """For people: queue mail."""
        return f"{self.scope.value} {self.name or self.namespace}"

    def concerns(self, task_queue: str, workflow_type: str) -> bool:
        """Whether runs of this workflow in this queue of its namespace are held back by it."""
        match self.scope:
            case Scope.NAMESPACE:
                return True
            case Scope.QUEUE:
                return self.name == task_queue
            case Scope.WORKFLOW:
                return self.name == workflow_type
            case scope:
                assert_never(scope)


class SlotWait(Struct, frozen=True, kw_only=True):
    """The limit that a run waits for, because as many run as may; or the rate, if it has to begin later."""

    slots: str  # whose they are: checkout/t7, workflow checkout, queue mail
    running: int = 0
    most: int = 0
    before: int  # runs of its line that wait before it; from MOST_BEFORE on at least so many
    rate: str | None = None  # 100 in 1m
    next_at: Instant | None = None  # when the next one may begin

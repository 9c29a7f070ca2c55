"""How long a run waits in memory for its children, under its lease, before it is parked.

Children often end soon: their parent waits with its slot lent until nothing has happened for a while, so a run of many
children is replayed once for each silent second, and not once for each child.

A parent that was claimed under a limit keeps somebody out as long as it waits. All its waiting under one claim is
`SHORT_WAIT` at most, whatever happens meanwhile, and it does not wait at all for a child that may need the very slot
that it has: one of its own workflow, of its queue, or of a workflow that shares its limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from kagzi.api.operations import ChildStart
from kagzi.api.workers import Claim, DeclaredLimit
from kagzi.core.instant import SECOND, Instant, Span

# Waits up to this long stay in memory under the lease, longer ones park the run.
SHORT_WAIT: Span = SECOND


class Lingering:
    """Since when a run has waited for children, and until when it may."""

    def __init__(self, claim: Claim, declared: Iterable[DeclaredLimit]) -> None:
        self._claim = claim
        self._declared = declared if claim.limited else ()
        self._since: Instant = 0
        self._after = -1  # so many events

    def until(self, events: int, awaited: Iterable[ChildStart], now: Instant) -> Instant:
        """Returns until when to wait, which may be over."""
        if self._after < 0 or (self._after != events and not self._claim.limited):
            self._after, self._since = events, now
        if self._claim.limited and any(self._competes(child) for child in awaited):
            return now
        return self._since + SHORT_WAIT

    def _competes(self, child: ChildStart) -> bool:
        parent = self._claim
        if child.task_queue == parent.task_queue or child.workflow_type == parent.workflow_type:
            return True
        return not self._names(child.workflow_type).isdisjoint(self._names(parent.workflow_type))

    def _names(self, workflow_type: str) -> set[str]:
        shared = {limit.shares for limit in self._declared if limit.name == workflow_type and limit.shares is not None}
        return {workflow_type, *shared}

"""Workers whose Kagzi is older than what holds runs back: they take runs that limits and pauses would keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kagzi.core.flow import FlowLimit
from kagzi.core.worker import Worker
from kagzi.version import numbers_of

LIMITS_SINCE: Final = (0, 1)  # the version that keeps limits, rates and pauses
_MOST_NAMED: Final = 5


def disregarded(worker: Worker, limits: Sequence[FlowLimit]) -> list[FlowLimit]:
    """Returns the limits in force for the runs of this worker that its software does not know of. A worker that does
    not say its version is older than any that knows."""
    if numbers_of(worker.version) >= LIMITS_SINCE:
        return []
    shared = {limit.name: limit.shares for limit in limits if limit.shares is not None}
    types = {offered.name for offered in worker.types}
    names = types | {shared[name] for name in types if name in shared}
    return [
        limit
        for limit in limits
        if (limit.paused_at is not None or limit.limits_runs)
        and any(limit.concerns(queue, name) for queue in worker.queues for name in names)
    ]


def disregard(workers: Sequence[Worker], limits: Sequence[FlowLimit]) -> str | None:
    """Returns a sentence about workers that do not keep to limits; None if all of them do."""
    found = [(worker, those) for worker in workers if (those := disregarded(worker, limits))]
    if not found:
        return None
    said = "; ".join(
        f"{worker.worker_id[-8:]} (process {worker.pid} on {worker.hostname}, version {worker.version or 'unknown'}): "
        f"{_some([_words(limit) for limit in those])}"
        for worker, those in found[:_MOST_NAMED]
    )
    more = f"; and {len(found) - _MOST_NAMED} more workers" if len(found) > _MOST_NAMED else ""
    since = ".".join(str(number) for number in LIMITS_SINCE)
    return (
        f"workers that are online and older than {since} do not keep to limits and pauses, unless a server claims for "
        f"them; upgrade or drain them: {said}{more}"
    )


def _words(limit: FlowLimit) -> str:
    """The limit and what is not kept: queue mail (pause, concurrency)."""
    kinds = {
        "pause": limit.paused_at is not None,
        "concurrency": limit.most is not None or limit.key_most is not None,
        "rate": limit.effective_rate is not None or limit.effective_key_rate is not None,
    }
    return f"{limit.about} ({', '.join(kind for kind, given in kinds.items() if given)})"


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return f"{', '.join(words[:_MOST_NAMED])}{more}"

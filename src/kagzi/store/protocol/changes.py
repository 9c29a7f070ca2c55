"""What a transaction has done to runs, as stores tell the engine."""

from __future__ import annotations

from msgspec import Struct

from kagzi.api.operations import Answer
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus

Queue = tuple[str, str]  # (namespace, task queue)
RunKey = tuple[str, str]  # (namespace, run id)


class Recovered(Struct, frozen=True, kw_only=True):
    """What a duty did to one run."""

    namespace: str
    run_id: str
    task_queue: str
    status: RunStatus
    available_at: Instant
    workflow_type: str = ""  # of one that a schedule has just started


class Told(Struct, frozen=True, kw_only=True):
    """A run that was told of the end of another: its inbox has grown, and if it waits for that it can be claimed. Or
    one that was started in the batch beside the runs it names."""

    namespace: str
    run_id: str
    task_queue: str
    status: RunStatus
    available_at: Instant
    inbox_seq: int
    workflow_type: str = ""  # of a run that was started now, as a child; it has heard of nothing yet


class Applied(Struct, frozen=True):
    """The result of a batch: an answer to each write, and the other runs that were told."""

    answers: list[Answer]
    woken: list[Told]

    def add(self, other: Applied) -> None:
        """Adds what came of writes that were applied after these."""
        self.answers.extend(other.answers)
        self.woken.extend(other.woken)


class Changed(Struct, frozen=True):
    """The result of a duty: the runs that it changed, and the other runs that were told of their ends."""

    runs: list[Recovered] = []
    woken: list[Told] = []

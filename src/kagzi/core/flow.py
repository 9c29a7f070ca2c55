"""What holds runs back before a worker may take them: pauses of queues, workflows and namespaces."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant

BY_CHARACTERS: Final = 255  # of the name of who has done something


class Scope(StrEnum):
    """What a limit is about."""

    NAMESPACE = "namespace"
    QUEUE = "queue"
    WORKFLOW = "workflow"


class FlowLimit(Struct, frozen=True, kw_only=True):
    """What holds back the runs of one queue, one workflow, or (with no name) a whole namespace."""

    namespace: str
    scope: Scope
    name: str
    paused_at: Instant | None = None  # since when no run of it is handed out
    paused_by: str = ""
    pause_reason: str = ""

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
